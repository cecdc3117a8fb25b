"""The simulated model in this process: the same engine as the server's, without the wire.

It answers what the server answers, except for what only a server has: nothing is in flight beside the call.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model.protocol import Completion, Message, Sampling
from harness.model.simulated.engine import Engine, Generated
from harness.model.simulated.noise import Kind, Noise
from harness.model.simulated.profiles import Profile
from harness.model.simulated.tokens import encode
from harness.model.simulated.wire import parts_of, turns_of
from harness.record import Tokens, Usage


class SimulatedClient:
    """A model client over an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def of(cls, profile: Profile, noise: Kind = "iid", epoch: str = "0") -> "SimulatedClient":
        """A client with an engine of its own."""
        return cls(Engine(profile, Noise(noise, epoch)))

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        """The next assistant message."""
        with self.engine.noise.in_flight() as batch:
            generated = self.engine.complete(
                turns_of(messages, tools),
                temperature=sampling.temperature,
                seed=seed,
                max_tokens=sampling.max_tokens,
                logprobs=sampling.logprobs,
                batch=batch,
            )
        return self._completion(generated, with_tools=bool(tools))

    def _completion(self, generated: Generated, *, with_tools: bool) -> Completion:
        parts = parts_of(generated, with_tools=with_tools)
        tokens = None
        if generated.logprobs is not None:
            tokens = Tokens(
                ids=tuple(generated.ids),
                logprobs=tuple(finite(value) for value in generated.logprobs),
                pieces=generated.chunks,
            )
        return Completion(
            text=parts.content,
            tool_calls=parts.tool_calls,
            finish_reason=_finish(generated, called=bool(parts.tool_calls)),
            usage=Usage(input_tokens=generated.prompt_tokens, output_tokens=len(generated.chunks)),
            model=self.engine.profile.name,
            tokens=tokens,
            propensity=generated.propensity,
            cached_prompt_tokens=generated.cached_tokens,
            server_epoch=self.engine.fingerprint,
            in_flight=1,
        )

    def score(
        self, messages: Sequence[Message], continuation: str, action: str, *, tools: Sequence[Mapping[str, Any]]
    ) -> float | None:
        """Log-probability at temperature 1 of `action` right after `continuation`; None where it has none."""
        before, ids = encode(continuation), encode(action)
        values = self.engine.score(turns_of(messages, tools), before + ids)[len(before) :]
        total = math.fsum(values)
        return total if total > -math.inf else None


def _finish(generated: Generated, *, called: bool) -> str:
    return "tool_calls" if called else generated.finish_reason


def finite(value: float) -> float | None:
    """A probability of zero has no logarithm: None."""
    return value if value > -math.inf else None
