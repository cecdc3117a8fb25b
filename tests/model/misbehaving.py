"""A real server that misbehaves on order. Loopback only, bounded in count and time."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD: dict[str, Any] = {
    "model": "served",
    "system_fingerprint": "fp-1",
    "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


@dataclass
class Answer:
    """What the server does with one request."""

    body: object = field(default_factory=lambda: GOOD)
    """Bytes are sent as they are, anything else as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection half-way through the body."""
    delay_s: float = 0.0
    drip_s: float = 0.0
    """Send head and body a byte at a time, with this between them."""
    endless: bool = False
    """Send spaces until the client hangs up."""
    echo: bool = False
    """Put the request's Authorization header into body and headers."""


@dataclass
class Request:
    """What the server was asked."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    time: float
    in_flight: int


@dataclass
class Served:
    """A running server."""

    url: str
    requests: list[Request] = field(default_factory=list)
    listed: object = field(default_factory=lambda: {"data": [{"id": "served", "max_model_len": 32768}]})
    """What GET /models gives; None: 404."""
    tokenized: int | None = None
    """Tokens that /tokenize counts; None: the path does not exist."""
    flying: int = 0
    peak: int = 0
    connections: int = 0

    def completions(self) -> list[Request]:
        return [request for request in self.requests if request.path.endswith("/chat/completions")]


@contextlib.contextmanager
def serving(answers: Sequence[Answer] | Callable[[Request], Answer]) -> Iterator[Served]:
    """A server that gives the answers in order, the last one for ever; or what a function of the request says."""
    served, lock = Served(""), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with lock:
                served.connections += 1

        def do_GET(self) -> None:
            listed = served.listed
            self.answer(Answer(status=404, body={}) if listed is None else Answer(body=listed))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/tokenize"):
                count = served.tokenized
                self.answer(Answer(status=404, body={}) if count is None else Answer(body={"tokens": [1] * count}))
                return
            with lock:
                served.flying += 1
                served.peak = max(served.peak, served.flying)
                headers = {name.lower(): value for name, value in self.headers.items()}
                served.requests.append(Request(self.path, body, headers, time.monotonic(), served.flying))
                number = len(served.requests)
            answer = (
                answers(served.requests[number - 1]) if callable(answers) else answers[min(number, len(answers)) - 1]
            )
            time.sleep(answer.delay_s)
            with lock:
                served.flying -= 1
            with contextlib.suppress(OSError):  # the client may have hung up
                self.answer(answer)

        def answer(self, answer: Answer) -> None:
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            headers = dict(answer.headers)
            if answer.echo:
                told = self.headers.get("Authorization", "-")
                data = data.replace(b"AUTHORIZATION", told.encode())
                headers["X-Echo"] = told
            size = 10**12 if answer.endless else len(data)
            lines = [f"HTTP/1.1 {answer.status} Told", f"Content-Length: {size}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            head = ("\r\n".join(lines) + "\r\n\r\n").encode()
            self.close_connection = answer.cut or answer.endless
            if answer.drip_s:
                self.drip(head + data, answer.drip_s)
                return
            self.wfile.write(head + (data[: len(data) // 2] if answer.cut else data))
            while answer.endless:
                self.wfile.write(b" " * 65536)

        def drip(self, data: bytes, pause: float) -> None:
            for at in range(len(data)):
                self.wfile.write(data[at : at + 1])
                time.sleep(pause)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
