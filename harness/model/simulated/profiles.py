"""What makes one simulated model differ from another: skill, care, habits and noise, as numbers.

Logits are at temperature 1. `sigma` scales the Gumbel noise that stands in for a server's numerical
nondeterminism at temperature 0: `large` has a tenth of `small`'s, `exact` has none.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from harness.errors import ConfigError


@dataclass(frozen=True)
class Profile:
    """One simulated model."""

    name: str
    sigma: float
    """Scale of the Gumbel noise at temperature 0, in nats."""
    skill: float
    """Share of the right edit among the three edits, before jitter."""
    thoroughness: float
    """0: submits unseen work; 1: reads around, tests and verifies."""
    format_error_rate: float
    """Probability at temperature 1 of a reply that cannot be read."""
    verbosity: float
    """0: terse notes; 1: long ones."""
    repeat_penalty: float
    """Nats off an entry for each time that it was chosen before."""
    jitter: float
    """Scale of the fixed offset of each (profile, task, entry): standard deviation in nats."""
    edit_jitter: float
    """The same for the three edits: how much the tasks differ in difficulty."""
    sway: float
    """Scale of a second offset that changes with what was looked at: how far reading decides what comes next."""
    stuck_rate: float
    """Share of the sets of things looked at after which it reads the same file again and again."""
    habits: Mapping[str, float] = field(default_factory=dict)
    """Offset in nats by the entry's habit, such as `read:cat`."""

    def offset(self, task: str, entry: str) -> float:
        """The fixed jitter of one entry, a standard normal draw from a hash."""
        return _normal(f"{self.name}\x1f{task}\x1f{entry}")

    def with_settings(self, settings: Mapping[str, Any]) -> "Profile":
        """This profile with some numbers replaced; ConfigError names a parameter that there is not."""
        known = {item.name for item in fields(self)} - {"name", "habits"}
        wrong = sorted(set(settings) - known)
        if wrong:
            raise ConfigError(f"a profile has no parameter {wrong[0]!r}; it has: {', '.join(sorted(known))}")
        changed: dict[str, Any] = {key: float(value) for key, value in settings.items()}
        result = replace(self, **changed)
        if not 0 < result.skill < 1 or not 0 < result.format_error_rate < 1 or result.sigma < 0:
            raise ConfigError("skill and format_error_rate lie strictly between 0 and 1, sigma is not negative")
        return result


@lru_cache(maxsize=100_000)
def _normal(key: str) -> float:
    """Close to a standard normal: the sum of twelve uniform numbers from a hash, less six."""
    digest = hashlib.blake2b(key.encode(), digest_size=48).digest()
    words = (int.from_bytes(digest[at : at + 4], "big") for at in range(0, 48, 4))
    return sum(word / 2**32 for word in words) - 6.0


_SMALL = Profile(
    name="small",
    sigma=0.3,
    skill=0.27,
    thoroughness=0.35,
    format_error_rate=0.02,
    verbosity=0.1,
    repeat_penalty=1.5,
    jitter=1.0,
    edit_jitter=0.5,
    sway=0.9,
    stuck_rate=0.01,
    habits={"read:cat": 1.5, "read:head": -0.5, "list:ls": 1.2, "search": -0.4},
)
_LARGE = Profile(
    name="large",
    sigma=0.035,
    skill=0.42,
    thoroughness=0.85,
    format_error_rate=0.003,
    verbosity=0.9,
    repeat_penalty=2.5,
    jitter=0.2,
    edit_jitter=0.6,
    sway=0.4,
    stuck_rate=0.002,
    habits={"read:sed": 1.0, "read:head": -0.5, "list:find": 0.4, "search": 0.3},
)
PROFILES: Mapping[str, Profile] = {
    "small": _SMALL,
    "large": _LARGE,
    "exact": replace(_LARGE, name="exact", sigma=0.0),
}


def profile(name: str, settings: Mapping[str, Any] | None = None) -> Profile:
    """The profile of that name with `settings` replaced; ConfigError names the ones there are."""
    if name not in PROFILES:
        raise ConfigError(f"no simulated profile {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name].with_settings(settings or {})
