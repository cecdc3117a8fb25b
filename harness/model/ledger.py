"""What was seen of one client's answers: counts for the manifest, and lines for whatever is less than was asked for."""

import threading
from collections import Counter
from collections.abc import Callable

from harness.model.patience import Malformed, Passing, Patience, Trouble
from harness.model.protocol import Completion, Sampling

LONG_SECONDS = 10.0
"""From here on, a wait that the server names is long."""


class Ledger:
    """Of one client. Threads may share it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` is told when the first long wait begins, and when the first begins that is capped."""
        self._say = say
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._epochs: dict[str, None] = {}
        self._models: dict[str, None] = {}
        self._longest_named = 0.0

    def troubled(self, trouble: Trouble, patience: Patience) -> None:
        """An attempt came to nothing."""
        named = trouble.wait if isinstance(trouble, Passing) else None
        capped = named is not None and named > patience.longest_wait_seconds
        with self._lock:
            self._troubles["malformed" if isinstance(trouble, Malformed) else str(trouble).split(":")[0]] += 1
            kind = "capped" if capped else "long" if named is not None and named >= LONG_SECONDS else "short"
            self._counts[kind] += 1
            first = self._counts[kind] == 1
            self._longest_named = max(self._longest_named, named or 0.0)
        if first and kind != "short":
            cap = f", capped at {patience.longest_wait_seconds:g} s (`longest_wait_seconds`)" if capped else ""
            self._say(f"the server asks for a wait of {named:g} s{cap}; others like it are not told again")

    def answered(self, completion: Completion, sampling: Sampling) -> None:
        """An attempt was answered."""
        usage, tokens = completion.usage, completion.tokens
        with self._lock:
            self._counts["answers"] += 1
            self._counts["no_usage"] += usage.output_tokens is None
            self._counts["no_logprobs"] += sampling.logprobs and tokens is None
            self._counts["no_ids"] += sampling.logprobs and tokens is not None and tokens.ids is None
            self._counts["no_bytes"] += sampling.logprobs and tokens is not None and tokens.pieces is None
            if completion.server_epoch is not None:
                self._epochs[completion.server_epoch] = None
            self._models[completion.model] = None

    def echoed(self) -> None:
        """The server echoed the key."""
        with self._lock:
            self._counts["echoed"] += 1

    def facts(self) -> dict[str, object]:
        """Counts and names for the manifest."""
        with self._lock:
            return {
                "answers": self._counts["answers"],
                "attempts_in_vain": dict(sorted(self._troubles.items())),
                "fingerprints": list(self._epochs),
                "answered_as": list(self._models),
            }

    def notes(self) -> list[str]:
        """What the answers lack, one line each."""
        with self._lock:
            counts, answers = Counter(self._counts), self._counts["answers"]
            longest = self._longest_named
        lines = [
            f"{told} ({counts[name]} of {answers} answers)" for name, told in _LACKS.items() if answers and counts[name]
        ]
        if counts["capped"]:
            lines.append(f"waits that the server named, up to {longest:g} s, were capped ({counts['capped']} times)")
        if counts["echoed"]:
            lines.append(
                f"the server echoed the key: it was taken out of {counts['echoed']} answers, with their tokens"
            )
        return lines


_LACKS = {
    "no_usage": "the server counts no tokens: token limits and token counts do not hold",
    "no_logprobs": "log-probabilities were asked for and not given",
    "no_ids": "token ids were asked for and not given, or do not fit the log-probabilities",
    "no_bytes": "the bytes of some token are not given, or do not give the text: `pieces` is unknown",
}
