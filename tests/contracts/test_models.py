"""Runs the model contract over each client: real servers, nothing patched.

`FORKROLL_MODEL_URL` and `FORKROLL_MODEL_NAME` name a served model that is to be one more parameter; its context must be
said by the server or in `FORKROLL_MODEL_CONTEXT`, in tokens.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.model.openai import OpenAIClient
from harness.model.patience import Patience
from harness.model.scripted import ScriptedClient
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.engine import DEFAULT_CONTEXT
from harness.model.simulated.process import SimulatedServer
from harness.model.simulated.profiles import PROFILES
from tests.bug_cases.parts import MODEL, serve_shared, shared_case
from tests.contracts.model_contract import BEHAVIOURS, GAPS, World

Open = Callable[[ExitStack, Path], World]


def _mock(stack: ExitStack, folder: Path) -> World:
    shared_case("000-mock")
    served = stack.enter_context(serve_shared("016-container-gone", "fence", folder))
    return World("mock", stack.enter_context(closing(OpenAIClient(served.url, MODEL))))


def _over_http(stack: ExitStack, folder: Path) -> World:
    server = stack.enter_context(SimulatedServer([]))
    client = stack.enter_context(closing(OpenAIClient(server.base_url, "small")))
    return World("simulated over http", client, DEFAULT_CONTEXT)


def _in_process(stack: ExitStack, folder: Path) -> World:
    return World("simulated", SimulatedClient.of(PROFILES["small"]), DEFAULT_CONTEXT)


def _scripted(stack: ExitStack, folder: Path) -> World:
    return World("scripted", ScriptedClient(["ls", "pwd"] * 6))


def _served(stack: ExitStack, folder: Path) -> World:
    url, name = os.environ.get("FORKROLL_MODEL_URL"), os.environ.get("FORKROLL_MODEL_NAME")
    if not url or not name:
        pytest.skip("no served model: set FORKROLL_MODEL_URL and FORKROLL_MODEL_NAME")
    client = stack.enter_context(closing(OpenAIClient(url, name, patience=Patience(request_seconds=300))))
    stated = os.environ.get("FORKROLL_MODEL_CONTEXT")
    said = next(entry.context for entry in client.served() if entry.name == name)
    return World("served", client, int(stated) if stated else said)


CLIENTS: dict[str, Open] = {
    "mock": _mock,
    "simulated over http": _over_http,
    "simulated": _in_process,
    "scripted": _scripted,
    "served": _served,
}


@pytest.fixture(scope="module", params=list(CLIENTS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield CLIENTS[request.param](stack, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", list(BEHAVIOURS))
def test_contract(world: World, name: str) -> None:
    why = GAPS.get(world.name, {}).get(name)
    if why is None:
        BEHAVIOURS[name](world)
        return
    try:
        BEHAVIOURS[name](world)
    except Exception:
        return
    pytest.fail(f"{world.name} keeps {name} now: take it off the list of gaps ({why})")


def test_every_gap_names_a_client_and_a_behaviour() -> None:
    assert GAPS.keys() <= CLIENTS.keys()
    assert all(gaps.keys() <= BEHAVIOURS.keys() for gaps in GAPS.values())
    assert len(BEHAVIOURS) >= 15


def test_the_wire_and_the_process_give_one_answer() -> None:
    """The same model behind HTTP and in process: a client adds nothing and loses nothing."""
    near = World("near", SimulatedClient.of(PROFILES["small"]))
    with SimulatedServer(["--epoch", "0"]) as server, closing(OpenAIClient(server.base_url, "small")) as client:
        far = World("far", client)
        one, other = near.ask(seed=5), far.ask(seed=5)
    assert json.dumps([one.text, one.finish_reason]) == json.dumps([other.text, other.finish_reason])
