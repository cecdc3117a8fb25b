"""Whether a server answers one request alike: measured, never inferred from a seed or a temperature.

What a probe saw holds for that many requests at that load. Nothing here or elsewhere calls a run deterministic.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from harness.model.protocol import Completion, Message, ModelClient, Sampling


@dataclass(frozen=True)
class Repeats:
    """What one request gave, sent several times over."""

    asked: int
    at_once: int
    """Requests in flight together."""
    variants: tuple[int, ...]
    """How often each distinct answer came, most often first."""
    by_token_ids: bool
    """Answers were compared by token ids; else by finish reason, text and tool calls."""
    first_difference: int | None
    """Token (character where ids are not known), from 0, at which the two most frequent answers part; None for one."""
    fingerprints: tuple[str | None, ...]
    """Those that the server gave, each once; None: an answer without one."""

    @property
    def repeatable(self) -> bool:
        """Every answer was the same: of `asked`, no more."""
        return len(self.variants) == 1

    def line(self) -> str:
        """The finding in words."""
        load = "one at a time" if self.at_once == 1 else f"{self.at_once} at once"
        if self.repeatable:
            return f"repeated in {self.asked} of {self.asked} requests, {load}"
        unit = "token" if self.by_token_ids else "character"
        return (
            f"not repeatable: {len(self.variants)} variants in {self.asked} requests, {load}, "
            f"parting at {unit} {self.first_difference}"
        )


def repeatability(
    client: ModelClient,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
    times: int = 8,
    at_once: int = 1,
) -> Repeats:
    """Send the same request, same seed, `times` times."""

    def ask(_: int) -> Completion:
        return client.complete(messages, tools=tools, sampling=sampling, seed=seed)

    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(ask, range(times)))
    by_ids = all(answer.tokens is not None and answer.tokens.ids is not None for answer in answers)
    seen = Counter(_token_ids(answer) if by_ids else _content(answer) for answer in answers)
    ordered = seen.most_common()
    return Repeats(
        asked=times,
        at_once=at_once,
        variants=tuple(count for _, count in ordered),
        by_token_ids=by_ids,
        first_difference=_parting(ordered[0][0], ordered[1][0]) if len(ordered) > 1 else None,
        fingerprints=tuple(dict.fromkeys(answer.server_epoch for answer in answers)),
    )


def _token_ids(answer: Completion) -> tuple[Hashable, ...]:
    return () if answer.tokens is None or answer.tokens.ids is None else answer.tokens.ids


def _content(answer: Completion) -> tuple[Hashable, ...]:
    calls = "".join(f"\n{call.name} {call.arguments}" for call in answer.tool_calls)
    return (*answer.text, *calls, f"[{answer.finish_reason}]")


def _parting(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    missing = object()
    pairs = zip_longest(one, other, fillvalue=missing)
    return next(at for at, (left, right) in enumerate(pairs) if left != right)
