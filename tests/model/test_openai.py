"""The HTTP client against a real server that misbehaves on order. Loopback only, bounded in count and time."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ContextOverflow, ModelError
from harness.model.openai import OpenAIClient
from harness.model.patience import Patience, retry_after
from harness.model.protocol import Completion, Sampling
from harness.model.reading import as_logprob

GOOD = {
    "model": "served",
    "system_fingerprint": "fp-1",
    "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


@dataclass
class Answer:
    """What the server does with one request."""

    body: object = field(default_factory=lambda: GOOD)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection half-way through the body."""


@dataclass
class Served:
    url: str
    requests: list[dict[str, Any]]
    times: list[float]


@pytest.fixture
def serve() -> Iterator[Callable[[Sequence[Answer]], Served]]:
    """Starts a server that gives the answers in order, the last one for ever."""
    servers = []

    def start(answers: Sequence[Answer]) -> Served:
        served = Served("", [], [])

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                served.requests.append(json.loads(body))
                served.times.append(time.monotonic())
                answer = answers[min(len(served.requests), len(answers)) - 1]
                data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if answer.cut else data)
                self.close_connection = answer.cut

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        return served

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


PATIENCE = Patience(request_seconds=5, passing_attempts=4, malformed_attempts=3, first_wait_seconds=0.01)


def ask(served: Served, patience: Patience = PATIENCE) -> Completion:
    client = OpenAIClient(served.url, "served", patience=patience)
    try:
        return client.complete([{"role": "user", "content": "hi"}], tools=[], sampling=Sampling(), seed=5)
    finally:
        client.close()


def test_a_good_answer_is_read_whole(serve: Callable[[Sequence[Answer]], Served]) -> None:
    served = serve([Answer()])
    got = ask(served)
    assert (got.text, got.usage.input_tokens, got.cached_prompt_tokens) == ("hello", 7, 3)
    assert (got.server_epoch, got.in_flight, got.retries) == ("fp-1", 1, 0)
    assert served.requests[0]["seed"] == 5


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(status=503),
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer(status=500),
        Answer(cut=True),
        Answer(body=b"not json"),
        Answer(body={"choices": []}),
        Answer(body=[]),
    ],
)
def test_passing_trouble_is_asked_again_and_counted(
    serve: Callable[[Sequence[Answer]], Served], trouble: Answer
) -> None:
    served = serve([trouble, Answer()])
    got = ask(served)
    assert (got.text, got.retries, len(served.requests)) == ("hello", 1, 2)


@pytest.mark.parametrize(("trouble", "attempts"), [(Answer(status=503), 4), (Answer(body=b"{"), 3)])
def test_nothing_is_retried_for_ever(
    serve: Callable[[Sequence[Answer]], Served], trouble: Answer, attempts: int
) -> None:
    served = serve([trouble])
    with pytest.raises(ModelError, match=str(attempts)):
        ask(served)
    assert len(served.requests) == attempts


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_permanent_trouble_is_not_retried(serve: Callable[[Sequence[Answer]], Served], status: int) -> None:
    served = serve([Answer(status=status, body={"error": {"message": "no such model"}})])
    with pytest.raises(ModelError, match=f"HTTP {status}.*no such model"):
        ask(served)
    assert len(served.requests) == 1


def test_a_context_overflow_is_its_own_error(serve: Callable[[Sequence[Answer]], Served]) -> None:
    body = {"error": {"message": "This model's maximum context length is 10 tokens", "code": 400}}
    with pytest.raises(ContextOverflow):
        ask(serve([Answer(status=400, body=body)]))


def test_retry_after_is_honoured_and_capped(serve: Callable[[Sequence[Answer]], Served]) -> None:
    served = serve([Answer(status=429, headers={"Retry-After": "0.3"}), Answer()])
    ask(served)
    assert served.times[1] - served.times[0] >= 0.3
    capped = serve([Answer(status=429, headers={"Retry-After": "9999"}), Answer()])
    ask(capped, Patience(first_wait_seconds=0.01, longest_wait_seconds=0.05))
    assert len(capped.requests) == 2


def test_no_server_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="ConnectError"):
        ask(Served("http://127.0.0.1:9/v1", [], []))


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("-4", 0.0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        (format_datetime(NOW + timedelta(seconds=20)), 20.0),
        (format_datetime(NOW - timedelta(seconds=20)), 0.0),
    ],
)
def test_retry_after_forms(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


@given(st.text())
def test_retry_after_never_fails_and_is_never_negative(header: str) -> None:
    found = retry_after(header, NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize("sentinel", [None, -9999.0, float("-inf"), float("nan"), "x"])
def test_sentinels_are_no_numbers(sentinel: object) -> None:
    assert as_logprob(sentinel) is None
