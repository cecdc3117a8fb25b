"""How much a simulated model wants each entry of its menu: logits from the profile and from what the dialogue shows.

One rule a kind, each a sum of a few terms in nats. Working order: look around, read the faulty file, edit, test,
verify, submit. A failed check sends it back to editing; it is what catches an edit that the verification sees through.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from harness.model.simulated.menu import Dialect, Entry, Kind, Menu, State
from harness.model.simulated.profiles import Profile

_LOOKS: frozenset[Kind] = frozenset(("list", "read", "search"))


@dataclass(frozen=True)
class Situation:
    """A state as the rules see it."""

    menu: Menu
    state: State
    profile: Profile

    @cached_property
    def looks(self) -> str:
        """Names what was looked at, whatever the order."""
        pairs = zip(self.menu.entries, self.state.counts, strict=True)
        return " ".join(entry.name for entry, n in pairs if n and entry.kind in _LOOKS)

    @cached_property
    def stuck(self) -> bool:
        """Whether it goes in circles: a property of what was looked at, so it lasts until something new is."""
        entry = self.menu.entries[self.state.last]
        if self.edited or self.state.last < 0 or entry.kind != "read":
            return False
        limit = NormalDist().inv_cdf(1 - self.profile.stuck_rate) if self.profile.stuck_rate else math.inf
        return self.profile.offset(self.menu.task, f"stuck\x1f{self.looks}") > limit

    @cached_property
    def seen(self) -> int:
        """Different things looked at."""
        pairs = zip(self.menu.entries, self.state.counts, strict=True)
        return len({(entry.kind, entry.position) for entry, n in pairs if n and entry.kind in _LOOKS})

    def times(self, kind: Kind, position: int | None = None) -> int:
        """How often an entry of `kind` was chosen, at `position` where that is given."""
        pairs = zip(self.menu.entries, self.state.counts, strict=True)
        return sum(n for entry, n in pairs if entry.kind == kind and position in (None, entry.position))

    @cached_property
    def knows_fault(self) -> bool:
        """Whether a faulty file was read."""
        return any(self.times("read", position) for position in self.menu.faulty)

    @property
    def edited(self) -> bool:
        """Whether the files are changed."""
        return self.state.version != "repo"

    @property
    def rejected(self) -> bool:
        """Whether a check failed since the last edit."""
        return self.edited and "failed" in (self.state.tests, self.state.verify)

    @property
    def care(self) -> float:
        """The profile's thoroughness."""
        return self.profile.thoroughness


def _list(now: Situation, entry: Entry) -> float:
    if now.edited:
        return -4.5
    return 2.2 - 2.6 * now.times("list") - 0.5 * now.times("read")


def _read(now: Situation, entry: Entry) -> float:
    again = 1.2 * now.times("read", entry.position)
    if now.edited:
        return (-0.5 if now.rejected and entry.position in now.menu.faulty else -3.5) - again
    if entry.position in now.menu.faulty:
        return 0.4 + 0.6 * min(now.seen, 2) - again
    return -1.4 + 1.2 * now.care + 0.4 * now.knows_fault - 0.5 * now.times("read") - again


def _search(now: Situation, entry: Entry) -> float:
    if now.edited:
        return -4.0
    return 0.6 - 1.2 * now.times("search") - 0.8 * now.knows_fault


def _tests(now: Situation, entry: Entry) -> float:
    if not now.edited:
        return -1.2 + 1.4 * now.care - 3.0 * now.times("tests")
    if now.state.tests is not None:
        return -3.0
    return 2.2 if now.state.verify is None else 0.8 + now.care


def _verify(now: Situation, entry: Entry) -> float:
    if not now.edited:
        return -2.4 + 2.0 * now.care - 3.0 * now.times("verify")
    if now.state.verify is not None:
        return -3.0
    return -0.3 + 2.9 * now.care + (1.0 if now.state.tests == "passed" else 0.0)


def _edit(now: Situation, entry: Entry) -> float:
    skill = now.profile.skill
    share = {"right": skill, "wrong_1": 0.5 * (1 - skill), "wrong_2": 0.5 * (1 - skill)}[str(entry.version)]
    want = math.log(share) - (5.0 if entry.version in now.state.caught else 0.0)
    if now.rejected:
        return want + 3.0
    if now.edited:
        return want - (6.0 if entry.version == now.state.version else 3.5)
    return want - 3.2 + 3.2 * now.knows_fault + 0.5 * min(now.seen, 5) - 0.6 * now.care


def _diff(now: Situation, entry: Entry) -> float:
    if not now.edited:
        return -6.0
    checked = "passed" in (now.state.tests, now.state.verify) and not now.rejected
    return -1.0 + (4.4 if checked else 1.0) * now.care - 2.5 * now.times("diff")


def _submit(now: Situation, entry: Entry) -> float:
    if not now.edited:
        return -6.5
    if now.rejected:
        return 0.2 - 2.5 * now.care
    checks = 1.7 * (now.state.tests == "passed") + 2.0 * (now.state.verify == "passed")
    return 0.6 - 1.4 * now.care + checks


_RULES: dict[Kind, Callable[[Situation, Entry], float]] = {
    "list": _list,
    "read": _read,
    "search": _search,
    "tests": _tests,
    "edit": _edit,
    "verify": _verify,
    "diff": _diff,
    "submit": _submit,
}
_CIRCLE = 6.0
_REPEATED: frozenset[Kind] = frozenset(("list", "read", "search", "diff"))


def _fixed(menu: Menu, profile: Profile) -> tuple[float, ...]:
    """What does not change during a rollout: habits and jitter."""
    scales = (profile.edit_jitter if entry.kind == "edit" else profile.jitter for entry in menu.entries)
    return tuple(
        profile.habits.get(entry.habit, 0.0) + scale * profile.offset(menu.task, entry.name)
        for entry, scale in zip(menu.entries, scales, strict=True)
    )


class Chooser:
    """The logits of one profile."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._fixed: dict[str, tuple[float, ...]] = {}
        self.logits = lru_cache(maxsize=20_000)(self._logits)

    def _logits(self, menu: Menu, state: State, dialect: Dialect) -> tuple[float, ...]:
        """One number an entry, in nats at temperature 1; -inf for what the dialect lacks."""
        if menu.task not in self._fixed:
            self._fixed[menu.task] = _fixed(menu, self.profile)
        now = Situation(menu, state, self.profile)
        values = [
            -math.inf if entry.kind == "format_error" else self._want(now, at) for at, entry in enumerate(menu.entries)
        ]
        return tuple(self._with_format_errors(values, menu, dialect))

    def _want(self, now: Situation, at: int) -> float:
        entry = now.menu.entries[at]
        profile = self.profile
        if now.stuck and at == now.state.last:
            return _CIRCLE
        repeats = now.state.counts[at] if entry.kind in _REPEATED else 0
        sway = profile.sway * profile.offset(now.menu.task, f"{entry.name}\x1f{now.looks}")
        return _RULES[entry.kind](now, entry) + self._fixed[now.menu.task][at] + sway - profile.repeat_penalty * repeats

    def _with_format_errors(self, values: list[float], menu: Menu, dialect: Dialect) -> list[float]:
        """Their rate is a parameter, so it is measured against all the rest."""
        there = [
            at
            for at, entry in enumerate(menu.entries)
            if entry.kind == "format_error" and menu.texts[dialect][at] is not None
        ]
        rate = self.profile.format_error_rate
        level = log_sum_exp(values) + math.log(rate / (1 - rate) / len(there))
        for at in there:
            values[at] = level
        return values


def log_sum_exp(values: Sequence[float]) -> float:
    """log of the sum of exponentials, without overflow."""
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def softmax(values: Sequence[float], scale: float) -> list[float]:
    """Probabilities proportional to exp(value / scale)."""
    top = max(values)
    weights = [math.exp((value - top) / scale) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]


_TERSE = ("Next.\n", "Go on.\n", "Ok, next step.\n", "Continuing.\n")
_LONG = (
    "I will take the next step and look closely at what it tells me about the issue.\n",
    "So far this fits the report; the next command should show me whether I am on the right track.\n",
    "Before I decide on anything else, I want to see the result of one more command.\n",
    "Keeping the issue in mind, this is what I think is the most useful thing to do now.\n",
)
NOTES = (*_TERSE, *_LONG)
"""Openings of a reply. They tell nothing of the action, so that the action's own probability is its entry's."""
_RANKS = (0.0, -1.6, -2.6, -3.4)


def note_logits(menu: Menu, state: State, profile: Profile) -> tuple[float, ...]:
    """One number a note, in nats at temperature 1."""
    lean = 6.0 * (profile.verbosity - 0.5)
    phase = "checked" if state.tests or state.verify else "edited" if state.version != "repo" else "looking"
    return tuple(
        (-lean if note in _TERSE else lean) + _RANKS[at % 4] + 0.4 * profile.offset(menu.task, f"note:{phase}:{at}")
        for at, note in enumerate(NOTES)
    )
