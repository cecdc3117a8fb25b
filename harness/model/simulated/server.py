"""The simulated models over HTTP: `python -m harness.model.simulated.server --port 0`.

Standard library only, so that it starts in a fraction of a second. When it listens it prints one line, "serving on
http://127.0.0.1:PORT/v1". One thread a connection; connections are kept alive.
"""

import argparse
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from types import FrameType
from typing import Any, NoReturn

from harness.errors import ConfigError, ModelError
from harness.model.simulated.api import Api, ApiError
from harness.model.simulated.engine import DEFAULT_CONTEXT, Engine
from harness.model.simulated.mixture import EPSILON
from harness.model.simulated.noise import KINDS, Kind, Noise, kind
from harness.model.simulated.profiles import PROFILES, profile


@dataclass(frozen=True)
class Options:
    """How a server is set up."""

    models: Sequence[str] = tuple(PROFILES)
    noise: Kind = "iid"
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Profile -> parameter -> number, in place of the profile's own."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, which the ready line names."""
    epoch: str | None = None
    """None: a new one at each start."""
    true_zero: bool = False
    """Whether what the menu lacks has probability zero."""
    max_model_len: int = DEFAULT_CONTEXT
    latency_s: float = 0.0
    """How long each request stays in flight besides its own work."""
    exit_with_stdin: bool = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600  # seconds; a connection that idles longer is closed
    wbufsize = -1  # head and body leave in one packet

    def __init__(self, api: Api, *arguments: Any) -> None:
        self._api = api
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, self._api.models())
        elif self.path == "/health":
            self._answer(200, {})
        else:
            self._answer(404, ApiError(404, f"no such path: {self.path}").body)

    def do_POST(self) -> None:
        try:
            self._answer(200, self._called())
        except ApiError as error:
            self._answer(error.status, error.body)

    def _body(self) -> bytes:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal():
            self.close_connection = True  # where this request ends cannot be known
            raise ApiError(411, "Content-Length is missing or no number")
        return self.rfile.read(int(size))

    def _called(self) -> dict[str, Any]:
        body = self._body()
        call = self._api.posts.get(self.path)
        if call is None:
            raise ApiError(404, f"no such path: {self.path}")
        try:
            parsed = json.loads(body)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ApiError(400, "the body must be a JSON object")
        return call(parsed)

    def _answer(self, status: int, value: Mapping[str, Any]) -> None:
        body = json.dumps(value, separators=(",", ":")).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: a line a request would cost more than the request."""


class Server(ThreadingHTTPServer):
    """Listens from construction on; `serve_forever` answers."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], api: Api) -> None:
        self._api = api
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket, Any]:
        """An accepted connection, which sends small packets at once."""
        connection, address = super().get_request()
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection until it closes."""
        _Handler(self._api, request, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/v1"


def make(options: Options) -> Server:
    """A server that listens but does not answer yet."""
    unknown = sorted(set(options.settings) - set(options.models))
    if unknown:
        raise ConfigError(f"settings for {unknown[0]!r}, which is not served; served: {', '.join(options.models)}")
    epoch = options.epoch or secrets.token_hex(4)
    engines = {name: _engine(name, options, epoch) for name in options.models}
    try:
        return Server((options.host, options.port), Api(engines, latency_s=options.latency_s))
    except OSError as error:
        raise ModelError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error


def _engine(name: str, options: Options, epoch: str) -> Engine:
    return Engine(
        profile(name, options.settings.get(name)),
        Noise(options.noise, epoch),
        epsilon=0.0 if options.true_zero else EPSILON,
        max_model_len=options.max_model_len,
    )


def serve(options: Options) -> None:
    """Serve until a signal, or until standard input ends where that is asked for."""
    with make(options) as server:
        if options.exit_with_stdin:
            threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
        print(f"serving on {server.base_url}", flush=True)
        server.serve_forever(poll_interval=0.2)


def _stop_at_end_of_input(server: Server) -> None:
    while os.read(0, 4096):  # not through sys.stdin: its lock would hold up the interpreter's exit
        pass
    server.shutdown()


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """The options that a command line asks for."""
    parser = argparse.ArgumentParser(prog="serve-sim", description="Serve the simulated models.")
    add = parser.add_argument
    add("--models", default=",".join(PROFILES), help="profiles to serve, separated by commas (default: %(default)s)")
    add("--noise", default="iid", help=f"at temperature 0: {', '.join(KINDS)} (default: %(default)s)")
    add("--set", action="append", default=[], metavar="MODEL.PARAMETER=NUMBER", help="change a profile; repeatable")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: a free one (default)")
    add("--epoch", help="name of this start of the server (default: random)")
    add("--true-zero", action="store_true", help="what the menu lacks has probability zero")
    add("--max-model-len", type=int, default=DEFAULT_CONTEXT)
    add("--latency-ms", type=float, default=0.0, help="how long each request stays in flight besides its own work")
    add("--exit-with-stdin", action="store_true", help="stop when standard input ends")
    given = parser.parse_args(argv)
    return Options(
        models=tuple(given.models.split(",")),
        noise=kind(given.noise),
        settings=parse_settings(given.set),
        host=given.host,
        port=given.port,
        epoch=given.epoch,
        true_zero=given.true_zero,
        max_model_len=given.max_model_len,
        latency_s=given.latency_ms / 1000,
        exit_with_stdin=given.exit_with_stdin,
    )


def parse_settings(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """`small.skill=0.5` and the like as profile -> parameter -> number."""
    settings: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, number = text.partition("=")
        model, _, parameter = name.partition(".")
        try:
            settings.setdefault(model, {})[parameter] = float(number)
        except ValueError as error:
            raise ConfigError(f"not MODEL.PARAMETER=NUMBER: {text!r}") from error
    return settings


def _stop(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve(parse_options(argv))
    except (ConfigError, ModelError) as error:
        print(f"serve-sim: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
