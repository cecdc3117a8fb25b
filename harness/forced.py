"""What a model of a study gives the actions that a run took, whoever took them: teacher forcing of the whole run.

Scores stand beside the records, one line a step; what is there is not asked again. A step whose server could not be
asked has no line and stays owed; one whose action has no knowable log-probability has a line that says why.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.assemble import open_scaffold, open_tasks, sampling_of, scaffold_of, select_tasks
from harness.clients import OpenModels, open_models
from harness.config import OpenAIModel, Study
from harness.errors import ConfigError, ModelError
from harness.journal import Records, RunFolder, ScoreLog
from harness.model.protocol import Message, ModelClient, Scored
from harness.model.said import Unclear, said_of
from harness.preflight import check_models
from harness.progress import Progress
from harness.prompting import Conversation
from harness.record import Score, Step, Task, Trajectory, prefix_digest, seed_for
from harness.run import INCOMPLETE, INTERRUPTED, OpenRun, open_run
from harness.scaffold.protocol import Scaffold
from harness.session import Say
from harness.sweep import FAILURES_IN_A_ROW, Tally

Of = Literal["base", "branches", "all"]
_FIRST_WAIT_SECONDS = 0.5
_CONFINING = frozenset(
    {"structured_outputs", "response_format", "logit_bias", "allowed_token_ids", "bad_words"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
"""Fields of a request that leave a model less than all of its tokens."""


@dataclass(frozen=True)
class Question:
    """One step to be scored."""

    cell: str
    step: Step
    messages: Sequence[Message]
    """What stood before it."""
    unfit: str | None
    """Why those are not the messages that were answered; None when nothing speaks against it."""
    scaffold: Scaffold
    """How the model was spoken to."""


@dataclass(frozen=True)
class Forced:
    """What a session of scoring came to."""

    folder: RunFolder
    model: str
    known: int
    """Log-probabilities that are known by now."""
    owed: int
    """Steps without a score."""
    stopped: str | None
    """Why it ended early; None when it did not."""

    @property
    def exit_code(self) -> int:
        """0 when nothing is owed, 130 when interrupted, 4 when incomplete or when nothing could be measured."""
        if not self.owed:
            return 0 if self.known else INCOMPLETE
        return INTERRUPTED if self.stopped == "interrupted" else INCOMPLETE

    def closing_line(self) -> str:
        """Where the scores are, or what is missing."""
        if not self.owed:
            return f"scores: {self.folder.scores_file(self.model)} (remove the file to score anew)"
        why = self.stopped or "the server could not be asked"
        return f"stopped: {why}. {self.owed} scores are owed; what is there is kept. The same command goes on"


def score_run(path: Path, model: str, *, of: Of, twice: bool, say: Say) -> Forced:
    """Score what the run at `path` has and `model`'s file of scores lacks. `twice`: ask again in another order."""
    opened = open_run(path)
    if model not in opened.study.models:
        raise ConfigError(f"{path}: no model {model!r}; its study has {', '.join(opened.study.models)}")
    questions, folder, stopped = list(_questions(opened, of)), opened.folder, None
    if twice or _owed(questions, folder, model, take=1):
        with _open_client(opened.study, model, say) as client, ScoreLog(folder, model) as log:
            session = _Session(opened.study, model, client, log, say)
            stopped = session.work_off("scores", _owed(questions, folder, model, take=1), take=1)
            if twice and stopped is None:
                stopped = session.work_off("again", _again(questions, opened, model), take=2)
    owed = len(_owed(questions, folder, model, take=1)) + (len(_again(questions, opened, model)) if twice else 0)
    known = sum(score.logprob is not None for score in folder.scores(model))
    return Forced(folder, model, known, owed, stopped)


@contextmanager
def _open_client(study: Study, model: str, say: Say) -> Iterator[ModelClient]:
    """That model alone, known to answer. ConfigError where it does not."""
    only = study.model_copy(update={"models": {model: study.models[model]}})
    one_token = only.model_copy(update={"sampling": study.sampling.model_copy(update={"max_tokens": 1})})
    with open_models(only) as models:
        check_models(one_token, (), open_scaffold(study), models.spoken)  # room for openings is no matter here
        for note in (*models.notes(), *_confined(model, models)):
            say(f"note: {note}")
        yield models.clients[model]


def _confined(model: str, models: OpenModels) -> Iterator[str]:
    """Where a model was not free when it acted, its log is of other probabilities than its scores."""
    spoken = models.spoken.get(model)
    for name in sorted(_CONFINING & spoken.address.extra_body.keys()) if spoken is not None else ():
        yield (
            f"model {model!r} acts under `extra_body.{name}`: the log has log-probabilities among what that leaves "
            "possible, scores are of free replies; its own actions do not compare"
        )


def _owed(questions: Sequence[Question], folder: RunFolder, model: str, take: int) -> list[Question]:
    done = {(score.cell, score.step) for score in folder.scores(model) if score.take == take}
    return [each for each in questions if (each.cell, each.step.index) not in done]


def _again(questions: Sequence[Question], opened: OpenRun, model: str) -> list[Question]:
    """What has a log-probability and was not asked twice, in an order that has nothing to do with the first."""
    known = {(score.cell, score.step) for score in opened.folder.scores(model) if score.logprob is not None}
    wanted = [question for question in questions if (question.cell, question.step.index) in known]
    random.Random(seed_for(opened.study.seed, "scores", model)).shuffle(wanted)
    return _owed(wanted, opened.folder, model, take=2)


def _questions(opened: OpenRun, of: Of) -> Iterator[Question]:
    """Every step of the bases, the branches or both, in order of id."""
    tasks = {task.instance_id: task for task in select_tasks(opened.study, open_tasks(opened.study))}
    for path in _paths(opened.records, of):
        yield from _of_path(path, opened.study, tasks[path.base.task_id])


@dataclass(frozen=True)
class _Path:
    """A rollout's steps behind those of the prefix that it started from."""

    cell: str
    base: Trajectory
    prefix: tuple[Step, ...]
    own: tuple[Step, ...]
    stale: bool
    """The prefix is not the one that the branch was bound to."""


def _paths(records: Records, of: Of) -> Iterator[_Path]:
    if of != "branches":
        for cell in sorted(records.bases):
            yield _Path(cell, records.bases[cell], (), records.bases[cell].steps, stale=False)
    if of != "base":
        for cell in sorted(records.branches):
            branch = records.branches[cell]
            base, step = records.bases[branch.fork.base_id], branch.fork.step
            stale = prefix_digest(base, step) != branch.fork.prefix_digest
            yield _Path(cell, base, base.steps[: step - 1], branch.steps, stale)


def _of_path(path: _Path, study: Study, task: Task) -> Iterator[Question]:
    scaffold, sampling = scaffold_of(study, path.base), sampling_of(study)
    conversation = Conversation(task, scaffold, path.base.opening)
    history = list(path.prefix)
    for step in path.own:
        messages = list(conversation.follow(task, history))
        digest = conversation.request_digest(scaffold.tools(), sampling)
        unfit = None
        if path.stale:
            unfit = "the base was changed since the branch was made"
        elif step.request_digest not in (None, digest):
            unfit = "the request as it is made now is not the one that was answered"
        yield Question(path.cell, step, messages, unfit, scaffold)
        history.append(step)


class _Session:
    """Asks on threads and writes in order, so that two runs of it write the same file."""

    def __init__(self, study: Study, model: str, client: ModelClient, log: ScoreLog, say: Say) -> None:
        self._study, self._model, self._client, self._log, self._say = study, model, client, log, say
        self._ended = threading.Event()

    def work_off(self, phase: str, questions: Sequence[Question], take: int) -> str | None:
        """Score them all; why not all, or None. A step that could not be asked is said, and left out."""
        tally, failures = Tally(phase, len(questions)), 0
        pool = ThreadPoolExecutor(_at_once(self._study, self._model))
        try:
            with Progress() as progress:
                progress.watch(tally)
                for question, got in zip(questions, pool.map(self._patiently, questions), strict=True):
                    failures = 0 if self._keep(question, got, take, tally) else failures + 1
                    if failures >= FAILURES_IN_A_ROW:
                        return f"{failures} steps in a row could not be asked"
        except KeyboardInterrupt:
            self._say("stopping: what is there is kept; requests under way are waited for")
            return "interrupted"
        finally:
            self._ended.set()
            pool.shutdown(cancel_futures=True)
            self._ended.clear()
        return None

    def _keep(self, question: Question, got: Scored | ModelError, take: int, tally: Tally) -> bool:
        """Write it, or say what failed; whether there was something to write."""
        if isinstance(got, ModelError):
            self._say(f"note: {question.cell} step {question.step.index} could not be scored: {got}")
            tally.failures[got.side] += 1
            tally.lost += 1
            return False
        self._log.append(_score(question, got, self._model, take))
        tally.done += 1
        tally.calls += 1
        return True

    def _patiently(self, question: Question) -> Scored | ModelError:
        """As often as the study has a cell tried."""
        for attempt in range(self._study.retries + 1):
            try:
                return self._ask(question)
            except ModelError as error:
                failed = error
            if attempt < self._study.retries and self._ended.wait(_FIRST_WAIT_SECONDS * 2**attempt):
                break
        return failed

    def _ask(self, question: Question) -> Scored:
        if question.unfit is not None:
            return Scored(None, None, None, question.unfit)
        scaffold = question.scaffold
        try:
            said = said_of(question.step.reply, scaffold.action_marker, as_text=scaffold.dialect == "text")
        except Unclear as unclear:
            return Scored(None, None, None, str(unclear))
        return self._client.score(question.messages, said, tools=scaffold.tools())


def _at_once(study: Study, model: str) -> int:
    """Requests in flight: as many as there are workers, unless the model's server is to have fewer."""
    section = study.models[model]
    stated = section.concurrency if isinstance(section, OpenAIModel) else None
    return min(study.workers, stated or study.workers)


def _score(question: Question, scored: Scored, model: str, take: int) -> Score:
    step = question.step
    acted, now = step.circumstances.prompt_digest, scored.prompt_digest
    if step.agent == model and acted is not None and now is not None and acted != now:
        scored = Scored(None, None, scored.how, "the server's template made another prompt when the step was taken")
    return Score(
        cell=question.cell,
        step=step.index,
        agent=step.agent,
        model=model,
        take=take,
        logprob=scored.logprob,
        tokens=scored.tokens,
        how=scored.how,
        why=scored.why,
    )
