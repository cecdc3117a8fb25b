"""A study file plus `key=value` overrides become one frozen, validated object.

Unknown keys are errors that name the nearest valid one. Nothing here touches a server, a sandbox or a run folder.
"""

import difflib
import json
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from harness.bundled import bundled
from harness.errors import ConfigError
from harness.model.suspect import key_in_fields, key_in_url

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]


# YAML reads a bare `off` as false.
Noise = Annotated[
    Literal["off", "iid", "position", "batch_shared", "server_sticky"],
    BeforeValidator(lambda value: "off" if value is False else value),
]


class Section(BaseModel):
    """Frozen; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TasksSection(Section):
    """Which tasks: first the filters (`ids`, `repos`, `difficulty`, `match`), then `shuffle`, `slice` and `count`."""

    set: Name = "pocket"
    source: str | None = None
    """swebench: verified, lite, full or another name of the Hugging Face hub; or a local json, jsonl or parquet file
    (.gz too) or a folder of one."""
    split: str = "test"
    ids: tuple[str, ...] | None = None
    """In this order where nothing is shuffled. None: all of the set."""
    repos: tuple[str, ...] | None = None
    difficulty: tuple[str, ...] | None = None
    """The data set's own labels."""
    match: str | None = None
    """A regular expression that the beginning of an id matches."""
    shuffle: int | None = None
    """Seed: sort by id and shuffle, as the paper (42) and mini-swe-agent's --shuffle do; None: the set's order."""
    shuffle_first: bool = False
    """True: shuffle before the filters, as mini-swe-agent does; False: after them, as the paper does."""
    slice: Annotated[str, Field(pattern=r"^-?\d*:-?\d*(:-?[1-9]\d*)?$")] | None = None
    """As in Python, such as "0:30"."""
    count: Positive | None = None
    """The first so many of them; None: no cut."""
    append: str | None = None
    """Added to the end of every problem statement, after an empty line."""

    @model_validator(mode="after")
    def _source_fits_the_set(self) -> "TasksSection":
        if self.set == "swebench" and self.source is None:
            raise ValueError("the set `swebench` needs a `source`: verified, lite, full, or a local file")
        if self.set == "pocket" and self.source is not None:
            raise ValueError("the set `pocket` is bundled and takes no `source`; did you mean `set: swebench`?")
        return self


class SimulatedModel(Section):
    """The simulated model; a server for it is started with the run."""

    client: Literal["simulated"]
    profile: Literal["small", "large", "exact"]
    noise: Noise = "iid"


class ScriptedModel(Section):
    """Answers call n with command n, whatever it is asked."""

    client: Literal["scripted"]
    commands: tuple[str, ...] = Field(min_length=1)


class OpenAIModel(Section):
    """Any OpenAI-compatible server."""

    client: Literal["openai"]
    base_url: str
    model: str
    api_key_env: str | None = None
    """Name of the environment variable that holds the key."""
    api_key_file: str | None = None
    """Path of a file that holds the key; without this and `api_key_env` no key is sent."""
    family: Name | None = None
    """Models of one family share limits; None: those of one `base_url`."""
    concurrency: Positive | None = None
    """Requests of the family in flight at once; None: as many as there are workers. See `model/gate`."""
    request_seconds: float = Field(default=600.0, gt=0)
    """For one attempt, from connecting to the last byte of the answer."""
    attempts: Positive = 8
    """At one request whose trouble may pass."""
    longest_wait_seconds: float = Field(default=120.0, gt=0)
    """Caps what a server's Retry-After asks for."""
    context: Positive | None = None
    """Tokens that prompt and reply may have together; None: what the server says."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    omit: tuple[Literal["temperature", "seed", "logprobs", "return_token_ids"], ...] = ()
    """What is not sent, for servers that refuse it."""
    chat_template_kwargs: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    """Further fields of each request; with `return_token_ids: true` prompts have digests without log-probabilities."""
    roles: Literal["as_is", "alternate"] = "as_is"
    """alternate: neighbouring messages of one role are sent as one."""
    fold_system: bool = False
    """The system message is sent as the start of the first user message."""

    @model_validator(mode="after")
    def _nothing_secret_and_nothing_ours(self) -> "OpenAIModel":
        # Errors here say where and never what: the value may be a key.
        if not re.match(r"https?://[^/]", self.base_url):
            raise ValueError("`base_url` must start with http:// or https://, such as http://127.0.0.1:8000/v1")
        if (found := key_in_url(self.base_url)) is not None:
            raise ValueError(f"`base_url` holds {found}: keys go into `api_key_env` or `api_key_file`")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("`api_key_env` is no name of an environment variable: name one, and put the key there")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("`api_key_env` and `api_key_file` are both set; one is needed")
        for name in ("extra_body", "chat_template_kwargs"):
            _check_free_fields(name, getattr(self, name))
        check_extra_body(self.extra_body)
        return self


def check_extra_body(value: dict[str, Any]) -> None:
    """`value` holds nothing that looks like a key, and nothing that other keys of a study decide."""
    _check_free_fields("extra_body", value)
    ours = sorted(value.keys() & _DECIDED_ELSEWHERE)
    if ours:
        raise ValueError(f"`extra_body.{ours[0]}` is not for `extra_body`: other keys of the study decide it")


def _check_free_fields(name: str, value: dict[str, Any]) -> None:
    """`value` can be sent as JSON and holds nothing that looks like a key."""
    if (path := key_in_fields(value)) is not None:
        raise ValueError(f"`{name}.{path}` looks like a key: keys go into `api_key_env` or `api_key_file`")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` holds something that JSON cannot: quote dates, leave out .nan and .inf") from None


_DECIDED_ELSEWHERE = frozenset(
    {"model", "messages", "tools", "temperature", "max_tokens", "max_completion_tokens", "seed", "logprobs"}
    | {"chat_template_kwargs", "stream", "n"}
)
"""Fields of a request that other keys of a study decide, or with which replies could not be read."""


class ImportedModel(Section):
    """Cannot be asked: its bases come from logs by `forkroll import`."""

    client: Literal["imported"]


class RecordedModel(Section):
    """Answers from the records of a run, and nobody is asked. Its calls must be those of the record: study seed, names
    of models and directions, prompts and sampling decide them."""

    client: Literal["recorded"]
    run: str
    """The run's folder; a relative one is looked for where the command is started."""
    model: Name
    """That run's name of the model."""


class ServedModel(Section):
    """A model whose server is started with the run, as a model card says."""

    client: Literal["served"]
    card: str = Field(min_length=1)
    """A card in configs/models by name, or a file."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, over those of the card."""
    request_seconds: float = Field(default=600.0, gt=0)
    """For one attempt, from connecting to the last byte of the answer."""
    omit: tuple[Literal["temperature", "seed", "logprobs", "return_token_ids"], ...] = ()
    """What is not sent."""

    @model_validator(mode="after")
    def _nothing_secret_and_nothing_ours(self) -> "ServedModel":
        check_extra_body(self.extra_body)
        return self


ModelSection = Annotated[
    SimulatedModel | ScriptedModel | OpenAIModel | ServedModel | ImportedModel | RecordedModel,
    Field(discriminator="client"),
]
_CLIENTS = frozenset(
    get_args(kind.model_fields["client"].annotation)[0] for kind in get_args(get_args(ModelSection)[0])
)
"""What tells the kinds of model apart; pydantic puts it into the place of an error, where nobody wrote it."""


class Direction(Section):
    """A base model and the one that takes over."""

    base: Name
    swap: Name


class SandboxSection(Section):
    """Where actions run. A bare name, such as `sandbox: docker`, is the provider with everything else as below."""

    provider: Literal["auto", "namespace", "docker", "local"] = "auto"
    """auto: namespace where the kernel allows; else local, for simulated and scripted models only."""
    image: str | None = None
    """Docker image that bundled tasks' trees are put into; None: the provider's own default."""
    user: str | None = None
    """Docker: user (name or uid[:gid]) that actions run as; None: root inside."""
    network: bool = False
    pull_seconds: float = Field(default=1800.0, gt=0)
    """Docker: time for pulling one image, apart from every other limit."""
    pool: Annotated[int, Field(ge=0)] = 2
    """Docker: containers kept started ahead of need; 0: none."""
    output_bytes: Positive = 64 * 1024
    """Of one action's output kept in the record: half head, half tail."""
    disk_bytes: Positive | None = 512 * 1024 * 1024
    memory_bytes: Positive | None = 2 * 1024**3
    processes: Positive | None = 256
    cpus: float | None = Field(default=None, gt=0)
    """Docker: processors that one sandbox may use; None: all."""


def _named(key: str) -> BeforeValidator:
    """A bare string stands for a section with that `key`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) or value is False else value)


class ForksSection(Section):
    """Where bases are forked and how a branch is brought there."""

    rule: Literal["paper_fraction", "fraction", "call_fraction", "absolute", "every"]
    at: tuple[float, ...] = ()
    """Fractions in (0, 1) for the fraction rules; 1-based steps for `absolute`; one period for `every`."""
    mode: Literal["reexecute", "snapshot", "verify"] = "reexecute"
    """How a sandbox is brought to the fork: by running the prefix again, from a snapshot taken when the base was
    there, or both, compared by state digest."""
    snapshot_bytes: Positive = 2 * 1024**3
    """Disk that the snapshots of a run may take; the least recently used are dropped first."""

    @model_validator(mode="after")
    def _points_fit_the_rule(self) -> "ForksSection":
        if not self.at:
            raise ValueError("`at` is empty: name at least one point")
        if self.rule.endswith("fraction"):
            bad = [value for value in self.at if not 0 < value < 1]
            if bad:
                raise ValueError(f"fractions must lie strictly between 0 and 1, not {bad[0]:g}")
            return self
        bad = [value for value in self.at if value < 1 or value != int(value)]
        if bad:
            raise ValueError(f"`{self.rule}` takes whole numbers from 1 up, not {bad[0]:g}")
        if self.rule == "every" and len(self.at) != 1:
            raise ValueError("`every` takes one number, the period")
        return self


class ScaffoldSection(Section):
    """How models are spoken to. A bare name is the scaffold with everything else as below."""

    name: Literal["forkroll", "mini-swe-agent"] = "forkroll"
    config: str | None = None
    """mini-swe-agent: swebench, swebench_backticks or swebench_xml of the installed package, or a file of that form.
    None: the package's own for the study's dialect."""

    @model_validator(mode="after")
    def _config_is_of_mini(self) -> "ScaffoldSection":
        if self.config is not None and self.name == "forkroll":
            raise ValueError("`config` belongs to `name: mini-swe-agent`; the scaffold forkroll has none")
        return self


class GradingSection(Section):
    """What is graded, and where."""

    of: Literal["working_tree", "submission"] = "working_tree"
    """working_tree: the diff at exit, whatever the stop reason. submission: what the submitting command printed, as
    mini-swe-agent's runs are graded. Both are recorded."""
    seconds: float = Field(default=1800.0, gt=0)
    """swebench: time for one run of the hidden tests."""
    sandbox: Annotated[SandboxSection, _named("provider")] | None = None
    """Sandboxes to grade in, where they are to differ from those of the rollouts, such as in network or memory."""


class SamplingSection(Section):
    """How completions are drawn. A seed is always sent."""

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: Positive = 2048
    logprobs: bool = False


class DeterminismSection(Section):
    """Whether each session tests first that its servers repeat themselves. A bare word is the mode with everything
    else as below."""

    mode: Annotated[
        Literal["off", "measure", "required"], BeforeValidator(lambda value: "off" if value is False else value)
    ] = "off"
    """measure: what was found is recorded. required: where something differs, nothing is run."""
    prompts: Positive = 16
    """Openings of so many tasks, the study's own first, are asked; fewer where the set holds fewer."""
    tokens: Positive = 64
    """Length at which a reply is cut: differences after that are not seen."""


class RunLimits(Section):
    """Limits of the whole run, over all its sessions, checked before each cell. None: no limit."""

    calls: Positive | None = None
    seconds: float | None = Field(default=None, gt=0)
    disk_bytes: Positive | None = None
    rollouts_without_a_call: Positive | None = 3
    """So many rollouts of a model that format errors ended, and no tool call in any reply, stop the run (dialect
    `tool_call`): its server does not read calls out of what the model writes."""


class LimitsSection(Section):
    """Limits of one rollout. None: no limit. Checked before each model call."""

    calls: Positive | None = 50
    tokens: Positive | None = None
    """Generated tokens."""
    seconds: float | None = Field(default=None, gt=0)
    """Of model answers and actions: waiting for a server that is busy is not in it."""
    format_errors: Positive = 3
    """So many in a row stop the rollout."""
    action_seconds: float = Field(default=120.0, gt=0)
    run: RunLimits = RunLimits()


class RatesSection(Section):
    """What `run --dry-run` assumes. Nothing here changes what is run. None: not stated."""

    calls_per_rollout: float | None = Field(default=None, gt=0)
    """Mean length of a base."""
    input_tokens_per_call: float | None = Field(default=None, gt=0)
    output_tokens_per_call: float | None = Field(default=None, gt=0)
    input_tokens_per_second: float | None = Field(default=None, gt=0)
    """Prompt tokens that the serving machine reads, all requests together, those served from a cache included."""
    output_tokens_per_second: float | None = Field(default=None, gt=0)
    image_bytes: float | None = Field(default=None, gt=0)
    """Disk that one more task image takes."""


class Study(Section):
    """One study: everything that decides what is run."""

    name: Name
    seed: int
    tasks: TasksSection = TasksSection()
    sandbox: Annotated[SandboxSection, _named("provider")] = SandboxSection()
    models: dict[Name, ModelSection] = Field(min_length=1)
    directions: dict[Name, Direction] = Field(min_length=1)
    forks: ForksSection
    arms: tuple[Literal["swap", "control"], ...] = Field(default=("swap", "control"), min_length=1)
    replicates: Positive = 2
    budget: Literal["carry", "refund"] = "carry"
    """refund gives the prefix's format-error calls back, as the paper did; it exists to reproduce that."""
    scaffold: Annotated[ScaffoldSection, _named("name")] = ScaffoldSection()
    dialect: Literal["tool_call", "text"] = "tool_call"
    sampling: SamplingSection = SamplingSection()
    limits: LimitsSection = LimitsSection()
    determinism: Annotated[DeterminismSection, _named("mode")] = DeterminismSection()
    grading: GradingSection = GradingSection()
    workers: Positive = 4
    retries: Annotated[int, Field(ge=0)] = 2
    """Further attempts at a cell that infrastructure ended."""
    rates: RatesSection = RatesSection()

    @model_validator(mode="after")
    def _directions_name_models(self) -> "Study":
        for label, direction in self.directions.items():
            for model in (direction.base, direction.swap):
                if model not in self.models:
                    known = ", ".join(self.models)
                    raise ValueError(f"direction {label!r} names model {model!r}, which is not among models: {known}")
        return self

    @model_validator(mode="after")
    def _imported_models_are_not_asked(self) -> "Study":
        for label, direction in self.directions.items():
            asked = {"swap": direction.swap} | ({"control": direction.base} if "control" in self.arms else {})
            for arm, model in asked.items():
                if model in self.imported:
                    raise ValueError(
                        f"arm {arm!r} of direction {label!r} asks {model!r}, which is imported and cannot be asked; "
                        + ("set `arms: [swap]`, or " if arm == "control" else "")
                        + "give it a live client"
                    )
        return self

    @property
    def imported(self) -> frozenset[str]:
        """Models that cannot be asked."""
        return frozenset(name for name, model in self.models.items() if isinstance(model, ImportedModel))


OPERATIONAL = (
    "workers",
    "retries",
    "limits.run",
    "forks.snapshot_bytes",
    "sandbox.pool",
    "sandbox.pull_seconds",
    "rates",
    "determinism",
)
"""Keys that may differ between two sessions of one run: they change when work is done, not what is done."""

OPERATIONAL_OF_A_MODEL = (
    "api_key_env",
    "api_key_file",
    "family",
    "concurrency",
    "attempts",
    "longest_wait_seconds",
)
"""The same, below `models.NAME`."""


def load_study(source: str, overrides: Sequence[str] = ()) -> Study:
    """The study in the file `source` (or bundled under that name) with dotted `key=value` overrides applied."""
    path = _find(source)
    content = read_keys(path, "a study file", "name: my-study")
    for override in overrides:
        _apply(content, override)
    return validate(content, str(path))


def read_keys(path: Path, what: str, example: str) -> dict[str, Any]:
    """The keys and values in the YAML file `path`; ConfigError says what `what` should hold."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {what} holds keys and values, such as `{example}`")
    return content


def validate(content: Mapping[str, Any], where: str) -> Study:
    """`content` as a Study; the first fault as one line that names the key and what to do."""
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, Study)}") from None


def load_tasks_section(content: Mapping[str, Any], overrides: Sequence[str] = ()) -> TasksSection:
    """A section `tasks` of its own, with `key=value` overrides of its keys applied."""
    changed = dict(content)
    for override in overrides:
        _apply(changed, override)
    try:
        return TasksSection.model_validate(changed)
    except ValidationError as error:
        raise ConfigError(explain(error, TasksSection)) from None


def _find(source: str) -> Path:
    named = bundled("configs") / f"{source}.yaml"
    for path in (Path(source), named):
        if path.is_file():
            return path
    raise ConfigError(f"no study file {source!r}; bundled studies: {', '.join(bundled_studies())}")


def bundled_studies() -> list[str]:
    """Names of the studies that ship."""
    root = bundled("configs")
    found = (path.relative_to(root).with_suffix("") for path in root.rglob("*.yaml"))
    return sorted(path.as_posix() for path in found if path.parts[0] != "models")


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} is not of the form key=value")
    *parents, last = key.split(".")
    place: Any = content
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if place is None:
            break
    if not isinstance(place, dict):
        raise ConfigError(f"override {override!r}: {'.'.join(parents)} holds no keys")
    try:
        place[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: {text!r} is not valid YAML") from None


def explain(error: ValidationError, root: type[Section]) -> str:
    """The first fault of what was to become a `root`: its key, and what to do."""
    first = error.errors(include_url=False)[0]
    location = [part for part in first["loc"] if not str(part).startswith("function-")]
    key = ".".join(str(part) for part in location if part not in _CLIENTS)
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`{_nearest(str(location[-1]), _keys_at(location[:-1], root))}"
    if first["type"] == "missing":
        return f"`{key}` is missing"
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    got = f" (got {value!r})" if isinstance(value, str | int | float | bool) or value is None else ""
    return f"`{key}`: {message}{got}" if key else message


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}"


def _keys_at(location: Sequence[Any], root: type[Section]) -> list[str]:
    """The keys that the section at `location` of a `root` knows."""
    section: Any = root
    for part in location:
        section = _descend(section, part)
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []


def _descend(kind: Any, part: Any) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        return _descend(get_args(kind)[0], part)
    if origin is dict:
        return get_args(kind)[1]
    if origin in (Union, types.UnionType):
        return next((option for option in get_args(kind) if _tag(option) == part), None)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
        return kind.model_fields[part].annotation
    return None


def _tag(option: Any) -> str | None:
    field = option.model_fields.get("client") if isinstance(option, type) and issubclass(option, Section) else None
    return get_args(field.annotation)[0] if field is not None else None


def identity(study: Study) -> dict[str, Any]:
    """The study as flat dotted keys, without those that may differ between sessions of one run."""
    flat: dict[str, Any] = {}
    _flatten(study.model_dump(mode="json"), "", flat)
    of_models = {f"models.{name}.{key}" for name in study.models for key in OPERATIONAL_OF_A_MODEL}
    return {key: value for key, value in flat.items() if not key.startswith(OPERATIONAL) and key not in of_models}


def _flatten(value: Any, prefix: str, flat: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _flatten(item, f"{prefix}.{key}" if prefix else key, flat)
    else:
        flat[prefix] = value


def to_yaml(study: Study) -> str:
    """The resolved study as YAML that `load_study` reads back to the same object."""
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
