"""The simulated server as a real process over real sockets: the wire says what the engine says."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, ContextOverflow, ModelError
from harness.model.openai import OpenAIClient
from harness.model.protocol import Completion, Message, Said, Sampling
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.process import SimulatedServer
from harness.model.simulated.profiles import PROFILES
from harness.model.simulated.server import Options, make, parse_options, parse_settings
from harness.prompting import opening, parse, tools
from harness.record import Task
from harness.scaffold.protocol import Dialect
from harness.tasks.pocket import pocket_tasks

FACTS = next(iter(pocket_tasks().values())).facts
TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement=FACTS["problem_statement"])
DIALECTS: tuple[Dialect, ...] = ("tool_call", "text")
FULL = Sampling(temperature=1.0, logprobs=True)


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(["--epoch", "0"]) as running:
        yield running


class Raw:
    """Requests without a client's help, over one connection."""

    def __init__(self, base_url: str) -> None:
        self._connection = http.client.HTTPConnection(base_url.split("/")[2], timeout=20)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        return self.send("POST", path, json.dumps(body).encode())

    def chat(self, **more: Any) -> tuple[int, dict[str, Any]]:
        return self.post("/v1/chat/completions", **{"model": "small", "messages": opening(TASK, "text"), **more})


@pytest.fixture
def raw(server: SimulatedServer) -> Iterator[Raw]:
    with Raw(server.base_url) as one:
        yield one


def without_place(done: Completion) -> Completion:
    """What does not depend on who else asked."""
    return replace(done, cached_prompt_tokens=None, in_flight=None)


def grown(messages: list[Message], done: Completion) -> list[Message]:
    """The conversation with `done` and a made-up answer, as the harness renders it."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in done.tool_calls
    ]
    if not calls:
        return [*messages, {"role": "assistant", "content": done.text}, {"role": "user", "content": "exit code: 0\n"}]
    answer = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "exit code: 0\noutput:\n"}
    return [*messages, {"role": "assistant", "content": done.text, "tool_calls": calls}, answer]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", list(PROFILES))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_wire_says_what_the_engine_says(
    server: SimulatedServer, dialect: Dialect, name: str, temperature: float
) -> None:
    far, near = OpenAIClient(server.base_url, name), SimulatedClient.of(PROFILES[name], "iid", "0")
    messages, sampling = opening(TASK, dialect), Sampling(temperature=temperature, logprobs=True)
    for seed in range(8):
        one = far.complete(messages, tools=tools(dialect), sampling=sampling, seed=seed)
        other = near.complete(messages, tools=tools(dialect), sampling=sampling, seed=seed)
        assert without_place(one) == without_place(other)
        messages = grown(messages, one)
    far.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_scoring_over_the_wire_agrees_with_sampling(server: SimulatedServer, dialect: Dialect) -> None:
    client, messages = OpenAIClient(server.base_url, "small"), opening(TASK, dialect)
    scored = 0
    for seed in range(12):
        done = client.complete(messages, tools=tools(dialect), sampling=FULL, seed=seed)
        reply = parse(done, dialect)
        if reply.logprob is not None and done.tokens is not None and done.tokens.pieces is not None:
            raw_text = b"".join(done.tokens.pieces).decode()
            note, marker, rest = raw_text.partition("<tool_call>" if dialect == "tool_call" else "```bash\n")
            got = client.score(messages, Said(note, marker + rest), tools=tools(dialect))
            assert got.logprob == pytest.approx(reply.logprob, abs=1e-12)
            scored += 1
        messages = grown(messages, done)
    client.close()
    assert scored > 6


def test_a_true_zero_travels_as_unknown() -> None:
    with SimulatedServer(["--true-zero", "--models", "small"]) as hard:
        client = OpenAIClient(hard.base_url, "small")
        unknown = client.score(opening(TASK, "text"), Said("Next.\n", "```bash\nmake\n```"), tools=[])
        assert (unknown.logprob, unknown.tokens, unknown.how) == (None, None, "text")
        assert unknown.why == "the server sent None in place of one"
        assert client.score(opening(TASK, "text"), Said("Next.\n", "```bash\nls\n```"), tools=[]).logprob is not None
        client.close()


def test_tokens_cover_the_whole_reply_and_nothing_after_the_action(raw: Raw) -> None:
    _, answer = raw.chat(seed=1, temperature=1.0, logprobs=True, return_token_ids=True)
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == choice["message"]["content"]
    assert len(choice["token_ids"]) == len(content) == answer["usage"]["completion_tokens"]
    assert (
        raw.post("/detokenize", model="small", tokens=choice["token_ids"])[1]["prompt"]
        == (choice["message"]["content"])
    )
    assert choice["forkroll"]["seed"] == 1


def test_the_prompt_is_counted_as_it_is_tokenised_and_cached_as_it_was_seen(raw: Raw) -> None:
    messages = [*opening(TASK, "text"), {"role": "user", "content": "only here"}]
    _, tokenised = raw.post("/tokenize", model="large", messages=messages, add_generation_prompt=True)
    counts = [raw.chat(model="large", messages=messages)[1]["usage"] for _ in range(2)]
    assert tokenised["count"] == len(tokenised["tokens"]) == counts[0]["prompt_tokens"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in counts]
    assert cached[0] < cached[1] == counts[1]["prompt_tokens"] - 2


def test_without_a_seed_the_entropy_used_is_stated_and_repeats_the_reply(raw: Raw) -> None:
    first = raw.chat(temperature=1.0)[1]["choices"][0]
    again = raw.chat(temperature=1.0, seed=first["forkroll"]["seed"])[1]["choices"][0]
    assert again["message"] == first["message"]
    assert len({raw.chat(temperature=1.0)[1]["choices"][0]["forkroll"]["seed"] for _ in range(5)}) == 5


def test_models_and_health_answer(raw: Raw) -> None:
    assert raw.send("GET", "/health")[0] == 200
    assert [model["id"] for model in raw.send("GET", "/v1/models")[1]["data"]] == ["small", "large", "exact"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b"[]", 400, "object"),
        ("/v1/chat/completions", b'{"model": "huge", "messages": [{"role": "user", "content": "x"}]}', 404, "small"),
        ("/v1/chat/completions", b'{"model": "small", "messages": []}', 400, "messages"),
        ("/v1/chat/completions", b'{"model": "small", "messages": [{"role": "boss"}]}', 400, "role"),
        ("/v1/chat/completions", b'{"model": "small", "messages": [{"role": "user"}], "n": 2}', 400, "n must"),
        ("/v1/chat/completions", b'{"model": "small", "messages": [{"role": "user"}], "seed": "a"}', 400, "seed"),
        ("/v1/chat/completions", b'{"model": "small", "messages": [{"role": "user"}], "max_tokens": 0}', 400, "least"),
        ("/v1/chat/completions", b'{"model":"small","messages":[{"role":"user"}],"temperature":-1}', 400, "temp"),
        ("/v1/completions", b'{"model": "small", "prompt": [7], "prompt_logprobs": 0}', 400, "token"),
        ("/v1/completions", b'{"model": "small", "prompt": "x", "max_tokens": 5}', 400, "max_tokens"),
        ("/tokenize", b'{"model": "small"}', 400, "prompt"),
        ("/v2", b"{}", 404, "/v2"),
    ],
)
def test_a_bad_request_is_refused_in_one_line(raw: Raw, path: str, body: bytes, status: int, says: str) -> None:
    got, answer = raw.send("POST", path, body)
    assert got == status
    assert says in answer["error"]["message"]
    assert raw.send("GET", "/health")[0] == 200  # the connection survives


def test_what_does_not_fit_is_a_context_overflow() -> None:
    with SimulatedServer(["--max-model-len", "200", "--models", "small"]) as tight:
        client = OpenAIClient(tight.base_url, "small")
        with pytest.raises(ContextOverflow, match="context_length_exceeded"):
            client.complete(opening(TASK, "text"), tools=[], sampling=Sampling(), seed=1)
        client.close()


def test_a_restart_is_a_new_epoch_and_settings_reach_the_profile() -> None:
    prints = []
    for _ in range(2):
        arguments = ["--models", "small", "--set", "small.format_error_rate=0.999"]
        with SimulatedServer(arguments) as one, Raw(one.base_url) as raw:
            answer = raw.chat(temperature=1.0, seed=1)[1]
            prints.append(answer["system_fingerprint"])
            assert answer["choices"][0]["forkroll"]["entry"] == "format_error:prose"
    assert prints[0] != prints[1]


def test_requests_in_flight_share_the_noise_of_their_batch() -> None:
    with SimulatedServer(["--noise", "batch_shared", "--latency-ms", "300", "--models", "small"]) as slow:
        got: list[str] = []

        def ask(seed: int) -> None:
            with Raw(slow.base_url) as raw:
                got.append(raw.chat(temperature=0, seed=seed)[1]["choices"][0]["message"]["content"])

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) == 6
    assert len(set(got)) == 1


def test_a_call_costs_less_than_two_milliseconds(server: SimulatedServer, raw: Raw) -> None:
    messages, near = opening(TASK, "tool_call"), SimulatedClient.of(PROFILES["small"])
    for seed in range(10):
        done = near.complete(messages, tools=tools("tool_call"), sampling=Sampling(), seed=seed)
        messages = grown(messages, done)
    n, before = 300, server.cpu_seconds()
    for seed in range(n):
        assert raw.chat(messages=messages, tools=tools("tool_call"), temperature=0, seed=seed)[0] == 200
    assert (server.cpu_seconds() - before) / n < 0.002


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import time\nfrom harness.model.simulated.process import SimulatedServer\n"
        "with SimulatedServer(['--models', 'small']) as s:\n    print(s.base_url, flush=True)\n    time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().decode().strip()
        with Raw(url) as raw:
            assert raw.send("GET", "/health")[0] == 200
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(100):
        try:
            with Raw(url) as raw:
                raw.send("GET", "/health")
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the server outlived its parent")


def test_what_cannot_start_says_why_in_one_line() -> None:
    with pytest.raises(ModelError, match="no simulated profile 'medium'"), SimulatedServer(["--models", "medium"]):
        pass
    with pytest.raises(ConfigError, match=r"MODEL\.PARAMETER"):
        parse_settings(["small"])
    with pytest.raises(ConfigError, match="not served"):
        make(Options(models=("small",), settings={"large": {"skill": 0.5}}))
    assert parse_options(["--set", "small.sigma=1", "--port", "7"]) == Options(
        settings={"small": {"sigma": 1.0}}, port=7
    )
    with make(Options(models=("small",))) as taken, pytest.raises(ModelError, match="cannot listen"):
        make(Options(models=("small",), port=taken.server_address[1]))


def test_a_used_port_is_told(server: SimulatedServer) -> None:
    port = server.base_url.split(":")[2].split("/")[0]
    with pytest.raises(ModelError, match="cannot listen"), SimulatedServer(["--port", port]):
        pass
