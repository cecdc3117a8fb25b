"""A run as text for a person: how far it is, its bases with their branches as trees, and single steps.

What came from a model or a tool is data: control characters in it never reach the terminal.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.config import Study
from harness.errors import UsageError
from harness.journal import Records, RunFolder
from harness.record import Branch, Ending, Exit, Observation, PrefixCheck, Step, Trajectory

_COMMAND_WIDTH = 76


def printable(text: str) -> str:
    """`text` with control characters (newline and tab apart) as escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _one_line(text: str, width: int = _COMMAND_WIDTH) -> str:
    line = printable(text).replace("\n", "\\n").replace("\t", " ")
    return line if len(line) <= width else line[: width - 3] + "..."


def status_lines(folder: RunFolder, records: Records, owed: Sequence[str], unplanned: Sequence[str]) -> list[str]:
    """How far the run is, what failed and why, what is under way."""
    bases, branches = records.bases.values(), records.branches.values()
    lines = [f"{folder.path}: {len(bases)} bases and {len(branches)} branches done, {len(owed)} cells owed"]
    for title, finished in (("bases", bases), ("branches", branches)):
        endings = [record.ending for record in finished]
        stops = Counter(ending.stop.value for ending in endings)
        outcomes = Counter(_outcome(ending) for ending in endings)
        if finished:
            lines.append(f"  {title}: {_counts(stops)}; {_counts(outcomes)}")
    lines += _failure_lines(records, owed)
    for cell_id, steps in folder.rollouts_under_way().items():
        lines.append(f"  under way or left by a kill: {cell_id}, {len(steps)} steps")
    lines += [f"  torn last line, run again on resume: records/{name}" for name in records.torn]
    lines += [f"  recorded but not in the plan: {cell_id}" for cell_id in unplanned]
    return lines


def _outcome(ending: Ending) -> str:
    """Unresolved in each of its ways; else the status."""
    status, reason = ending.outcome.status, ending.outcome.reason
    return f"{status} ({reason.value})" if status == "unresolved" and reason is not None else status


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


def _failure_lines(records: Records, owed: Sequence[str]) -> Iterator[str]:
    if not records.failures:
        yield "  failed attempts: 0"
        return
    sides = Counter(failure.side for failure in records.failures)
    lost = {failure.id for failure in records.failures} - records.finished() - set(records.regrades)
    yield f"  failed attempts: {len(records.failures)} ({_counts(sides)}); cells still without a record: {len(lost)}"
    last = {failure.id: failure for failure in records.failures}
    for cell_id in sorted(lost):
        yield f"    {cell_id}: {last[cell_id].side}: {_one_line(last[cell_id].message, 100)}"


def overview_lines(study: Study, records: Records) -> list[str]:
    """Every base on one line with the number of its branches."""
    children = Counter(branch.fork.base_id for branch in records.branches.values())
    lines = [f"{study.name}: {len(records.bases)} bases; `forkroll show RUN ID` opens one"]
    for base in sorted(records.bases.values(), key=lambda base: base.id):
        lines.append(f"  {base.id}  {_summary(base)}  {children[base.id]} branches")
    return lines


def _summary(record: Trajectory | Branch) -> str:
    ending = record.ending
    steps = f"{len(record.steps)} step{'' if len(record.steps) == 1 else 's'}"
    detail = f" ({ending.outcome.detail})" if ending.outcome.detail else ""
    return f"{steps}, {ending.stop.value}, {ending.outcome.status}{printable(detail)}"


def record_lines(cell_id: str, records: Records) -> list[str]:
    """A base as a tree with its branches at their forks, or a branch with its steps."""
    if cell_id in records.bases:
        return _base_lines(records.bases[cell_id], records)
    if cell_id in records.branches:
        return _branch_lines(records.branches[cell_id])
    near = [known for known in (*records.bases, *records.branches) if cell_id in known]
    hint = f"; did you mean {near[0]}?" if near else "; `forkroll show RUN` lists them"
    raise UsageError(f"no record {cell_id!r} in this run{hint}")


def _base_lines(base: Trajectory, records: Records) -> list[str]:
    at: dict[int, list[Branch]] = {}
    for branch in records.branches.values():
        if branch.fork.base_id == base.id:
            at.setdefault(branch.fork.step, []).append(branch)
    lines = [f"{base.id}  base by {base.agent}: {_summary(base)}"]
    for step in base.steps:
        lines += [f"|  {line}" for line in _fork_lines(at.get(step.index, []))]
        lines.append(f"o {step_line(step)}")
    return lines


def _fork_lines(branches: Sequence[Branch]) -> Iterator[str]:
    for branch in sorted(branches, key=lambda branch: branch.id):
        clean = "" if branch.prefix.first_mismatch is None else f", prefix differs at {branch.prefix.first_mismatch}"
        yield f"\\-- {branch.fork.depth} {branch.id}  by {branch.arm.agent}: {_summary(branch)}{clean}"


def _branch_lines(branch: Branch) -> list[str]:
    check = branch.prefix
    fork = f"forked from {branch.fork.base_id} at step {branch.fork.step} ({branch.fork.rule} {branch.fork.depth})"
    head = [f"{branch.id}  {branch.arm.name} by {branch.arm.agent}: {_summary(branch)}", fork, fidelity(check)]
    return head + [f"o {step_line(step)}" for step in branch.steps]


def fidelity(check: PrefixCheck) -> str:
    """What re-executing the prefix showed, in a line; what the base does not say is in no denominator."""
    exits, outputs = check.actions - check.exit_codes_unknown, check.actions - check.outputs_unknown
    return (
        f"prefix: {check.exit_codes_equal}/{exits} exit codes, {check.outputs_equal}/{outputs} outputs, "
        f"{check.states_equal}/{check.states} states equal"
    )


def step_line(step: Step) -> str:
    """One step on one line."""
    if step.reply.format_error is not None:
        return f"{step.index:>3} format error: {_one_line(step.reply.text)}"
    parts = [
        f"{_one_line(action.command)}  [{ending(observation)}]"
        for action, observation in zip(step.reply.actions, step.observations, strict=False)
    ]
    return f"{step.index:>3} " + " ; ".join(parts)


def ending(observation: Observation) -> str:
    """How an action ended, in a word or two."""
    if observation.ended is Exit.EXITED:
        return f"exit {observation.exit_code}"
    if observation.ended is Exit.SIGNAL:
        return f"signal {observation.signal}"
    return observation.ended.value.replace("_", " ")


def step_lines(record: Trajectory | Branch, number: int) -> list[str]:
    """One step in full: what was said, each action with its output and exit code, state and tokens."""
    step = next((step for step in record.steps if step.index == number), None)
    if step is None:
        first, last = record.steps[0].index, record.steps[-1].index
        raise UsageError(f"{record.id} has steps {first} to {last}, not {number}")
    reply = step.reply
    lines = [f"{record.id} step {step.index} by {step.agent} ({reply.model}), finish: {reply.finish_reason}"]
    lines += [f"  {line}" for line in printable(reply.text).splitlines()]
    if reply.format_error is not None:
        lines.append(f"format error: {printable(reply.format_error)}")
    for action, observation in zip(reply.actions, step.observations, strict=False):
        lines += [f"$ {line}" for line in printable(action.command).splitlines()]
        lines += [f"  {line}" for line in printable(observation.output.decode("utf-8", "replace")).splitlines()]
        lines.append(f"[{ending(observation)}, {observation.size} bytes]")
    lines.append(f"state {step.state_digest or 'not taken'} · logprob {_number(reply.logprob)} · seed {step.seed}")
    return lines


def _number(value: float | None) -> str:
    return "not given" if value is None else f"{value:.4f}"
