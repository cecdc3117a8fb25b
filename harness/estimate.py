"""What a study will take, before anything runs: counts that the plan fixes, bounds that the limits fix, and
expectations from rates that the study states. What nothing states is absent, never guessed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.config import ForksSection, Study
from harness.record import Task
from harness.sandbox.protocol import Image
from harness.sweep import plan_bases


@dataclass(frozen=True)
class Images:
    """Docker images that the tasks name."""

    needed: int
    here: int | None
    """Of these; None: no engine was asked."""
    pull_bytes: float | None
    """Disk that the rest will take at the stated size of one; None: not stated."""


@dataclass(frozen=True)
class Estimate:
    """The size of a study. Branches depend on how long the bases turn out: their numbers are bounds."""

    tasks: int
    bases: int
    forks_at_most: int | None
    """None: the fork rule and the limits do not bound it."""
    branches_at_most: int | None
    calls_at_most: int | None
    calls: float | None
    """Expected, at `rates.calls_per_rollout`; None: not stated."""
    input_tokens: float | None
    output_tokens: float | None
    gpu_hours: float | None
    """Of the machine that serves all models together, at the stated throughput."""
    images: Images


def estimate(
    study: Study, chosen: Sequence[Task], image: Callable[[Task], Image], present: Callable[[str], bool] | None
) -> Estimate:
    """The size of `study` on the `chosen` tasks; `present` tells whether the engine has an image."""
    bases = len(plan_bases(study, chosen))
    forked = len(chosen) * len(study.directions)
    arms = len(study.arms) * study.replicates
    forks = _forks_at_most(study)
    calls = _expected_calls(study, bases, forked, arms)
    rates = study.rates
    tokens_in, tokens_out = _times(calls, rates.input_tokens_per_call), _times(calls, rates.output_tokens_per_call)
    return Estimate(
        tasks=len(chosen),
        bases=bases,
        forks_at_most=None if forks is None else forked * forks,
        branches_at_most=None if forks is None else forked * forks * arms,
        calls_at_most=_calls_at_most(study, bases, forked, arms),
        calls=calls,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        gpu_hours=_hours(study, tokens_in, tokens_out),
        images=_images(study, map(image, chosen), present),
    )


def _times(count: float | None, rate: float | None) -> float | None:
    return None if count is None or rate is None else count * rate


def _hours(study: Study, tokens_in: float | None, tokens_out: float | None) -> float | None:
    reading, writing = study.rates.input_tokens_per_second, study.rates.output_tokens_per_second
    if tokens_in is None or tokens_out is None or reading is None or writing is None:
        return None
    return (tokens_in / reading + tokens_out / writing) / 3600


def _forks_at_most(study: Study) -> int | None:
    """Forks of one base."""
    if study.forks.rule != "every":
        return len(study.forks.at)
    return None if study.limits.calls is None else study.limits.calls // int(study.forks.at[0])


def _steps(forks: ForksSection, length: float, calls: int | None) -> list[float]:
    """Fork steps of a base of `length` steps under a limit of `calls`."""
    if forks.rule == "every":
        return [float(step) for step in range(int(forks.at[0]), int(length) + 1, int(forks.at[0]))]
    if forks.rule == "absolute":
        return [step for step in forks.at if step <= length]
    span = length if forks.rule.endswith("fraction") and forks.rule != "call_fraction" else (calls or 0)
    return [step for step in (max(1.0, round(f * span)) for f in forks.at) if step <= length]


def _calls_at_most(study: Study, bases: int, forked: int, arms: int) -> int | None:
    """A fork at a fraction of the base may lie at its first step: then a branch has the whole limit before it."""
    limit = study.limits.calls
    if limit is None:
        return None
    fixed = study.forks.rule in ("absolute", "call_fraction", "every")
    steps = _steps(study.forks, limit, limit) if fixed else [1.0] * len(study.forks.at)
    return bases * limit + forked * arms * sum(limit - int(step) + 1 for step in steps)


def _expected_calls(study: Study, bases: int, forked: int, arms: int) -> float | None:
    """Branches as long as their bases: what a swap does to lengths is what the study is to find out."""
    length = study.rates.calls_per_rollout
    if length is None:
        return None
    steps = _steps(study.forks, length, study.limits.calls)
    return bases * length + forked * arms * sum(length - step + 1 for step in steps)


def _images(study: Study, images: Iterable[Image], present: Callable[[str], bool] | None) -> Images:
    names = {image.docker for image in images if image.docker is not None}
    here = None if present is None else sum(map(present, names))
    return Images(len(names), here, _times(len(names) - (here or 0), study.rates.image_bytes))


def estimate_lines(study: Study, found: Estimate) -> list[str]:
    """For a person: what is fixed, what is bounded, what is expected and on what assumption."""
    forks, branches = _bound(found.forks_at_most), _bound(found.branches_at_most)
    models = ", ".join(f"{label}: {one.base} -> {one.swap}" for label, one in study.directions.items())
    return [
        f"plan · {study.name} · {found.tasks} tasks · {models} · nothing was run",
        f"  cells     {found.bases} bases, {forks} forks, {branches} branches "
        f"({' and '.join(study.arms)}, {study.replicates} each)",
        f"  images    {_image_line(found.images)}",
        f"  calls     {_bound(found.calls_at_most)}; expected {_amount(found.calls)}",
        f"  tokens    expected {_amount(found.input_tokens)} read, {_amount(found.output_tokens)} written",
        f"  GPU time  expected {_amount(found.gpu_hours)} hours",
        f"  assumes   {_assumptions(study)}",
    ]


def _bound(value: int | None) -> str:
    return "no bound on" if value is None else f"at most {value:,}"


def _amount(value: float | None) -> str:
    if value is None:
        return "- (a rate is not stated)"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _image_line(images: Images) -> str:
    if not images.needed:
        return "none to pull"
    here = "no engine was asked which are here" if images.here is None else f"{images.here} of them here"
    size = (
        "size not stated" if images.pull_bytes is None else f"about {images.pull_bytes / 1e9:,.0f} GB of disk to come"
    )
    return f"{images.needed}, {here}; {size}"


def _assumptions(study: Study) -> str:
    stated = {name: value for name, value in study.rates.model_dump().items() if value is not None}
    return (
        ", ".join(f"{name} {value:,.12g}" for name, value in stated.items()) or "nothing: the study states no `rates`"
    )
