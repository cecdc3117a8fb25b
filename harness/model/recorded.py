"""A model that answers from the records of a run and asks nobody: a cassette.

A reply is found by model, request digest and seed. The seed is derived from study, fork, arm, replicate and step, so
the key carries arm and replicate; whatever of a request differs (a word of the history, a tool, the sampling), or asks
for more than was recorded, is a miss, and a miss is an error that names the request. What was refused because it no
longer fitted the context is refused again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import ConfigError, ContextOverflow, NotRecorded
from harness.journal import Records
from harness.model.digest import request_digest
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.record import Branch, Reply, Step, Stop, Trajectory, seed_for


@dataclass(frozen=True)
class Key:
    """Names one call."""

    model: str
    """The recorded study's name."""
    request: str
    seed: int


@dataclass(frozen=True)
class Answer:
    """What a record holds for one call."""

    where: str
    """For a person: cell and step."""
    step: Step | None
    """None: the conversation did not fit."""

    @property
    def reply(self) -> Reply | None:
        """None: the conversation did not fit."""
        return None if self.step is None else self.step.reply


@dataclass
class Cassette:
    """Every answer in a run's records."""

    source: str
    """The run, for messages."""
    answers: dict[Key, Answer] = field(default_factory=dict)
    contradictions: dict[Key, tuple[Answer, Answer]] = field(default_factory=dict)
    """Failed attempts at one cell that were answered differently: neither is the record of it."""
    told: dict[tuple[str, int], str] = field(default_factory=dict)
    """(model, seed) -> what is recorded of that call, for the message of a miss."""

    def models(self) -> list[str]:
        """Names that have answers."""
        return list(dict.fromkeys(key.model for key in self.answers))


def cassette_of(records: Records, source: str) -> Cassette:
    """All steps of bases and branches, and those of failed attempts at cells that have no record.

    Two finished records that answer one call differently cannot both be true: a ConfigError names them. A failed
    attempt that a later one made good is not needed, and its server may well have answered otherwise.
    """
    cassette, done = Cassette(source), records.finished()
    finished: list[Trajectory | Branch] = [*records.bases.values(), *records.branches.values()]
    for record in finished:
        _add_steps(cassette, record.id, record.steps)
        _add_end(cassette, record)
    if cassette.contradictions:
        one, other = next(iter(cassette.contradictions.values()))
        raise ConfigError(f"{source}: {one.where} and {other.where} answer one request differently; remove one")
    for failure in records.failures:
        if failure.id not in done:
            _add_steps(cassette, f"{failure.id}, failed attempt {failure.provenance.attempt},", failure.steps)
    return cassette


def _add_steps(cassette: Cassette, where: str, steps: Sequence[Step]) -> None:
    for step in steps:
        if step.request_digest is not None and step.seed is not None:  # an imported step has neither
            key = Key(step.agent, step.request_digest, step.seed)
            _add(cassette, key, Answer(f"{where} step {step.index}", step))


def _add_end(cassette: Cassette, record: Trajectory | Branch) -> None:
    """What the call after the last step came to, where there was one. An imported rollout names no seeds."""
    if record.seed is None:
        return
    agent, last = record.agent if isinstance(record, Trajectory) else record.arm.agent, len(record.steps)
    if isinstance(record, Branch):
        last += record.fork.step - 1
    seed, stop, refused = seed_for(record.seed, last + 1), record.ending.stop, record.ending.refused_request
    if stop is Stop.CONTEXT_FULL and refused is not None:
        _add(cassette, Key(agent, refused, seed), Answer(f"{record.id} step {last + 1}", None))
    else:
        cassette.told.setdefault((agent, seed), f"{record.id} ended after step {last} by {stop.value}")


def _add(cassette: Cassette, key: Key, answer: Answer) -> None:
    known = cassette.answers.setdefault(key, answer)
    if known.reply != answer.reply:
        cassette.contradictions.setdefault(key, (known, answer))
    cassette.told.setdefault(
        (key.model, key.seed), f"{answer.where} was recorded with another request ({key.request[:12]})"
    )


class RecordedClient:
    """A ModelClient over one model's answers. Stateless, so threads may share it."""

    def __init__(self, cassette: Cassette, model: str) -> None:
        self._cassette, self._model = cassette, model

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        """The recorded answer. Raises NotRecorded, or ContextOverflow where that is what is recorded."""
        key = Key(self._model, request_digest(messages, tools, sampling), seed)
        answer = self._cassette.answers.get(key)
        if answer is None or key in self._cassette.contradictions:
            raise NotRecorded(self._why_not(key, messages))
        if answer.step is None:
            raise ContextOverflow(f"recorded: the conversation did not fit at {answer.where}")
        return _completion(answer.step)

    def _why_not(self, key: Key, messages: Sequence[Message]) -> str:
        step = 1 + len([message for message in messages if message["role"] == "assistant"])
        asked = f"request {key.request[:12]} of model {key.model!r} (step {step}, by the replies before it)"
        if key in self._cassette.contradictions:
            one, other = self._cassette.contradictions[key]
            return f"{self._cassette.source} answers {asked}, in two ways: {one.where} and {other.where}"
        told = self._cassette.told.get((key.model, key.seed), "nothing with its seed is recorded")
        return f"not recorded in {self._cassette.source}: {asked}; {told}"

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """Unknown."""
        return Scored(None, None, None, "records hold no probability of what was not said")


def _completion(step: Step) -> Completion:
    """What leads to the step's reply again. Of its circumstances only what belongs to the request: no server is up."""
    reply = step.reply
    return Completion(
        text=reply.text,
        tool_calls=reply.tool_calls,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        model=reply.model,
        reasoning=reply.reasoning,
        tokens=reply.tokens,
        prompt_digest=step.circumstances.prompt_digest,
        propensity=reply.propensity,
    )
