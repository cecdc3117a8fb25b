"""Parity with mini-SWE-agent's first generation: as `test_parity`, in an interpreter that has that one."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from harness.branch import with_environment
from harness.config import LimitsSection
from harness.sandbox import namespace
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.scaffold.mini import MiniScaffold
from tests.scaffold.first_side import configuration, environment_in, play
from tests.scaffold.scripts import SCRIPTS
from tests.scaffold.sides import MORE_THAN_IS_KEPT, TASK, Difference, door_into, hold, make_tree, ours

NOT_SAID = {"the context is full": "ends in an exception", "nul in a command": "ends in an exception"}
"""What that generation does with it has no counterpart here: its run is lost."""
DIFFERENCES: Mapping[str, Difference] = {"submits more than is kept": MORE_THAN_IS_KEPT}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Sandbox]]:
    if (why := namespace.available()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("first")
    scaffold = MiniScaffold.from_config(configuration(), "text", source="installed")
    image = with_environment(Image("parity", make_tree(folder / "tree")), scaffold.environment)
    with ExitStack() as stack:
        provider = stack.enter_context(NamespaceProvider(limits=SandboxLimits(), scratch=folder / "scratch"))
        theirs: Any = stack.enter_context(provider.start(image))
        environment = environment_in(configuration(), "-", door_into(theirs, folder))
        stack.callback(setattr, environment, "container_id", None)  # nothing is left for its __del__
        yield environment, stack.enter_context(provider.start(image))


@pytest.mark.parametrize(
    "name",
    [name for name, script in SCRIPTS.items() if "swebench_backticks" in script.configs and name not in NOT_SAID],
)
def test_both_come_to_the_same(name: str, sides: tuple[Any, Sandbox]) -> None:
    environment, sandbox = sides
    script, config = SCRIPTS[name], configuration()
    turns: Any = script.turns("first")
    # That generation bears any number of format errors.
    limits = LimitsSection(calls=script.step_limit, action_seconds=script.timeout, format_errors=99)
    scaffold = MiniScaffold.from_config(config, "text", source="installed")
    environment.config.timeout = script.timeout
    hold(
        lambda: play(config, environment, TASK.problem_statement, turns, step_limit=script.step_limit),
        lambda: ours(scaffold, sandbox, turns, limits),
        DIFFERENCES.get(name),
    )
