"""Who acts at a step. An arm is a routing policy over steps, so routing is first class and its probabilities known.

A policy is a pure function of the step number and a seed. Steps are counted from the start of the base, so a
policy means the same thing in a base and in a branch.
"""

import random
from dataclasses import dataclass
from typing import Protocol

from harness.record import Arm, seed_for


@dataclass(frozen=True)
class Choice:
    """An agent's name and the probability with which it was chosen."""

    agent: str
    probability: float = 1.0


class RoutingPolicy(Protocol):
    """Chooses who acts."""

    def choose(self, step: int, *, seed: int) -> Choice:
        """The agent for step `step` (1-based) of a rollout with seed `seed`."""
        ...


@dataclass(frozen=True)
class Always:
    """One agent acts at every step."""

    agent: str

    def choose(self, step: int, *, seed: int) -> Choice:
        """That agent, with probability one."""
        return Choice(self.agent)


@dataclass(frozen=True)
class SwitchAt:
    """`before` acts until `step`; from `step` on, `after` does."""

    before: str
    after: str
    step: int

    def choose(self, step: int, *, seed: int) -> Choice:
        """`after` from the switch on."""
        return Choice(self.after if step >= self.step else self.before)


@dataclass(frozen=True)
class SwitchFor:
    """`other` acts for `count` steps from `step` on; `agent` before and after."""

    agent: str
    other: str
    step: int
    count: int

    def choose(self, step: int, *, seed: int) -> Choice:
        """`other` within the window."""
        return Choice(self.other if self.step <= step < self.step + self.count else self.agent)


@dataclass(frozen=True)
class RandomMix:
    """At each step `second` acts with probability `share`, else `first`; drawn from the rollout's seed."""

    first: str
    second: str
    share: float

    def choose(self, step: int, *, seed: int) -> Choice:
        """A draw that depends on the seed and the step alone."""
        if random.Random(seed_for("routing", seed, step)).random() < self.share:
            return Choice(self.second, self.share)
        return Choice(self.first, 1.0 - self.share)


def policy_for(arm: Arm) -> RoutingPolicy:
    """The routing policy that `arm` is, from its fork on."""
    return Always(arm.agent)
