"""Scaffold `mini-swe-agent`: what that agent shows a model and how it reads the replies, for studies comparable to its.

The words are the templates of a configuration: the installed package's, a file's, or those that a log holds. What is
here are its rules, generation 2 (tool calls or text) and generation 1 (text); the few words that its code, not a
template, puts before a model are read from it, too (`mini_words`). `tests/scaffold/test_parity.py` holds all of it
against the package itself and names every difference.

Generation 2 drops a reply that it cannot read: the model sees only what was wrong. The record keeps it. Generation 1
keeps it in the conversation.
"""

import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.config import LimitsSection
from harness.errors import ConfigError, RolloutError
from harness.model.protocol import Completion, Message
from harness.prompting import reply_of
from harness.record import Action, Exit, Observation, Reply, Step, Task, ToolCall, Usage, clean_text
from harness.scaffold.mini_config import find
from harness.scaffold.mini_words import words
from harness.scaffold.protocol import Dialect
from harness.scaffold.stream import LongText, text_of
from harness.scaffold.templates import Template

NAME = "mini-swe-agent"
SUBMIT_WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FIRST_SUBMIT_WORD = "MINI_SWE_AGENT_FINAL_OUTPUT"
"""Generation 1 takes this one too."""

_PLACE_KEYS = {
    *("image", "cwd", "env", "forward_env", "timeout", "executable", "run_args", "container_timeout", "pull_timeout"),
    *("interpreter", "environment_class"),
}
_LOGIN = {"BASH_ENV": "/root/.bashrc"}
"""Stands for a login shell, which actions here do not get."""
_NO_MARKER = b"\0"
"""In no reply."""
_LITERAL = re.compile(r"(?:[^\\^$.|?*+()\[\]{}](?![?*{]))+(?!.*\|)", re.DOTALL)
"""What every match of a regular expression begins with, where that is easily told."""


class MiniScaffold:
    """Generation 2."""

    name = NAME
    generation = 2
    submit_words: tuple[str, ...] = (SUBMIT_WORD,)
    _templates_at: Mapping[str, str] = {
        "system_template": "agent",
        "instance_template": "agent",
        "observation_template": "model",
        "format_error_template": "model",
    }
    """Name of a template -> the section that holds it."""
    _action_regex = r"```mswea_bash_command\s*\n(.*?)\n```"
    _returns_reasoning = True
    _format_errors = 3
    """In a row, where the configuration does not say."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dialect: Dialect, *, source: str) -> "MiniScaffold":
        """The scaffold of a configuration in mini-swe-agent's own form; `source` names it in messages.

        The form is that of its YAML files, and of `info.config` in its trajectories. ConfigError where that is not it.
        """
        first = "action_observation_template" in _section(config, "agent", source)
        return (FirstMiniScaffold if first else MiniScaffold)(config, dialect, source, package=None)

    @classmethod
    def named(cls, name: str | None, dialect: Dialect) -> "MiniScaffold":
        """The scaffold of the installed package's configuration `name`, or of the file at that path."""
        found = find(name, dialect)
        made = cls.from_config(found.config, dialect, source=found.source)
        made.package = found.package
        return made

    def __init__(self, config: Mapping[str, Any], dialect: Dialect, source: str, package: str | None) -> None:
        self.dialect: Dialect = dialect
        self.source = source
        self.package = package
        """Version of the package that the configuration was read from; None: it was a file or a log."""
        self._agent, self._model, self._place = (
            _section(config, name, source) for name in ("agent", "model", "environment")
        )
        self.login = _is_login_shell(self._place, source)
        self.environment: Mapping[str, str] = (_LOGIN if self.login else {}) | _variables(self._place, source)
        self._variables = {**self._agent, **self._place, **platform.uname()._asdict(), **self._model}
        self._templates = {name: self._template(name) for name in self._templates_at}
        self._regex = self._compiled_regex()
        self._refuse_what_is_not_done()
        self._try_out()

    # --- what a scaffold does

    def facts(self) -> Mapping[str, object]:
        """Digests of the templates and the settings beside them. Not the package's version, which a session's packages
        name: a run goes on with another version whose templates are the same."""
        return {
            "name": self.name,
            "dialect": self.dialect,
            "generation": self.generation,
            "config": self.source,
            "templates": {name: template.sha256 for name, template in self._templates.items()},
            "action_regex": self._regex.pattern if self.dialect == "text" else None,
            "environment": dict(self.environment),
            "reasoning": "sent back" if self._returns_reasoning else "not sent back",
            "step_limit": self._agent.get("step_limit", 0),
            "timeout": self._place.get("timeout"),
        }

    @property
    def config(self) -> dict[str, Mapping[str, Any]]:
        """The configuration, in the form that `from_config` takes."""
        return {"agent": self._agent, "model": self._model, "environment": self._place}

    @property
    def action_marker(self) -> bytes:
        """What opens an action in the raw text of a reply."""
        if self.dialect == "tool_call":
            return b"<tool_call>"
        literal = _LITERAL.match(self._regex.pattern)
        return _NO_MARKER if literal is None else literal[0].encode()

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tool `bash`, or none."""
        return [words().tool] if self.dialect == "tool_call" else []

    def opening(self, task: Task) -> Sequence[Message]:
        """System message and task."""
        known = {
            "n_model_calls": 0,
            "model_cost": 0.0,
            "elapsed_seconds": 0,
            "task": clean_text(task.problem_statement),
        }
        system, instance = (
            self._templates[name].render({**self._variables, **known})
            for name in ("system_template", "instance_template")
        )
        return [{"role": "system", "content": system}, {"role": "user", "content": instance}]

    def parse(self, completion: Completion) -> Reply:
        """Read every call, or the one block. The first that cannot be read makes the whole reply a format error."""
        actions, problem = self._read_calls(completion) if self.dialect == "tool_call" else self._read_text(completion)
        return reply_of(completion, actions, problem, self.action_marker)

    def observe(self, observation: Observation, action: Action, *, timeout_s: float) -> Observation:
        """`shown` is the whole message that the model reads."""
        return observation.model_copy(update={"shown": self._observed(observation, action, timeout_s)})

    def step_messages(self, step: Step) -> Sequence[Message]:
        """The reply and what came back; of a reply that could not be read, only what was wrong with it."""
        if step.reply.format_error is not None:
            return [{"role": "user", "content": step.reply.format_error}]
        return [self._assistant(step.reply), *self._answers(step)]

    def submission_of(self, observation: Observation) -> str | None:
        """What a successful command printed after a first line that is the submit word alone; blank lines before it are
        passed over. Of a longer output than is kept: a line that says so, which is no patch."""
        if observation.ended is not Exit.EXITED or observation.exit_code != 0:
            return None
        text = text_of(observation)
        lines = (text.head if isinstance(text, LongText) else text).lstrip().splitlines(keepends=True)
        if not lines or lines[0].strip() not in self.submit_words:
            return None
        if isinstance(text, LongText):
            return f"forkroll: not kept: a submission of {observation.size} bytes; raise sandbox.output_bytes\n"
        return "".join(lines[1:])

    # --- beyond the protocol

    def notes(self, limits: LimitsSection) -> list[str]:
        """Where the study goes its own way, a line each."""
        ours = limits.model_dump()
        return [
            *(
                f"`limits.{key}` is {ours[key]}; that of {self.source}, `{name}: {value}` (0: none), is not in force"
                for key, (name, value) in self._limits().items()
                if (value or None) != ours[key]
            ),
            *self._departures(),
        ]

    def require_kept(self, output_bytes: int) -> None:
        """ConfigError when so many bytes of an output do not hold all that the templates show of a longer one."""
        character = "\N{SHRUG}"  # none takes more bytes
        kept = (character * (output_bytes // 8)).encode()
        probe = _probe(kept * 2, cut_at=len(kept), size=output_bytes + 1, characters=output_bytes // 4 + 1)
        try:
            self._observed(probe, Action(command=""), 1)
        except RolloutError as error:
            raise ConfigError(f"{self.source}: {error} (it is {output_bytes})") from None

    def _limits(self) -> Mapping[str, tuple[str, Any]]:
        """Key of the study -> key and value of the configuration."""
        agent, in_a_row = self._agent, "max_consecutive_format_errors"
        return {
            "calls": ("agent.step_limit", agent.get("step_limit", 0)),
            "seconds": ("agent.wall_time_limit_seconds", agent.get("wall_time_limit_seconds", 0)),
            "format_errors": (f"agent.{in_a_row}", agent.get(in_a_row, self._format_errors)),
            "action_seconds": ("environment.timeout", self._place.get("timeout", 30)),
        }

    def _departures(self) -> Iterator[str]:
        if self._agent.get("cost_limit"):
            yield f"{self.source} has `agent.cost_limit: {self._agent['cost_limit']}`: money is not counted here"
        if self.login:
            yield f"{self.source} asks for a login shell; actions get BASH_ENV={self.environment['BASH_ENV']} instead"
        for key in sorted(self._place.keys() - _PLACE_KEYS):
            yield f"{self.source} has `environment.{key}`, which mini-swe-agent's Docker environment does not know"
        if self._place.get("forward_env"):
            yield f"{self.source} has `environment.forward_env`: no variable of this machine reaches an action"

    # --- reading replies

    def _read_calls(self, completion: Completion) -> tuple[list[Action], str | None]:
        actions = []
        problem = None if completion.tool_calls else words().no_call
        for call in completion.tool_calls:
            command, problem = _command_of(call)
            if problem is not None:
                break
            actions.append(Action(command=command, call_id=call.id))
        if problem is None:
            return actions, None
        return [], self._format_error(completion, error=problem, actions=[], has_tool_calls=bool(completion.tool_calls))

    def _read_text(self, completion: Completion) -> tuple[list[Action], str | None]:
        commands = [found.strip() for found in self._regex.findall(completion.text)]
        if len(commands) == 1:
            return [Action(command=commands[0])], None
        return [], self._format_error(completion, error=self._not_one(commands), actions=commands)

    def _not_one(self, commands: Sequence[str]) -> str:
        return words().not_one_action.format(len(commands))

    def _format_error(self, completion: Completion, **variables: Any) -> str:
        return self._templates["format_error_template"].render({**variables, "finish_reason": completion.finish_reason})

    # --- messages

    def _assistant(self, reply: Reply) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if self.dialect == "tool_call":
            message["content"] = reply.text or None
            message["tool_calls"] = [_call_message(call) for call in reply.tool_calls]
        if reply.reasoning is not None and self._returns_reasoning:
            message["reasoning_content"] = reply.reasoning
        return message

    def _answers(self, step: Step) -> Iterator[Message]:
        for action, observation in zip(step.reply.actions, step.observations, strict=False):
            if action.call_id is None:
                yield {"role": "user", "content": observation.shown}
            else:
                yield {"role": "tool", "tool_call_id": action.call_id, "content": observation.shown}

    def _observed(self, observation: Observation, action: Action, timeout_s: float) -> str:
        error = _exception(observation, action, timeout_s)
        output: dict[str, Any] = {
            "output": "" if observation.ended is Exit.NOT_RUN else _printed(observation),
            "returncode": _returncode(observation),
            "exception_info": "" if error is None else words().exception.format(error),
        }
        if error is not None:
            output["extra"] = {"exception_type": type(error).__name__, "exception": str(error)}
        return self._templates["observation_template"].render({**self._variables, "output": output})

    # --- the configuration

    def _template(self, name: str) -> Template:
        section = self._templates_at[name]
        held = self._agent if section == "agent" else self._model
        if not isinstance(held.get(name), str):
            raise ConfigError(f"{self.source}: `{section}.{name}` is missing or no text")
        return Template(held[name], f"{self.source}: `{section}.{name}`")

    def _compiled_regex(self) -> re.Pattern[str]:
        key, held = self._regex_setting()
        if self.dialect == "tool_call" and key in held:
            raise ConfigError(f"{self.source}: `{key}` reads actions from text: set `dialect: text`")
        try:
            regex = re.compile(held.get(key, self._action_regex), re.DOTALL)
        except (re.error, TypeError) as error:
            raise ConfigError(f"{self.source}: `{key}` is no regular expression: {error}") from None
        if regex.groups > 1:
            raise ConfigError(f"{self.source}: `{key}` has {regex.groups} groups; one says where the command is")
        return regex

    def _regex_setting(self) -> tuple[str, Mapping[str, Any]]:
        return "action_regex", self._model

    def _refuse_what_is_not_done(self) -> None:
        if self._model.get("multimodal_regex"):
            raise ConfigError(f"{self.source}: `model.multimodal_regex` is set; messages with images are not made here")

    def _try_out(self) -> None:
        """Render everything once, so that a template that cannot be rendered is found before anything is run."""
        task = Task(instance_id="-", repo="-", base_commit="-", problem_statement="-")
        action = Action(command="true", call_id="-" if self.dialect == "tool_call" else None)
        try:
            self.opening(task)
            for size, ended in ((1, Exit.EXITED), (1, Exit.TIME_LIMIT), (1_000_000, Exit.EXITED)):
                self._observed(_probe(b"x" * size, ended=ended), action, 1)
            for reason in ("stop", "length", "tool_calls"):
                self.parse(_unreadable(reason))
        except RolloutError as error:
            raise ConfigError(str(error)) from None


class FirstMiniScaffold(MiniScaffold):
    """Generation 1: text only; a reply that cannot be read stays in the conversation; its own words for a timeout."""

    generation = 1
    submit_words = (FIRST_SUBMIT_WORD, SUBMIT_WORD)
    _templates_at: Mapping[str, str] = {
        "system_template": "agent",
        "instance_template": "agent",
        "action_observation_template": "agent",
        "timeout_template": "agent",
        "format_error_template": "agent",
    }
    _action_regex = r"```bash\s*\n(.*?)\n```"
    _returns_reasoning = False
    _format_errors = 0

    def step_messages(self, step: Step) -> Sequence[Message]:
        """The reply as it was, and what answers it."""
        if step.reply.format_error is not None:
            return [self._assistant(step.reply), {"role": "user", "content": step.reply.format_error}]
        return super().step_messages(step)

    def _format_error(self, completion: Completion, **variables: Any) -> str:
        known = {**self._variables, "actions": variables["actions"]}
        return self._templates["format_error_template"].render(known)

    def _observed(self, observation: Observation, action: Action, timeout_s: float) -> str:
        known: dict[str, Any] = {**self._variables, "output": _printed(observation)}
        if observation.ended is Exit.TIME_LIMIT:
            return self._templates["timeout_template"].render({**known, "action": {"action": action.command}})
        known["output"] = {
            "output": known["output"],
            "returncode": _returncode(observation),
            "action": action.command,
        }
        return self._templates["action_observation_template"].render(known)

    def _not_one(self, commands: Sequence[str]) -> str:
        return ""  # the template is told the actions alone

    def _regex_setting(self) -> tuple[str, Mapping[str, Any]]:
        return "action_regex", self._agent

    def _refuse_what_is_not_done(self) -> None:
        if self.dialect != "text":
            raise ConfigError(f"{self.source}: is of mini-swe-agent's first generation: set `dialect: text`")


def _command_of(call: ToolCall) -> tuple[str, str | None]:
    """The command, or what is wrong with the call, in the words that the model is told."""
    problem, arguments = "", None
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        problem = words().bad_arguments.format(error)
    if call.name != "bash":
        problem += words().unknown_tool.format(call.name)
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if not isinstance(command, str):
        problem += words().no_command
    return ("", problem) if problem else (clean_text(str(command)), None)


def _call_message(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _printed(observation: Observation) -> str | LongText:
    """What the agent's Docker environment reads: after a timeout it has bytes, whose line ends nobody translates."""
    return text_of(observation, newlines=observation.ended is not Exit.TIME_LIMIT)


def _returncode(observation: Observation) -> int:
    """As `docker exec` gives it; -1 where the agent would have caught an exception."""
    if observation.ended is Exit.SIGNAL and observation.signal is not None:
        return 128 + observation.signal
    return -1 if observation.exit_code is None else observation.exit_code


def _exception(observation: Observation, action: Action, timeout_s: float) -> Exception | None:
    """What the agent would have caught in place of an exit code; the disk limit, which it does not have, is ours."""
    if observation.ended is Exit.TIME_LIMIT:
        whole = int(timeout_s) if float(timeout_s).is_integer() else timeout_s
        return subprocess.TimeoutExpired(action.command, whole)
    if observation.ended is Exit.DISK_LIMIT:
        return OSError("the disk limit ended it: remove files before writing more")
    if observation.ended is Exit.NOT_RUN:
        return ValueError("embedded null byte")
    return None


def _section(config: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    held = config.get(name) or {}
    if not isinstance(held, dict):
        raise ConfigError(f"{source}: `{name}` holds no keys")
    return held


def _variables(place: Mapping[str, Any], source: str) -> dict[str, str]:
    held = place.get("env") or {}
    if not isinstance(held, dict) or not all(isinstance(value, str) for value in held.values()):
        raise ConfigError(f"{source}: `environment.env` holds names and texts; put quotes around numbers and switches")
    return held


def _is_login_shell(place: Mapping[str, Any], source: str) -> bool:
    """Whether actions of this configuration run in one; generation 1, and generation 2 by default, have it so."""
    interpreter = place.get("interpreter", ["bash", "-lc"])
    if interpreter not in (["bash", "-c"], ["bash", "-lc"]):
        raise ConfigError(f"{source}: `environment.interpreter` is {interpreter}; actions here are run by bash")
    return bool(interpreter == ["bash", "-lc"])


def _probe(output: bytes, *, ended: Exit = Exit.EXITED, **more: Any) -> Observation:
    code = 0 if ended is Exit.EXITED else None
    return Observation(
        **{"output": output, "exit_code": code, "ended": ended, "size": len(output), "sha256": "", **more}
    )


def _unreadable(finish_reason: str) -> Completion:
    return Completion(text="", tool_calls=(), finish_reason=finish_reason, usage=Usage(), model="-")
