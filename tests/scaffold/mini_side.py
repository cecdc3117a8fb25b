"""The other side of the parity test: mini-SWE-agent's own agent and Docker environment, unmodified.

What is ours here is the model, which plays completions through that package's own functions for reading replies and
making observations (its model classes do the same around litellm, which takes eight seconds to import and a server to
answer), and, where no Docker is wanted, a program `docker` that leads into one of our sandboxes.
"""

import copy
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ContextOverflow
from harness.model.protocol import Completion
from harness.scaffold.mini_config import find
from harness.scaffold.protocol import Dialect
from tests.scaffold.sides import Messages, Outcome

with tempfile.TemporaryDirectory() as nowhere, pytest.MonkeyPatch.context() as variables:
    variables.setenv("MSWEA_SILENT_STARTUP", "1")
    variables.setenv("MSWEA_GLOBAL_CONFIG_DIR", nowhere)
    pytest.importorskip(
        "minisweagent.models.utils.actions_toolcall", reason="mini-swe-agent 2 is not here: scripts/setup dev"
    )
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.docker import DockerEnvironment
    from minisweagent.models.utils import actions_text, actions_toolcall


class ContextWindowExceededError(Exception):
    """Bears the name of the class that litellm raises."""


class Config(dict[str, Any]):
    """The `model` section, as the agent asks for it."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return dict(self)


class Player:
    """Gives the completions one after the other, the last for ever; keeps what it was asked."""

    def __init__(
        self, config: Mapping[str, Any], dialect: Dialect, completions: Sequence[Completion | Exception]
    ) -> None:
        self.config = Config(config)
        self._dialect, self._completions = dialect, completions
        self.asked: list[Messages] = []

    def query(self, messages: Messages) -> dict[str, Any]:
        # What LitellmModel hands on: everything but `extra`.
        shown = [{key: held for key, held in message.items() if key != "extra"} for message in messages]
        self.asked.append(copy.deepcopy(shown))
        answer = self._completions[min(len(self.asked), len(self._completions)) - 1]
        if isinstance(answer, ContextOverflow):
            raise ContextWindowExceededError(str(answer))
        assert isinstance(answer, Completion)
        return {**_message(answer), "extra": {"actions": self._actions(answer), "cost": 0.0}}

    def _actions(self, answer: Completion) -> Any:
        how: dict[str, Any] = {
            "format_error_template": self.config["format_error_template"],
            "template_kwargs": {"finish_reason": answer.finish_reason},
        }
        if self._dialect == "tool_call":
            return actions_toolcall.parse_toolcall_actions([_call(call) for call in answer.tool_calls], **how)
        pattern = self.config.get("action_regex", r"```mswea_bash_command\s*\n(.*?)\n```")
        return actions_text.parse_regex_actions(answer.text, action_regex=pattern, **how)

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(self, message: dict[str, Any], outputs: Any, known: Any = None) -> Any:
        how = {"observation_template": self.config["observation_template"], "template_vars": known}
        if self._dialect == "text":
            return actions_text.format_observation_messages(outputs, **how)
        actions = message["extra"]["actions"]
        return actions_toolcall.format_toolcall_observation_messages(actions=actions, outputs=outputs, **how)

    def get_template_vars(self) -> dict[str, Any]:
        return dict(self.config)

    def serialize(self) -> dict[str, Any]:
        return {}


def _call(call: Any) -> SimpleNamespace:
    return SimpleNamespace(id=call.id, function=SimpleNamespace(name=call.name, arguments=call.arguments))


def _message(answer: Completion) -> dict[str, Any]:
    """The message as a server sends it: null where there is no text beside calls."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    return message


def configuration(name: str, dialect: Dialect) -> dict[str, Any]:
    """The package's own, with no limit on money."""
    config = copy.deepcopy(dict(find(name, dialect).config))
    config["agent"]["cost_limit"] = 0
    return config


def play(
    config: Mapping[str, Any],
    dialect: Dialect,
    environment: DockerEnvironment,
    task: str,
    completions: Sequence[Completion | Exception],
    *,
    step_limit: int,
) -> Outcome:
    """One run of DefaultAgent."""
    model = Player(config["model"], dialect, completions)
    agent = DefaultAgent(model, environment, **{**config["agent"], "step_limit": step_limit})
    try:
        ended = agent.run(task)
    except ContextWindowExceededError:
        ended = agent.messages[-1]["extra"]
    return Outcome(model.asked, ended["exit_status"], ended["submission"], agent.n_calls)


def environment_in(config: Mapping[str, Any], image: str, program: str) -> DockerEnvironment:
    """mini-SWE-agent's environment, started."""
    known = {key: held for key, held in config["environment"].items() if key != "environment_class"}
    return DockerEnvironment(**{**known, "image": image, "executable": program})


DOCKER = shutil.which("docker")
