"""The other side of the parity test with mini-SWE-agent's first generation: its own agent and Docker environment.

It cannot be in one interpreter with the second; scripts/check_mini makes an environment for it.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.model.protocol import Completion
from tests.scaffold.sides import Messages, Outcome

try:
    version = metadata.version("mini-swe-agent")
except metadata.PackageNotFoundError:
    version = "none"
if not version.startswith("1."):
    pytest.skip(f"wants mini-swe-agent 1, here is {version}: scripts/check_mini", allow_module_level=True)

with tempfile.TemporaryDirectory() as nowhere, pytest.MonkeyPatch.context() as variables:
    variables.setenv("MSWEA_SILENT_STARTUP", "1")
    variables.setenv("MSWEA_GLOBAL_CONFIG_DIR", nowhere)
    import minisweagent
    from minisweagent.agents.default import AgentConfig, DefaultAgent
    from minisweagent.environments.docker import DockerEnvironment


def configuration() -> dict[str, Any]:
    """The package's own for SWE-bench, whole, as its trajectories hold it, with no limit on money."""
    path = Path(minisweagent.__file__).parent / "config" / "extra" / "swebench.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["agent"] = asdict(AgentConfig(**{**config["agent"], "cost_limit": 0}))
    return config


class FirstPlayer:
    """Gives the completions one after the other, the last for ever; keeps what it was asked."""

    def __init__(self, config: dict[str, Any], completions: Sequence[Completion]) -> None:
        self._config, self._completions = config, completions
        self.asked: list[Messages] = []
        self.cost = 0.0

    @property
    def n_calls(self) -> int:
        return len(self.asked)

    def query(self, messages: Messages) -> dict[str, Any]:
        # What LitellmModel hands on.
        self.asked.append([{"role": message["role"], "content": message["content"]} for message in messages])
        answer = self._completions[min(len(self.asked), len(self._completions)) - 1]
        return {"content": answer.text, "extra": {}}

    def get_template_vars(self) -> dict[str, Any]:
        return {**self._config, "n_model_calls": self.n_calls, "model_cost": self.cost}


def environment_in(config: dict[str, Any], image: str, program: str) -> DockerEnvironment:
    """mini-SWE-agent's environment, started."""
    known = {key: held for key, held in config["environment"].items() if key != "environment_class"}
    return DockerEnvironment(**{**known, "image": image, "executable": program})


def play(
    config: dict[str, Any],
    environment: DockerEnvironment,
    task: str,
    completions: Sequence[Completion],
    *,
    step_limit: int,
) -> Outcome:
    """One run of DefaultAgent."""
    model = FirstPlayer(config["model"], completions)
    agent = DefaultAgent(model, environment, **{**config["agent"], "step_limit": step_limit})
    status, submission = agent.run(task)
    return Outcome(model.asked, status, submission if status == "Submitted" else "", model.n_calls)
