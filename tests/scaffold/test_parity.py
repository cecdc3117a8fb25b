"""Parity with mini-SWE-agent: the same completions through its own DefaultAgent and through our loop.

Equal are: every message that the model was sent before every call, the exit status, the submission and the number of
calls; or else the script is in `DIFFERENCES`, with what differs and why. A listed difference that is gone fails too.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.agent import ModelAgent
from harness.branch import with_environment
from harness.config import LimitsSection
from harness.loop import Continuation, rollout
from harness.model.protocol import Completion, Message, Sampling
from harness.record import Task
from harness.routing import Always
from harness.sandbox import docker, namespace
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.engine import Engine
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.scaffold.exits import exit_status_of
from harness.scaffold.mini import SUBMIT_WORD, MiniScaffold
from harness.scaffold.protocol import Dialect
from tests.scaffold.mini_side import DOCKER, Outcome, configuration, door_into, environment_in, play
from tests.scaffold.scripts import CONFIGS, IN_DOCKER, SCRIPTS, Script, Turn, command_alone

TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement='It "breaks" & <fails>: {{ x }}\n\né\n')
TIMEOUT = 1
DIALECTS: Mapping[str, Dialect] = {"swebench": "tool_call", "swebench_backticks": "text", "swebench_xml": "text"}


@dataclass(frozen=True)
class Difference:
    """What differs in one script, and how mini-SWE-agent's outcome would read if it did not."""

    why: str
    rewrite: Callable[[Outcome], Outcome]
    """Makes ours of mini-SWE-agent's."""


def in_messages(change: Callable[[str], str]) -> Callable[[Outcome], Outcome]:
    """Changes the texts that are read as observations."""

    def one(message: dict[str, Any]) -> dict[str, Any]:
        observed = message["role"] in ("tool", "user")
        return {**message, "content": change(message["content"])} if observed else message

    return lambda outcome: replace(outcome, asked=[[one(message) for message in asked] for asked in outcome.asked])


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
    "submits more than is kept": Difference(
        "mini-SWE-agent holds all output in memory; here a submission longer than sandbox.output_bytes is not kept",
        lambda outcome: replace(outcome, submission=not_kept(f"{SUBMIT_WORD}\n{outcome.submission}")),
    ),
}


def not_kept(printed: str) -> str:
    return f"forkroll: not kept: a submission of {len(printed)} bytes; raise sandbox.output_bytes\n"


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


class Replies:
    """The completions one after the other, the last for ever; keeps what it was asked."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self.asked: list[list[Message]] = []

    def complete(self, messages: Sequence[Message], *, tools: object, sampling: Sampling, seed: int) -> Completion:
        self.asked.append([dict(message) for message in messages])
        turn = self._turns[min(len(self.asked), len(self._turns)) - 1]
        if isinstance(turn, Exception):
            raise turn
        return turn

    def score(self, messages: Sequence[Message], continuation: str, action: str, *, tools: object) -> float | None:
        return None


@dataclass(frozen=True)
class Sides:
    """Two sandboxes of one image: mini-SWE-agent acts in one, we in the other."""

    config: str
    environment: Any
    sandbox: Sandbox

    def theirs(self, script: Script) -> Outcome:
        config, dialect = configuration(self.config, DIALECTS[self.config]), DIALECTS[self.config]
        turns = script.turns(self.config)
        return play(config, dialect, self.environment, TASK.problem_statement, turns, step_limit=script.step_limit)

    def ours(self, script: Script) -> tuple[Outcome, Continuation]:
        client = Replies(script.turns(self.config))
        agent = ModelAgent(client, MiniScaffold.named(self.config, DIALECTS[self.config]), Sampling())
        limits = LimitsSection(calls=script.step_limit, action_seconds=TIMEOUT)
        done = rollout(TASK, Always("a"), {"a": agent}, self.sandbox, limits=limits, seed=1)
        asked = [[dict(message) for message in messages] for messages in client.asked]
        return Outcome(asked, exit_status_of(done.stop), done.submission or "", done.spent.calls), done


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("parity") / "tree"
    tree.mkdir()
    (tree / "notes.txt").write_text("notes\n")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@example.invalid commit -qm start"):
        subprocess.run(["git", "-C", str(tree), *command.split()], check=True)
    return tree


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
    environment = environment_in(config, "-", door_into(theirs, folder), TIMEOUT)
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
        environment = environment_in(config, made[0], DOCKER, TIMEOUT)
        stack.callback(engine.remove, environment.container_id)
        stack.callback(setattr, environment, "container_id", None)
        yield Sides("swebench", environment, sandbox)


def differing(theirs: Outcome, ours: Outcome) -> list[str]:
    """Names of what is not equal, the first unequal message beside its place."""
    found = [name for name in ("status", "submission", "calls") if getattr(theirs, name) != getattr(ours, name)]
    if len(theirs.asked) != len(ours.asked):
        found.append(f"requests: {len(theirs.asked)} and {len(ours.asked)}")
    for number, (left, right) in enumerate(zip(theirs.asked, ours.asked, strict=False), 1):
        if left != right:
            first = next(
                (pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), (len(left), len(right))
            )
            return [*found, f"messages of call {number}: {first[0]} and {first[1]}"]
    return found


def hold(name: str, sides: Sides) -> None:
    script = SCRIPTS[name]
    theirs, (ours, _) = sides.theirs(script), sides.ours(script)
    known = DIFFERENCES.get(name)
    if known is not None:
        assert differing(theirs, ours) != [], f"no difference is left: {known.why}"
        theirs = known.rewrite(theirs)
    assert differing(theirs, ours) == []


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for config in CONFIGS for name, script in SCRIPTS.items() if config in script.configs],
)
def test_both_come_to_the_same(config: str, name: str, in_namespaces: Callable[[str], Sides]) -> None:
    hold(name, in_namespaces(config))


@pytest.mark.parametrize("name", IN_DOCKER)
def test_both_come_to_the_same_in_docker(name: str, in_docker: Sides) -> None:
    hold(name, in_docker)
