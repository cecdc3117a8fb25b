"""Every type that is written down.

A record is frozen and refuses unknown fields. Whatever depends on the clock, the host, the order of work or
the attempt sits in `Circumstances`, `Provenance` or `PrefixCheck`, so that one exclusion (`canonical`) yields the
export in which two runs with one seed agree to the byte.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter

SCHEMA_VERSION = 3

_BASE64 = "base64:"
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD: the one rule, applied where text enters."""
    return _SURROGATES.sub("\ufffd", text)


def _bytes_to_json(value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(value).decode("ascii")
    return _BASE64 + base64.b64encode(value).decode("ascii") if text.startswith(_BASE64) else text


def _bytes_from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith(_BASE64):
        return base64.b64decode(value[len(_BASE64) :], validate=True)
    return value.encode("utf-8")


Raw = Annotated[
    bytes, BeforeValidator(_bytes_from_json), PlainSerializer(_bytes_to_json, return_type=str, when_used="json")
]
"""Bytes, kept losslessly: in JSON as text where they are UTF-8, else as "base64:..."."""


class Record(BaseModel):
    """Frozen; unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Task(Record):
    """One problem instance. Field names are SWE-bench's, so that its files load as they are."""

    instance_id: str
    repo: str
    base_commit: str
    """Commit of the start tree; diffs are taken against it."""
    problem_statement: str
    version: str = ""
    difficulty: str | None = None
    """The data set's own label; None where it has none."""
    patch: str = ""
    """Reference patch as a unified diff."""
    test_patch: str = ""
    """Hidden tests as a unified diff, where the data set gives them so."""
    FAIL_TO_PASS: tuple[str, ...] = ()
    PASS_TO_PASS: tuple[str, ...] = ()
    image: str | None = None
    """Docker image that holds the start tree; None: the task set knows."""
    eval_script: str | None = None
    """What runs the hidden tests, where the data set says (swebench 5); None: the grader knows."""
    log_parser: str | None = None
    """Name of the parser of that script's output (swebench 5)."""
    eval_type: str | None = None
    """pass_and_fail or fail_only (swebench 5)."""


class ToolCall(Record):
    """A tool call as the server sent it; `arguments` is the raw string, valid JSON or not."""

    id: str
    name: str
    arguments: str


class Action(Record):
    """What the model decided to run."""

    command: str
    tool: str = "bash"
    call_id: str | None = None
    """Id of the tool call that carried it; None in the text dialect."""


class Exit(StrEnum):
    """How an action ended."""

    EXITED = "exited"
    SIGNAL = "signal"
    TIME_LIMIT = "time_limit"
    DISK_LIMIT = "disk_limit"
    NOT_RUN = "not_run"
    UNKNOWN = "unknown"
    """An imported log does not say."""


class Observation(Record):
    """What came back from one action."""

    output: Raw
    """stdout and stderr merged in order. Where the stream was longer than the cap: its head and its tail."""
    exit_code: int | None
    """None when there is none; `ended` says why."""
    ended: Exit = Exit.EXITED
    signal: int | None = None
    """Number of the signal that ended the action's shell; None unless `ended` is `signal`."""
    size: int
    """Bytes of the whole stream."""
    sha256: str
    """Digest of the whole stream."""
    cut_at: int | None = None
    """Bytes of `output` that are head; the tail follows. None when nothing was cut."""
    characters: int | None = None
    """Of the whole stream as text: U+FFFD for what is not UTF-8, any line end one character. None: not counted, since
    nothing was cut."""
    kept: Literal["bytes", "text", "ends", "shown", "nothing"] = "bytes"
    """What of the stream is known. bytes: all of the above is about the stream itself. The others are imported logs'.
    text: decoded text (U+FFFD for what was not UTF-8, line ends made newlines); `output`, `size` and `sha256` are of
    its UTF-8.
    ends: that text's head and tail; `size` counts a character between them as one byte, `sha256` is of the ends.
    shown: only what the model read, however it was rendered. nothing: neither output nor exit code."""
    shown: str | None = None
    """What the model read, where it is not simply `output` as text (U+FFFD for bytes that are not UTF-8)."""


class Usage(Record):
    """Tokens of one call, as the server counted them. None: the server did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None


class Tokens(Record):
    """The generated tokens, in order."""

    ids: tuple[int, ...] | None
    """None where the server gives no ids."""
    logprobs: tuple[float | None, ...]
    """Natural logarithms at temperature 1; None where the server gave a sentinel instead of a number."""
    pieces: tuple[Raw, ...] | None = None
    """The bytes of each token: joined, they are the completion before any parsing. None where the server does not give
    them for every token, or where they do not hold the text that came beside them."""
    without_bytes: tuple[int, ...] = ()
    """Places, from 0, of the tokens whose bytes the server does not give, or gives as a U+FFFD that the text lacks."""


class Reply(Record):
    """One completion, parsed."""

    text: str
    actions: tuple[Action, ...]
    format_error: str | None = None
    """What is wrong with the reply, in words for the model; None when it parsed."""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str
    """As the server said it; empty: an imported log does not say."""
    usage: Usage
    tokens: Tokens | None = None
    """None when log-probabilities were not asked for or not given."""
    logprob: float | None = None
    """Sum over the action's span at temperature 1; None when it cannot be known exactly. Where a request confines what
    may be written (structured outputs), among what that leaves possible: vLLM logs it so."""
    propensity: float | None = None
    """Probability of this action under the sampling in force; None unless the server states it."""
    model: str
    """The name that the server answered with; empty: an imported log does not say."""

    @property
    def is_unrecognised(self) -> bool:
        """Neither text nor a tool call could be recognised in it (parity-replay P23); reasoning may be there."""
        return not self.text.strip() and not self.tool_calls


class Circumstances(Record):
    """What may differ between two runs of one step without the step differing. Never in a digest."""

    started_at: str
    """UTC, ISO 8601 with zone; empty: an imported log does not say."""
    naive_clock: bool = False
    """True: the time that an imported log gave had no zone and was taken as UTC."""
    model_seconds: float | None
    """From sending the request that was answered to the last byte of its answer: waiting is not in it. None: an
    imported log does not say."""
    waited_seconds: float = 0.0
    """What the call took beyond that: waiting for a place or for the server, and attempts that came to nothing."""
    action_seconds: tuple[float, ...] = ()
    cached_prompt_tokens: int | None = None
    """None: the server does not say."""
    in_flight: int | None = None
    """Requests of this run to the model's family (to its server, where the study names no family) that were in flight
    when this one was sent, itself included."""
    server_epoch: str | None = None
    """Names one start of the server; None: it does not say."""
    prompt_digest: str | None = None
    """Of the prompt's token ids, as the server's chat template made them; None where the server does not give them."""
    transport_retries: int = 0
    snapshot: str | None = None
    """Content address of the snapshot taken after the step; None when none was taken. See `snapshots`."""


class Step(Record):
    """One model call, format errors included, with the observations of its actions."""

    index: int
    """1-based, counted from the start of the base."""
    agent: str
    """The study's name of the model that decided."""
    probability: float
    """Probability with which the routing policy chose this agent."""
    seed: int | None
    """None: an imported log does not say."""
    reply: Reply
    observations: tuple[Observation, ...]
    """One an action, in order; fewer when a submission ended the turn."""
    request_digest: str | None = None
    """Of the messages, tools and sampling that were sent; None for an imported step, whose request is not known."""
    messages: tuple[dict[str, Any], ...] | None = None
    """What an imported step added to the conversation, verbatim; None: the scaffold renders it. Nothing else says
    what the model read at an imported step: its observations have no `shown`."""
    state_digest: str | None
    """Of the working tree after the step; None when the sandbox cannot say."""
    processes: tuple[str, ...] | None = None
    """Names of the processes that the step left alive, sorted; None when the sandbox cannot say."""
    circumstances: Circumstances


class Spent(Record):
    """What a rollout has used, the prefix included under `budget: carry`."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    format_errors_in_a_row: int = 0


class Stop(StrEnum):
    """Why a rollout ended. Infrastructure failures are no stop reason: they are Failure rows."""

    SUBMITTED = "submitted"
    CALL_LIMIT = "call_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_FULL = "context_full"
    FORMAT_ERRORS = "format_errors"
    COST_LIMIT = "cost_limit"
    """Of an imported rollout: money."""
    BROKEN_OFF = "broken_off"
    """An error of the server, of the sandbox or of its harness ended an imported rollout."""

    @property
    def is_budget(self) -> bool:
        """Not the agent ended it: divergence after this point is censored, not observed."""
        return self not in (Stop.SUBMITTED, Stop.FORMAT_ERRORS)


class Reason(StrEnum):
    """Why an outcome is what it is. That grading could not be carried out is none: it is a Failure row."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    TESTS_TIMED_OUT = "tests_timed_out"
    NO_TEST_REPORT = "no_test_report"
    """The tests were run and their output cannot be read as results: the patch broke the test run itself."""
    EMPTY_PATCH = "empty_patch"
    NO_SUBMISSION = "no_submission"
    PATCH_DOES_NOT_APPLY = "patch_does_not_apply"

    @property
    def tested(self) -> bool:
        """Hidden tests were run: grading again may give another outcome."""
        return self not in (Reason.EMPTY_PATCH, Reason.NO_SUBMISSION, Reason.PATCH_DOES_NOT_APPLY)


class Outcome(Record):
    """What grading the final state gave."""

    status: Literal["resolved", "unresolved", "unscored"]
    reason: Reason | None = None
    """None where nothing was graded, or where it was graded elsewhere and not told."""
    detail: str = ""
    fail_to_pass: tuple[int, int] | None = None
    """(passed, total); None when not measured."""
    pass_to_pass: tuple[int, int] | None = None


class Provenance(Record):
    """Where and when a record was made. Never in a digest, never in the canonical export."""

    attempt: int = 1
    host: str = ""
    started_at: str = ""
    seconds: float = 0.0
    scoring_seconds: float = 0.0
    sandbox_start_seconds: float = 0.0
    """Until the first call could be made: for a branch, with all that brought it to its fork."""
    digest_method: str = ""
    """How state digests were taken: overlay, scan or inside; all give the same. Empty: not said."""


class Ending(Record):
    """How a rollout ended and what it left behind."""

    spent: Spent
    stop: Stop
    refused_request: str | None = None
    """Digest of the request that no longer fitted the context, as `Step.request_digest`; None unless one was sent."""
    submission: str | None = None
    """What the submitting command printed after the submit word; None when it never submitted."""
    patch: Raw
    """Working-tree diff against the start commit at exit, whatever the stop reason; of an imported rollout, whose tree
    is not known, what was submitted."""
    graded: Literal["submission", "working_tree"] = "working_tree"
    """Whether `outcome` is that of `submission` or of `patch`."""
    outcome: Outcome


class Source(Record):
    """Where an imported rollout came from, and what of it the record has no place for."""

    format: str
    """As the log names it, such as mini-swe-agent-1.1."""
    name: str
    """File name of the log, with the line where a file holds several."""
    run: str = ""
    """The log's own name of the run it belongs to; empty: it has none."""
    sha256: str
    """Of the log as JSON with indent 2, as mini-swe-agent writes it."""
    exit_status: str
    """The log's own word for how the rollout ended; empty: it never ended."""
    config: str = "null"
    """The log's own settings (prompt templates, limits), as JSON text: the scaffold that a branch goes on in."""
    rest: str
    """What the exporter cannot rebuild from the record, as JSON text (see `difference`): with it nothing is lost."""


class Trajectory(Record):
    """One base rollout."""

    kind: Literal["base"] = "base"
    id: str
    task_id: str
    agent: str
    """The study's name of the model that acted."""
    seed: int | None
    """None: an imported log does not say."""
    sandbox: str
    """Name of the provider; `imported` where the rollout was not ours."""
    start_digest: str | None
    """Of the working tree before step 1."""
    opening: tuple[dict[str, Any], ...] | None = None
    """The first messages of an imported rollout, verbatim; None: the scaffold's own."""
    source: Source | None = None
    """Of an imported rollout."""
    steps: tuple[Step, ...]
    ending: Ending
    provenance: Provenance


class ForkPoint(Record):
    """Where a base is forked: step `step` is the first that a branch decides again (1-indexed)."""

    base_id: str
    step: int
    rule: str
    depth: str
    """The rule's name of this point, such as "30%"; points that coincide are joined by "+"."""
    anticipating: bool
    """True when choosing this step needed knowledge of the base at or after it (estimands M1)."""
    prefix_digest: str
    calls_left: int | None = None
    """Calls that remain at the fork after what the prefix spent; None without a call limit."""


class PrefixCheck(Record):
    """How the sandbox was brought to the fork, and what was seen on the way.

    Evidence about a run, not a part of what was run: never in the canonical export.
    """

    how: Literal["reexecute", "snapshot", "verify"]
    """verify: both; the branch went on in the re-executed sandbox."""
    actions: int
    """Actions that were re-executed: none where a snapshot was restored."""
    exit_codes_unknown: int = 0
    """Of these, those whose exit code the base does not say; they are not compared."""
    outputs_unknown: int = 0
    """Of these, those whose output the base does not say, or not enough of it; they are not compared."""
    exit_codes_equal: int
    outputs_equal: int
    """Byte for byte, over the whole stream."""
    normalised_equal: int
    """Equal after `normalise`, those that are equal byte for byte included."""
    states: int
    """Points at which a state digest could be compared: the start, and every step that ran something."""
    states_equal: int
    first_mismatch: int | None = None
    """First step whose exit code, normalised output or state differs (0: the start state); None when all agree."""
    snapshot_equal: bool | None = None
    """verify: the restored state has the digest of the re-executed one; None when the two were not compared."""
    live_processes: tuple[str, ...] | None = ()
    """Alive at the fork in the base: with any, the prefix is not safely re-executable, and a snapshot lacks them.
    None: the base does not say."""
    fell_back: str | None = None
    """Why the prefix was re-executed, or why nothing was verified, though the study asks for a snapshot."""


class Arm(Record):
    """A treatment at a fork."""

    name: Literal["control", "swap"]
    agent: str
    """The study's name of the model that acts from the fork on."""


class Branch(Record):
    """One live continuation. The whole list of steps is `base.steps[:fork.step - 1] + steps`."""

    kind: Literal["branch"] = "branch"
    id: str
    task_id: str
    direction: str
    fork: ForkPoint
    arm: Arm
    replicate: int
    seed: int
    sandbox: str
    prefix: PrefixCheck
    steps: tuple[Step, ...]
    ending: Ending
    provenance: Provenance


class Failure(Record):
    """One attempt at a cell that infrastructure ended. Never an outcome."""

    kind: Literal["failure"] = "failure"
    id: str
    """Of the cell."""
    side: str
    """model, sandbox, scoring or harness."""
    message: str
    traceback: str = ""
    steps: tuple[Step, ...] = ()
    """What had been done before it failed."""
    provenance: Provenance


How = Literal["ids", "text"]
"""How the tokens of an action were known that was scored. ids: those that were generated, as logged; the sum is that of
the same tokens. text: what was generated as the scoring model's own tokenizer cuts it, without an end-of-turn token."""


class Score(Record):
    """Log-probability of one step's action under a model that may not have acted: teacher forcing."""

    kind: Literal["score"] = "score"
    cell: str
    """Id of the base or branch that took the step."""
    step: int
    agent: str
    """The study's name of the model that acted."""
    model: str
    """The study's name of the model that scored."""
    take: int = 1
    """2: asked again in another order."""
    logprob: float | None
    """Sum over the action's span, natural logarithm at temperature 1; None when unknown, and then `why` says why."""
    tokens: int | None
    """Tokens in the span; None when unknown."""
    how: How | None
    """None when the action was not even sent."""
    why: str = ""


class Regrade(Record):
    """A further grading of what a finished cell left behind. The cell's own outcome stays as it was."""

    kind: Literal["regrade"] = "regrade"
    id: str
    """cell id, "~" and `number`."""
    cell_id: str
    number: int
    """1-based."""
    outcome: Outcome
    inclusion: float
    """Probability with which this cell was to be graded again: 1, or the sample's (estimands M12)."""
    sample: float
    """The sample's probability; 1: every cell."""
    sample_seed: int
    grader: dict[str, str] = {}
    """Versions of what graded."""
    provenance: Provenance


AnyRecord = Trajectory | Branch | Failure | Regrade
ANY_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])

_VOLATILE = {"circumstances", "provenance", "prefix"}
"""`prefix` is how a branch was brought to its fork: one study, forked by re-execution or by snapshot, is one study."""


def canonical(value: Any) -> Any:
    """`value` (as parsed JSON) without what depends on clock, host, order or attempt."""
    if isinstance(value, dict):
        kept = {key: canonical(item) for key, item in value.items() if key not in _VOLATILE}
        if kept.keys() >= {"calls", "seconds", "format_errors_in_a_row"}:  # Spent
            del kept["seconds"]
        return kept
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return value


def canonical_json(record: Record) -> str:
    """The canonical export of one record: compact, keys sorted, volatile fields left out."""
    return json.dumps(
        canonical(record.model_dump(mode="json")), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )


def digest(records: Iterable[Record]) -> str:
    """SHA-256 over the canonical JSON of `records`, in order."""
    total = hashlib.sha256()
    for record in records:
        total.update(canonical_json(record).encode("utf-8") + b"\n")
    return total.hexdigest()


def prefix_digest(base: Trajectory, step: int) -> str:
    """Digest that binds a branch to the base's task, agent and steps before `step`."""
    head = hashlib.sha256(f"{base.id}\n{base.task_id}\n{base.agent}\n{base.start_digest}\n".encode())
    head.update(digest(base.steps[: step - 1]).encode())
    return head.hexdigest()


def commands(steps: Sequence[Step]) -> list[str]:
    """The exact command strings of `steps`, flat, in order: the paper's action list (G9)."""
    return [action.command for step in steps for action in step.reply.actions]


def seed_for(*path: str | int) -> int:
    """A seed below 2**53 (exact in every JSON reader) derived from `path`; equal paths, equal seeds."""
    text = json.dumps(path, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11
