"""The tables of a run: what each arm did at each depth, what a swap changes, and what the numbers rest on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.divergence import KINDS, Divergence, action_agreement, context_validity, edit_distance, first_divergence
from analysis.effects import (
    BehaviourEffect,
    Effect,
    behaviour_effect,
    outcome_effect,
    whole_suffix,
    within,
)
from analysis.fidelity import prefix_fidelity
from analysis.flips import count_flips
from analysis.load import BranchRow, ForkKey, Run, instances
from analysis.patches import compare
from analysis.table import Cell, Column, Table, absent, count, label, number, rate

HORIZON = 5
"""Model calls within which W_5 looks (estimands M7)."""

_ARM = (
    Column("direction", "dir", is_label=True),
    Column("arm", "arm", is_label=True),
    Column("depth", "depth", is_label=True),
)


@dataclass(frozen=True)
class Group:
    """Rows of one arm, or both, at one depth in one direction."""

    direction: str
    arm: str
    depth: str
    rows: tuple[BranchRow, ...]


def fork_tables(run: Run) -> tuple[Table, ...]:
    """The fork table, the swap's effects on behaviour and outcome, and what the run's numbers rest on."""
    return fork_table(run), behaviour_table(run), outcome_table(run), quality_table(run)


def all_tables(run: Run) -> tuple[Table, ...]:
    """The above, and the paper's own metrics under its name."""
    return (*fork_tables(run), paper_table(run))


def _groups(run: Run, by_arm: bool) -> list[Group]:
    found: dict[tuple[str, str, str], list[BranchRow]] = {}
    for row in run.rows:
        key = (row.branch.direction, row.branch.arm.name if by_arm else "", row.branch.fork.depth)
        found.setdefault(key, []).append(row)
    ordered = sorted(found, key=lambda key: (_place(run, key[0]), key[0], key[1] != "control", _depth_order(key[2])))
    return [Group(*key, tuple(found[key])) for key in ordered]


def _place(run: Run, direction: str) -> int:
    """Directions in the order of the study where the manifest tells it, else by name."""
    named = list(run.manifest.get("directions", []))
    return named.index(direction) if direction in named else len(named)


def _depth_order(depth: str) -> tuple[float, str]:
    digits = "".join(character for character in depth.split("+")[0] if character.isdigit() or character == ".")
    return (float(digits) if digits.strip(".") else 0.0, depth)


def fork_table(run: Run) -> Table:
    """Per direction, arm and depth: how far branches go from their base, and whether they end elsewhere."""
    columns = (
        *_ARM,
        Column("n", "n"),
        Column("edit", "edit"),
        Column("edit5", f"edit_{HORIZON}"),
        Column("kinds", "id/ext/cut/div"),
        Column("diverged", "diverged"),
        Column("first", "first"),
        Column("validity", "valid"),
        Column("flips", "flips"),
        Column("fidelity", "prefix"),
    )
    return Table(
        "fork",
        _title(run),
        columns,
        tuple(_fork_row(group) for group in _groups(run, by_arm=True)),
        (
            "n: branches. edit: normalised edit distance to the base's commands after the fork; "
            f"edit_{HORIZON}: within {HORIZON} model calls, which compares across depths. id/ext/cut/div: how many "
            "repeat the base, repeat it and run on, stop inside it, run another command (= diverged). first: index of "
            "the first difference, from 0, over branches that are not identical (arms do not compare by it). "
            "valid: replay validity, the share of replayed decisions taken in a context that really occurs, "
            "(first + 1) / base actions. flips: outcome differs from the base's; +k of them towards resolved. prefix: "
            "prefixes that agreed in all that was compared: exit codes, normalised outputs, states.",
            _anticipating_note(run),
            "Not shown: intervals (none is computed yet). `edit` does not compare across depths.",
        ),
    )


def _title(run: Run) -> str:
    tasks = len({base.task_id for base in run.bases.values()})
    rules = sorted({row.branch.fork.rule for row in run.rows})
    return (
        f"fork table · {run.name} · {tasks} tasks, {len(run.bases)} bases, {len(run.forks())} forks, "
        f"{len(run.rows)} branches · fork rule {', '.join(rules) or 'none'}"
    )


def _anticipating_note(run: Run) -> str:
    if any(row.branch.fork.anticipating for row in run.rows):
        return (
            "The fork rule is anticipating (it uses the base's length): the base is no draw from the control's "
            "distribution, so every column that is anchored on it is descriptive."
        )
    return "The fork rule is not anticipating."


def _fork_row(group: Group) -> tuple[Cell, ...]:
    rows = group.rows
    parted = [first_divergence(row.base_actions, row.actions) for row in rows]
    distances = [edit_distance(row.base_actions, row.actions) for row in rows]
    kinds = [sum(found.kind == kind for found in parted) for kind in KINDS]
    return (
        label(group.direction),
        label(group.arm),
        label(group.depth),
        count(len(rows)),
        number(_mean(distances), 2),
        number(_mean(_near_base(row) for row in rows), 2, why=f"no fork has {HORIZON} calls left"),
        replace(label("/".join(map(str, kinds))), parts=dict(zip(KINDS, kinds, strict=True))),
        _fraction(kinds[KINDS.index("diverged")], len(parted)),
        number(_mean(found.at for found in parted), 1, why="every branch is identical to its base"),
        _defined_mean(parted, context_validity),
        _flips(rows),
        _fraction(*prefix_fidelity(rows).clean_branches),
    )


def _near_base(row: BranchRow) -> float | None:
    """Distance to the base within the horizon; None where fewer calls are left at the fork."""
    left = row.branch.fork.calls_left
    if left is not None and left < HORIZON:
        return None
    stops = {"base_stop": row.base.ending.stop.value, "branch_stop": row.stop.value}
    return edit_distance(row.base_calls, row.calls, horizon=HORIZON, **stops)


def _fraction(hits: int, total: int) -> Cell:
    """A rate shown as a bare fraction, where the share would not fit; it is in `value` and `parts`."""
    shown = rate(hits, total)
    return replace(shown, text=shown.text.partition(" ")[0])


def _flips(rows: Sequence[BranchRow]) -> Cell:
    flips = count_flips(rows)
    shown = rate(flips.gained + flips.lost, flips.graded, why="no branch and base were both graded")
    if shown.value is None:
        return shown
    parts = {**shown.parts, "gained": flips.gained, "lost": flips.lost}
    return replace(shown, text=f"{flips.gained + flips.lost}/{flips.graded} +{flips.gained}", parts=parts)


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None when nothing is."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _defined_mean(parted: Sequence[Divergence], measure: Callable[[Divergence], float | None]) -> Cell:
    return number(_mean(measure(found) for found in parted), 2, why="no base has an action after the fork")


def paper_table(run: Run) -> Table:
    """The paper's metrics as it defines them (G9-G16), for comparison with its tables."""
    columns = (
        *_ARM,
        Column("n", "n"),
        Column("edit", "edit"),
        Column("diverged", "diverged"),
        Column("first", "1st div"),
        Column("validity", "valid"),
        Column("files", "files"),
        Column("similarity", "patch sim"),
        Column("identical", "equal"),
    )
    return Table(
        "paper",
        f"paper · {run.name} · the paper's metrics, by its own definitions",
        columns,
        tuple(_paper_row(group) for group in _groups(run, by_arm=True)),
        (
            "diverged counts a mere difference in length. valid: action agreement, first difference / base actions. "
            "files: Jaccard index of the patched files, and equal: patches alike, over all branches; 1 when both are "
            "empty. patch sim: over branches whose patch or whose base's is not empty: its n depends on the arm.",
            "All columns are anchored on the base. Use `fork`, `behaviour` and `outcome` for claims.",
        ),
    )


def _paper_row(group: Group) -> tuple[Cell, ...]:
    rows = group.rows
    parted = [first_divergence(row.base_actions, row.actions) for row in rows]
    patches = [compare(row.base_patch, row.patch) for row in rows]
    similar = [
        found.similarity
        for found, row in zip(patches, rows, strict=True)
        if row.base_patch.strip() or row.patch.strip()
    ]
    return (
        label(group.direction),
        label(group.arm),
        label(group.depth),
        count(len(rows)),
        number(_mean(edit_distance(row.base_actions, row.actions) for row in rows), 3),
        rate(sum(found.at is not None for found in parted), len(parted), 0),
        number(_mean(found.at for found in parted), 1, why="every branch is identical to its base"),
        _defined_mean(parted, action_agreement),
        number(_mean(found.file_jaccard for found in patches), 2),
        _over(number(_mean(similar), 2, why="every patch is empty"), len(similar)),
        rate(sum(found.identical for found in patches), len(patches), 0),
    )


def _over(cell: Cell, n: int) -> Cell:
    """The cell with the number of branches that it is a mean over."""
    return cell if cell.value is None else replace(cell, text=f"{cell.text} (n={n})", parts={"n": n})


_WHERE = (Column("direction", "dir", is_label=True), Column("depth", "depth", is_label=True))
_SIZES = "inst/forks/branches"


def behaviour_table(run: Run) -> Table:
    """W, floor and eta per direction and depth: contrasts of branches with branches."""
    columns = (
        *_WHERE,
        Column("w", "W"),
        Column("floor", "floor"),
        Column("eta", "eta"),
        Column("n_w", _SIZES),
        Column("w5", f"W_{HORIZON}"),
        Column("floor5", f"floor_{HORIZON}"),
        Column("eta5", f"eta_{HORIZON}"),
        Column("n_w5", _SIZES),
    )
    return Table(
        "behaviour",
        f"swap effect on behaviour · {run.name} · branches against branches; instances weigh equally",
        columns,
        tuple(_behaviour_row(group, forks) for group, forks in _effect_groups(run)),
        (
            "W: distance between a swap and a control branch above the distance between two controls (floor). "
            "eta: W as a share of what the floor leaves; W does not compare across floors without it. "
            f"W_{HORIZON}: the same within {HORIZON} model calls; forks with fewer calls left are dropped.",
            "Not shown: intervals and tests (none is computed yet); what happens beyond the call limit.",
        ),
    )


def outcome_table(run: Run) -> Table:
    """tau, gains and losses per direction and depth."""
    columns = (
        *_WHERE,
        Column("swap", "swap resolved"),
        Column("control", "control resolved"),
        Column("tau", "tau"),
        Column("gains", "gains"),
        Column("losses", "losses"),
        Column("n_tau", _SIZES),
    )
    return Table(
        "outcome",
        f"swap effect on outcome · {run.name} · branches against branches; instances weigh equally",
        columns,
        tuple(_outcome_row(group, forks) for group, forks in _effect_groups(run)),
        (
            "tau: resolved rate of swap less that of control = gains - losses. gains: a swap branch resolves and a "
            "control branch of its fork does not, over all such pairs; losses: the reverse.",
            "Not shown: intervals and tests (none is computed yet).",
        ),
    )


def _effect_groups(run: Run) -> list[tuple[Group, dict[ForkKey, Sequence[BranchRow]]]]:
    forks = run.forks()
    return [(group, _forks_of(group, forks)) for group in (*_groups(run, by_arm=False), *_whole_directions(run))]


def _whole_directions(run: Run) -> list[Group]:
    names = sorted({row.branch.direction for row in run.rows}, key=lambda name: (_place(run, name), name))
    return [Group(name, "", "all", tuple(row for row in run.rows if row.branch.direction == name)) for name in names]


def _forks_of(group: Group, forks: Mapping[ForkKey, Sequence[BranchRow]]) -> dict[ForkKey, Sequence[BranchRow]]:
    return {
        key: rows
        for key, rows in forks.items()
        if key.direction == group.direction and group.depth in ("all", rows[0].branch.fork.depth)
    }


def _behaviour_row(group: Group, forks: Mapping[ForkKey, Sequence[BranchRow]]) -> tuple[Cell, ...]:
    why = "not identified: needs a swap and two controls at one fork"
    return (
        label(group.direction),
        label(group.depth),
        *_effect(behaviour_effect(forks, whole_suffix), why),
        *_effect(behaviour_effect(forks, within(HORIZON)), f"{why} with {HORIZON} calls left"),
    )


def _effect(found: BehaviourEffect, why: str) -> tuple[Cell, ...]:
    why_eta = why if found.w.value is None else "the floor is 1: nothing is left above it"
    return (
        number(found.w.value, 2, signed=True, why=why),
        number(found.floor.value, 2, why=why),
        number(found.eta, 2, signed=True, why=why_eta),
        _sizes(found.w),
    )


def _outcome_row(group: Group, forks: Mapping[ForkKey, Sequence[BranchRow]]) -> tuple[Cell, ...]:
    outcome = outcome_effect(forks)
    why = "no fork with graded branches in both arms"
    return (
        label(group.direction),
        label(group.depth),
        rate(*outcome.swap_resolved, 0, why="no graded swap branch"),
        rate(*outcome.control_resolved, 0, why="no graded control branch"),
        number(outcome.tau.value, 2, signed=True, why=why),
        number(outcome.gains.value, 2, why=why),
        number(outcome.losses.value, 2, why=why),
        _sizes(outcome.tau),
    )


def _sizes(effect: Effect) -> Cell:
    return label(f"{effect.instances}/{effect.forks}/{effect.branches}")


def quality_table(run: Run) -> Table:
    """Prefix fidelity at three levels and how forks were reached, infrastructure failures, what was left out."""
    fidelity = prefix_fidelity(run.rows)
    none = "no action was re-executed"
    facts: list[tuple[str, Cell]] = [
        ("instances with branches", count(instances(run.rows))),
        ("prefix exit codes equal", rate(*fidelity.exit_codes, 1, why=none)),
        ("prefix outputs equal, byte for byte", rate(*fidelity.outputs, 1, why=none)),
        ("prefix outputs equal, normalised", rate(*fidelity.normalised, 1, why=none)),
        ("prefix states equal", rate(*fidelity.states, 1, why="the sandbox gave no state digest")),
        ("branches with a clean prefix", rate(*fidelity.clean_branches, 1, why="no branches")),
        ("branches forked beside a live process", rate(*fidelity.live_branches, 1, why="no base says what lived")),
        ("first requests equal to the base's", rate(*fidelity.requests, 1, why="no request is known")),
        ("first prompts equal to the base's, by token ids", rate(*fidelity.prompts, 1, why="the server gave no ids")),
        ("replies with neither text nor a tool call", _unrecognised(run)),
        ("forks by snapshot", count(fidelity.by_snapshot)),
        ("snapshots that equal re-execution", rate(*fidelity.snapshots, 1, why="none was verified")),
        ("forks that fell back to re-execution", count(sum(fidelity.fell_back.values()))),
        ("failed attempts (infrastructure)", count(len(run.failures))),
        ("cells without a record after a failure", count(len(run.lost))),
        ("stale branches, left out of every table", count(len(run.stale))),
        ("sandbox", _sandboxes(run)),
    ]
    merged = sum("+" in rows[0].branch.fork.depth for rows in run.forks().values())
    facts.append(("forks at which two points of the rule coincide", count(merged)))
    notes = [f"left out, prefix is not the stored base's: {name}" for name in run.stale]
    notes += [f"fell back: {reason} ({number})" for reason, number in fidelity.fell_back.items()]
    notes += [f"degraded: {note}" for note in _degraded(run)]
    return Table(
        "quality",
        f"quality · {run.name} · what the numbers above rest on",
        (Column("fact", "fact", is_label=True), Column("value", "value")),
        tuple((label(name), cell) for name, cell in facts),
        tuple(notes),
    )


def _unrecognised(run: Run) -> Cell:
    taken = [base.steps for base in run.bases.values()] + [row.branch.steps for row in run.rows]
    replies = [step.reply for steps in taken for step in steps]
    return rate(sum(reply.is_unrecognised for reply in replies), len(replies), 1, why="no replies")


def _sandboxes(run: Run) -> Cell:
    names = sorted({row.branch.sandbox for row in run.rows} | {base.sandbox for base in run.bases.values()})
    return label(", ".join(names)) if names else absent("nothing was run")


def _degraded(run: Run) -> list[str]:
    notes = [note for session in run.manifest.get("sessions", []) for note in session.get("degraded", [])]
    return list(dict.fromkeys(notes))
