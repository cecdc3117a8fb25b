"""Log-probabilities, token by token, of a span that is drawn from a menu of strings.

    M(prefix) = (1 - epsilon) * sum of the probabilities of the strings that start so + epsilon * 256 ** -len(prefix)

A token's log-probability is log M(with it) - log M(without it); the terms telescope to log M(the whole string).
The second part gives every string finite mass, so that another model's action can be scored; the sampler draws from
the menu only, so a stated probability p is off by less than 1e-12. With epsilon = 0 what the menu lacks has probability
zero: minus infinity, and null in JSON.
"""

import math
from collections.abc import Iterable, Sequence

EPSILON = 1e-12
_BYTE = math.log(256.0)


class Mixture:
    """The distribution of one span."""

    def __init__(self, strings: Sequence[bytes], probabilities: Sequence[float], epsilon: float) -> None:
        self._strings, self._probabilities = strings, probabilities
        self._epsilon = epsilon

    def log_mass(self, size: int, matching: Iterable[int]) -> float:
        """log M of a prefix of `size` bytes with which the strings at `matching` start."""
        menu = (1.0 - self._epsilon) * math.fsum(self._probabilities[at] for at in matching)
        if not self._epsilon:
            return math.log(menu) if menu else -math.inf
        bytewise = math.log(self._epsilon) - size * _BYTE
        if not menu:
            return bytewise
        return math.log(menu) + math.log1p(math.exp(bytewise - math.log(menu)))

    def logprobs(self, chunks: Sequence[bytes]) -> list[float]:
        """One log-probability a chunk; once a prefix has no mass, minus infinity."""
        matching: list[int] = list(range(len(self._strings)))
        position, before, found = 0, 0.0, []
        for chunk in chunks:
            end = position + len(chunk)
            matching = [at for at in matching if self._strings[at][position:end] == chunk]
            position = end
            mass = self.log_mass(position, matching)
            found.append(mass - before if mass > -math.inf else -math.inf)
            before = mass
        return found
