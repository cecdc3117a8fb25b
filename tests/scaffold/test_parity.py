"""Parity with mini-SWE-agent: the same completions through its own DefaultAgent and through our loop.

Equal are: every message that the model was sent before every call, the exit status, the submission and the number of
calls; or else the script is in `DIFFERENCES`, with what differs and why. A listed difference that is gone fails too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.branch import with_environment
from harness.config import LimitsSection
from harness.sandbox import docker, namespace
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.engine import Engine
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.scaffold.mini import MiniScaffold
from harness.scaffold.protocol import Dialect
from tests.scaffold.mini_side import DOCKER, configuration, environment_in, play
from tests.scaffold.scripts import CONFIGS, IN_DOCKER, SCRIPTS, command_alone
from tests.scaffold.sides import (
    MORE_THAN_IS_KEPT,
    TASK,
    Difference,
    door_into,
    hold,
    in_messages,
    make_tree,
    ours,
)

DIALECTS: Mapping[str, Dialect] = {"swebench": "tool_call", "swebench_backticks": "text", "swebench_xml": "text"}


TIMED_OUT = Difference(
    "mini-SWE-agent shows the whole `docker exec` command line, with the container's id; here the command alone",
    in_messages(command_alone),
)
DIFFERENCES: Mapping[str, Difference] = {
    "time limit": TIMED_OUT,
    "time limit, other line ends": TIMED_OUT,
    "time limit after the word": TIMED_OUT,
    "the context is full": Difference(
        "mini-SWE-agent counts the call that did not fit; here a call that gave no completion is no step",
        lambda outcome: replace(outcome, calls=outcome.calls - 1),
    ),
    "a command that is no text": Difference(
        "mini-SWE-agent runs into an exception and shows it as an observation; here such a call is a format error",
        lambda outcome: replace(outcome, asked=without_broken_commands(outcome.asked)),
    ),
    "submits more than is kept": MORE_THAN_IS_KEPT,
}


def without_broken_commands(asked: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The conversation in which a call without a text is answered as any other that cannot be read."""
    scaffold = MiniScaffold.named("swebench", "tool_call")
    missing = scaffold.parse(SCRIPTS["arguments of another form"].turns("swebench")[-3]).format_error  # type: ignore[arg-type]

    def one(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        after_broken = False
        for message in messages:
            broken = "tool_calls" in message and '"echo' not in message["tool_calls"][0]["function"]["arguments"]
            if not broken:
                yield {"role": "user", "content": missing} if after_broken else message
            after_broken = broken

    return [list(one(messages)) for messages in asked]


@dataclass(frozen=True)
class Sides:
    """Two sandboxes of one image: mini-SWE-agent acts in one, we in the other."""

    config: str
    environment: Any
    sandbox: Sandbox

    def hold(self, name: str) -> None:
        """Run the script on both sides and compare."""
        script, dialect = SCRIPTS[name], DIALECTS[self.config]
        turns, task, limit = script.turns(self.config), TASK.problem_statement, script.step_limit
        config, scaffold = configuration(self.config, dialect), MiniScaffold.named(self.config, dialect)
        limits = LimitsSection(calls=limit, action_seconds=script.timeout)
        self.environment.config.timeout = script.timeout
        hold(
            lambda: play(config, dialect, self.environment, task, turns, step_limit=limit),
            lambda: ours(scaffold, self.sandbox, turns, limits),
            DIFFERENCES.get(name),
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("parity") / "tree")


@pytest.fixture(scope="module")
def in_namespaces(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Sides]]:
    if (why := namespace.available()) is not None:
        pytest.skip(why)
    with ExitStack() as stack:
        scratch = tmp_path_factory.mktemp("scratch")
        provider = stack.enter_context(NamespaceProvider(limits=SandboxLimits(), scratch=scratch))
        yield cache(lambda name: sides_in_namespaces(name, tree, provider, stack, tmp_path_factory.mktemp(name)))


def sides_in_namespaces(name: str, tree: Path, provider: NamespaceProvider, stack: ExitStack, folder: Path) -> Sides:
    image = with_environment(Image("parity", tree), MiniScaffold.named(name, DIALECTS[name]).environment)
    theirs: Any = stack.enter_context(provider.start(image))
    config = configuration(name, DIALECTS[name])
    environment = environment_in(config, "-", door_into(theirs, folder))
    stack.callback(setattr, environment, "container_id", None)  # nothing is left for its __del__
    return Sides(name, environment, stack.enter_context(provider.start(image)))


@pytest.fixture(scope="module")
def in_docker(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    if (why := docker.available()) is not None:
        pytest.skip(why)
    if DOCKER is None:
        pytest.skip("no program `docker`, which mini-SWE-agent starts its containers with")
    config = configuration("swebench", "tool_call")
    config["environment"] |= {"run_args": ["--rm", "--network", "none", "--entrypoint", ""], "container_timeout": "5m"}
    image = with_environment(Image("parity", tree), MiniScaffold.named("swebench", "tool_call").environment)
    scratch = tmp_path_factory.mktemp("docker")
    with ExitStack() as stack:
        engine = stack.enter_context(closing(Engine()))
        made: list[str] = []
        stack.callback(lambda: [engine.remove_image(one) for one in made])
        options = DockerOptions(pool=0)
        provider = stack.enter_context(DockerProvider(limits=SandboxLimits(), scratch=scratch, options=options))
        sandbox = stack.enter_context(provider.start(image))
        made += [facts["id"] for facts in provider.facts["images"].values()]
        environment = environment_in(config, made[0], DOCKER)
        stack.callback(engine.remove, environment.container_id)
        stack.callback(setattr, environment, "container_id", None)
        yield Sides("swebench", environment, sandbox)


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for config in CONFIGS for name, script in SCRIPTS.items() if config in script.configs],
)
def test_both_come_to_the_same(config: str, name: str, in_namespaces: Callable[[str], Sides]) -> None:
    in_namespaces(config).hold(name)


@pytest.mark.parametrize("name", IN_DOCKER)
def test_both_come_to_the_same_in_docker(name: str, in_docker: Sides) -> None:
    in_docker.hold(name)
