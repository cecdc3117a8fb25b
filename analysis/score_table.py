"""Teacher-forced scores of a run, by the model that acted. The unknown is counted by reason, never as a number."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.table import Cell, Column, Table, count, label, number
from harness.journal import RunFolder
from harness.record import Branch, Score, Step, Trajectory

Place = tuple[str, int]
"""Cell and step."""

_COLUMNS = (
    Column("agent", "acted", is_label=True),
    Column("steps", "steps"),
    Column("scored", "scored"),
    Column("ids", "by ids"),
    Column("text", "by text"),
    Column("unknown", "unknown"),
    Column("mean_logprob", "mean log-prob"),
    Column("mean_tokens", "mean tokens"),
)


def score_table(folder: Path, model: str) -> Table:
    """All scores that `model` (the study's name) has given so far, one row an acting model."""
    run = RunFolder(folder)
    scores = run.scores(model)
    first = [score for score in scores if score.take == 1]
    agents = dict.fromkeys(score.agent for score in first)
    rows = [_row(agent, [score for score in first if score.agent == agent]) for agent in agents]
    notes = (
        "mean log-prob: natural logarithm of an action's probability at temperature 1, mean over the steps scored",
        *_unknowns(first),
        *_against_log(first, model, _steps(run)),
        *_spread(scores),
    )
    return Table("scores", f"scores by {model} · {len(first)} steps", _COLUMNS, tuple(rows), notes)


def _row(agent: str, scores: Sequence[Score]) -> tuple[Cell, ...]:
    known = [score.logprob for score in scores if score.logprob is not None]
    tokens = [score.tokens for score in scores if score.tokens is not None]
    by = Counter(score.how for score in scores if score.logprob is not None)
    return (
        label(agent),
        count(len(scores)),
        count(len(known)),
        count(by["ids"]),
        count(by["text"]),
        count(len(scores) - len(known)),
        number(_mean(known), why="no step of it was scored"),
        number(_mean(tokens), 1, why="no step of it was scored"),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _unknowns(scores: Sequence[Score]) -> Iterator[str]:
    reasons = Counter(score.why for score in scores if score.logprob is None)
    for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        yield f"unknown, {times}: {reason}"


def _steps(run: RunFolder) -> Mapping[Place, Step]:
    records = run.records()
    finished: list[Trajectory | Branch] = [*records.bases.values(), *records.branches.values()]
    return {(record.id, step.index): step for record in finished for step in record.steps}


def _against_log(scores: Sequence[Score], model: str, steps: Mapping[Place, Step]) -> Iterator[str]:
    """A model's score of its own action should be what its server logged when it acted."""
    apart = []
    for score in scores:
        logged = steps[score.cell, score.step].reply.logprob
        if score.agent == model and score.logprob is not None and logged is not None:
            apart.append(abs(score.logprob - logged))
    if apart:
        yield f"own actions against the log: {len(apart)} compared, largest difference {max(apart):.2g}"


def _spread(scores: Sequence[Score]) -> Iterator[str]:
    """How far the same question, asked again in another order, was answered otherwise."""
    first = {(score.cell, score.step): score.logprob for score in scores if score.take == 1}
    again = [score for score in scores if score.take == 2]
    pairs = [(first[score.cell, score.step], score.logprob) for score in again]
    apart = [abs(one - other) for one, other in pairs if one is not None and other is not None]
    if again:
        lost = len(again) - len(apart)
        shown = f"largest difference {max(apart):.2g}" if apart else "no pair"
        yield f"asked twice in another order: {len(apart)} compared, {shown}; {lost} were unknown the second time"
