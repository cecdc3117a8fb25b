"""Runs the model contract over each client: real servers, nothing patched.

`FORKROLL_MODEL_URL` and `FORKROLL_MODEL_NAME` name a served model that is to be one more parameter; its context must be
said by the server or in `FORKROLL_MODEL_CONTEXT`, in tokens.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ContextOverflow
from harness.model.digest import request_digest
from harness.model.openai import OpenAIClient
from harness.model.patience import Patience
from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.model.recorded import Answer, Cassette, Key, RecordedClient
from harness.model.scripted import ScriptedClient
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.engine import DEFAULT_CONTEXT
from harness.model.simulated.process import SimulatedServer
from harness.model.simulated.profiles import PROFILES
from harness.prompting import parse
from harness.record import Circumstances, Step
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


def _recorded(stack: ExitStack, folder: Path) -> World:
    """What the simulated model answered to the whole suite, from a cassette that was written down and read back."""
    taping = Taping(SimulatedClient.of(PROFILES["small"]))
    live = World("taped", taping, DEFAULT_CONTEXT)
    for check in BEHAVIOURS.values():
        with suppress(AssertionError):  # the model's own faults show where it is a parameter itself
            check(live)
    return World("recorded", RecordedClient(taping.cassette, "a"), DEFAULT_CONTEXT)


class Taping:
    """A client that keeps what the one behind it answers, as the records of a run would."""

    def __init__(self, client: ModelClient) -> None:
        self._client, self.cassette = client, Cassette("the suite")

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        request = request_digest(messages, tools, sampling)
        key = Key("a", request, seed)
        try:
            completion = self._client.complete(messages, tools=tools, sampling=sampling, seed=seed)
        except ContextOverflow:
            self.cassette.answers[key] = Answer("the suite", None)
            raise
        step = Step(
            index=1,
            agent="a",
            probability=1,
            seed=seed,
            reply=parse(completion, "tool_call" if tools else "text"),
            observations=(),
            request_digest=request,
            state_digest=None,
            circumstances=Circumstances(started_at="", model_seconds=0, prompt_digest=completion.prompt_digest),
        )
        self.cassette.answers[key] = Answer("the suite", Step.model_validate_json(step.model_dump_json()))
        return completion

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        return self._client.score(messages, said, tools=tools)


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
    "recorded": _recorded,
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
