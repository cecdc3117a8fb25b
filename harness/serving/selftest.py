"""Does a server give the same prompt the same reply? Asked under one condition after the other, against one reference.

The reference is every prompt asked alone, from a cold prefix cache where the server allows that, with a seed of its
own. A condition changes one thing. What a study at temperature 0 relies on is that nothing differs anywhere; at a
temperature above 0 another seed must make a difference, so conditions that change the seed do not count there.

    again      everything as it was
    order      the prompts in reverse order
    warm       the prompt right after itself: its prefix is in the cache
    batch      all prompts in flight together
    twins      each prompt twice in flight together, the two compared with each other
    seed       another seed
    unseeded   no seed sent; runs always send one, so this is told and counts for nothing
    handover   the second call of a conversation asked cold, as a branch asks it, against that call asked right after
               the first, as a base asks it
    restart    after a restart of the server, where it may be restarted

0 of n prompts differing bounds the rate of prompts that differ: below 1 - 0.05^(1/n), about 3/n, with 95% confidence,
for prompts and replies such as these; a longer reply has more chances to differ.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from harness.errors import ModelError
from harness.model.protocol import Message
from harness.record import seed_for
from harness.serving.asking import Answer, Asking, Cold, Connection, Unit, new_salt

Name = Literal["again", "order", "warm", "batch", "twins", "seed", "unseeded", "handover", "restart"]

_SEEDED_AWAY: frozenset[Name] = frozenset({"seed"})
"""Conditions that count at temperature 0 only."""
_ALPHA = 0.05

NO_COLD = "this server cannot be told to forget a prefix: what the reference found in its cache is not known"
NO_RESTART = "the server may not be restarted; `forkroll selftest CARD --restart` does"

_FIRST_ANSWER = "exit code: 0\noutput:\n"


@dataclass(frozen=True)
class Condition:
    """What one condition came to."""

    name: Name
    n: int
    """Prompts compared; 0: it was not tried."""
    differing: int
    first: int | None
    """Earliest place, counted from 1, at which a reply differs; None when none does."""
    prompts: tuple[str, ...]
    """Those that differ."""
    counts: bool
    """Whether a difference here means that the server does not repeat itself."""
    why_not: str = ""
    """Why it was not tried."""
    seconds: float = 0.0
    """Asking took; what `batch` took tells servings of one model apart by throughput."""


@dataclass(frozen=True)
class SelfTest:
    """The self-test of one served model."""

    model: str
    base_url: str
    prompts: int
    max_tokens: int
    temperature: float
    seeds: str
    unit: Unit
    """What was compared, and what `first` counts."""
    cold_by: Cold | None
    """How the prefix cache was kept out of the reference; None: it was not."""
    cached_cold: int | None
    """Prompt tokens of the reference that came from the prefix cache all the same; None: the server does not say."""
    cached_warm: int | None
    """The same of `warm`; None also where that was not tried."""
    conditions: tuple[Condition, ...]

    @property
    def deterministic(self) -> bool:
        """Nothing that counts differed anywhere it was tried."""
        return not self.broken

    @property
    def broken(self) -> tuple[Name, ...]:
        """Conditions that count and under which something differed."""
        return tuple(found.name for found in self.conditions if found.counts and found.differing)

    @property
    def untried(self) -> tuple[Name, ...]:
        """Conditions that count and could not be tried."""
        return tuple(found.name for found in self.conditions if found.counts and not found.n)

    @property
    def bound(self) -> float:
        """Upper 95% bound on the rate of prompts that differ under one condition, when none of them did."""
        return float(1 - _ALPHA ** (1 / self.prompts))

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            **asdict(self),
            "deterministic": self.deterministic,
            "broken": list(self.broken),
            "untried": list(self.untried),
            "bound_if_none_differs": self.bound,
        }

    def line(self) -> str:
        """The verdict in one line."""
        if self.broken:
            worst = max((found for found in self.conditions if found.counts), key=lambda found: found.differing)
            return (
                f"{self.model}: does not repeat itself under {', '.join(self.broken)} "
                f"(at worst {worst.differing} of {worst.n} prompts, first at {self.unit} {worst.first})"
            )
        return (
            f"{self.model}: 0 of {self.prompts} prompts differ under any condition that counts: "
            f"a rate below {self.bound:.2g} (95%; about 3/n)"
            + (f"; not tried: {', '.join(self.untried)}" if self.untried else "")
        )


def self_test(
    asking: Asking,
    prompts: Mapping[str, Sequence[Message]],
    *,
    seed: int = 0,
    restart: Callable[[], None] | None = None,
) -> SelfTest:
    """Ask `prompts` (name -> messages, at least one) under every condition. Raises ModelError when a request fails."""
    with asking.connect() as connection:
        examination = _Examination(connection, prompts, asking, seed)
        conditions = tuple(_timed(examination.conditions(restart)))
        return SelfTest(
            model=asking.model,
            base_url=asking.base_url,
            prompts=len(prompts),
            max_tokens=asking.max_tokens,
            temperature=asking.temperature,
            seeds="one a prompt, the same under every condition but `seed` and `unseeded`",
            unit=examination.unit,
            cold_by=examination.cold,
            cached_cold=examination.cached_cold,
            cached_warm=examination.cached_warm,
            conditions=conditions,
        )


def _timed(conditions: Iterator[Condition]) -> Iterator[Condition]:
    begun = time.monotonic()
    for condition in conditions:
        yield replace(condition, seconds=round(time.monotonic() - begun, 3))
        begun = time.monotonic()


Answers = Mapping[str, Answer]


class _Examination:
    """One self-test under way."""

    def __init__(
        self, connection: Connection, prompts: Mapping[str, Sequence[Message]], asking: Asking, seed: int
    ) -> None:
        self._connection, self._prompts = connection, prompts
        self._seeds = {name: seed_for("self-test", seed, name) for name in prompts}
        self._others = {name: seed_for("self-test", seed, name, "other") for name in prompts}
        self._at_zero = asking.temperature == 0.0
        self.cold = connection.cold_by()
        self._reference = self._alone()
        has_ids = all(answer.ids is not None for answer in self._reference.values())
        self.unit: Unit = "token" if has_ids else "character"
        self.cached_cold = _cached(self._reference)
        self.cached_warm: int | None = None

    def conditions(self, restart: Callable[[], None] | None) -> Iterator[Condition]:
        """Each as it is asked for: between two of them lies the time that the second took."""
        reference = self._reference
        yield self._compared("again", reference, self._alone())
        yield self._compared("order", reference, self._alone(reverse=True))
        yield self._warm(reference)
        yield self._compared("batch", reference, self._together(list(self._prompts)))
        yield self._twins()
        yield self._compared("seed", reference, self._alone(seeds=self._others))
        yield self._compared("unseeded", reference, self._alone(seeds={}), counts=False)
        yield self._handover()
        yield self._restarted(reference, restart)

    def _alone(self, *, reverse: bool = False, seeds: Mapping[str, int] | None = None) -> dict[str, Answer]:
        """Every prompt asked with nothing else in flight, cold where that can be had."""
        names = list(self._prompts)[:: -1 if reverse else 1]
        chosen = self._seeds if seeds is None else seeds
        return {name: self._cold(self._prompts[name], chosen.get(name)) for name in names}

    def _cold(self, messages: Sequence[Message], seed: int | None) -> Answer:
        if self.cold == "reset":
            self._connection.reset()
        salt = new_salt() if self.cold == "salt" else None
        return self._connection.ask(messages, seed=seed, salt=salt)

    def _together(self, names: Sequence[str]) -> dict[str, Answer]:
        return dict(zip(names, self._at_once(names), strict=True))

    def _at_once(self, names: Sequence[str]) -> list[Answer]:
        """One reply for each name, all in flight together."""
        if self.cold == "reset":
            self._connection.reset()
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            return list(pool.map(self._asked_in_company, names))

    def _asked_in_company(self, name: str) -> Answer:
        salt = new_salt() if self.cold == "salt" else None
        return self._connection.ask(self._prompts[name], seed=self._seeds[name], salt=salt)

    def _warm(self, reference: Answers) -> Condition:
        if self.cold is None:
            return self._untried("warm", NO_COLD)
        warm = {name: self._after_itself(name) for name in self._prompts}
        self.cached_warm = _cached(warm)
        return self._compared("warm", reference, warm)

    def _after_itself(self, name: str) -> Answer:
        salt = new_salt() if self.cold == "salt" else None
        messages, seed = self._prompts[name], self._seeds[name]
        self._connection.ask(messages, seed=seed, salt=salt)
        return self._connection.ask(messages, seed=seed, salt=salt)

    def _twins(self) -> Condition:
        one: dict[str, Answer] = {}
        other: dict[str, Answer] = {}
        for name in self._prompts:
            one[name], other[name] = self._at_once([name, name])
        return self._compared("twins", one, other)

    def _handover(self) -> Condition:
        continued: dict[str, Answer] = {}
        cold: dict[str, Answer] = {}
        for name, messages in self._prompts.items():
            salt = new_salt() if self.cold == "salt" else None
            if self.cold == "reset":
                self._connection.reset()
            seed = self._seeds[name]
            first = self._connection.ask(messages, seed=seed, salt=salt)
            longer = _continued(messages, first.message)
            continued[name] = self._connection.ask(longer, seed=seed, salt=salt)
            cold[name] = self._cold(longer, seed)
        return self._compared("handover", continued, cold)

    def _restarted(self, reference: Answers, restart: Callable[[], None] | None) -> Condition:
        if restart is None:
            return self._untried("restart", NO_RESTART, counts=False)
        restart()
        return self._compared("restart", reference, self._alone())

    def _compared(self, name: Name, one: Answers, other: Answers, *, counts: bool = True) -> Condition:
        places = {prompt: first_difference(one[prompt], other[prompt], self.unit) for prompt in self._prompts}
        differing = {prompt: place for prompt, place in places.items() if place is not None}
        return Condition(
            name=name,
            n=len(places),
            differing=len(differing),
            first=min(differing.values(), default=None),
            prompts=tuple(differing),
            counts=self._counts(name, counts),
        )

    def _untried(self, name: Name, why: str, *, counts: bool = True) -> Condition:
        return Condition(name, 0, 0, None, (), self._counts(name, counts), why)

    def _counts(self, name: Name, counts: bool) -> bool:
        return counts and (self._at_zero or name not in _SEEDED_AWAY)


def first_difference(one: Answer, other: Answer, unit: Unit) -> int | None:
    """Place, counted from 1, of the first token or character that differs; None when the replies are the same."""
    if unit == "character":
        return _place(one.text, other.text)
    if one.ids is None or other.ids is None:
        raise ModelError("self-test: the server gives token ids for some replies and not for others")
    return _place(one.ids, other.ids)


def _cached(answers: Answers) -> int | None:
    counts = [answer.cached_tokens for answer in answers.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _place(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    shorter = min(len(one), len(other))
    for at in range(shorter):
        if one[at] != other[at]:
            return at + 1
    return None if len(one) == len(other) else shorter + 1


def _continued(messages: Sequence[Message], reply: Message) -> list[Message]:
    """The conversation after `reply`, answered as if its command had printed nothing."""
    calls = reply.get("tool_calls") or []
    said: dict[str, Any] = {"role": "assistant", "content": reply.get("content") or ""}
    if not calls:
        return [*messages, said, {"role": "user", "content": _FIRST_ANSWER}]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": _FIRST_ANSWER} for call in calls]
    return [*messages, {**said, "tool_calls": calls}, *answers]
