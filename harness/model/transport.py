"""One HTTP exchange: it ends, whatever the server does. A total deadline and a cap on bytes hold over every read.

A deadline for each read alone would let a server that sends a byte a second go on for ever, headers included. Redirects
are not followed: where a request goes is what the study says.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

import httpcore
import httpx

from harness.errors import ModelError
from harness.model.keys import Key
from harness.model.patience import Malformed, Passing, Patience

CONNECTIONS = 256
CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 3.0
"""An idle connection is not used again after this: servers close theirs after 5 s or more."""

_deadline: ContextVar[float] = ContextVar("deadline")
"""When the exchange of this thread must be over, on the monotonic clock."""

_BROKEN = (httpx.TransportError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)


class Overdue(Exception):
    """The exchange did not end in time."""


@dataclass(frozen=True)
class Answer:
    """What came back, whole."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class Transport:
    """One connection pool. Threads may share it."""

    def __init__(self, base_url: str, key: Key, patience: Patience) -> None:
        self._key, self._patience = key, patience
        self._http = httpx.Client(
            headers=key.headers(),
            timeout=httpx.Timeout(patience.request_seconds, connect=min(CONNECT_SECONDS, patience.request_seconds)),
            transport=_Pool(httpx.create_ssl_context() if base_url.startswith("https:") else None),
            trust_env=False,  # a proxy between arms and server would be one more thing that differs
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close the pool."""
        self._http.close()

    def send(self, method: str, url: str, body: Mapping[str, Any] | None) -> Answer:
        """One exchange. Passing when the connection broke, Malformed when the answer had no end."""
        limit = self._patience.request_seconds
        try:
            with _within(limit), self._http.stream(method, url, json=body) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status_code, headers, self._whole(response.iter_bytes()))
        except (Overdue, httpcore.ReadTimeout, httpcore.WriteTimeout):  # these have no limit of their own
            raise Malformed(f"no whole answer within {limit:g} s") from None
        except httpx.DecodingError:
            raise Malformed("the body is not encoded as its headers say") from None
        except _BROKEN as error:
            raise Passing(self._key.hide(f"{type(error).__name__}: {error}")) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ModelError(self._key.hide(f"{type(error).__name__}: {error}")) from None

    def _whole(self, pieces: Iterable[bytes]) -> bytes:
        held = bytearray()
        for piece in pieces:
            held += piece
            if len(held) > self._patience.reply_bytes:
                raise Malformed(f"the answer is longer than {self._patience.reply_bytes} bytes")
        return bytes(held)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object that an answer's body holds; else Malformed."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _left(timeout: float | None) -> float:
    """The time that one read or write may take."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise Overdue
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    """A connection on which every read and write ends by the deadline of the exchange under way."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore.NetworkBackend):
    """Connections as httpcore makes them, with the deadline."""

    def __init__(self) -> None:
        self._real = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._real.connect_tcp(host, port, _left(timeout), local_address, socket_options))


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        return self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Pool(httpx.BaseTransport):
    """httpcore's pool behind httpx: httpx's own transport takes no network backend."""

    def __init__(self, ssl_context: SSLContext | None) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context,
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS,
            keepalive_expiry=_IDLE_SECONDS,
            network_backend=_Network(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        body = _Body(response)
        return httpx.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)

    def close(self) -> None:
        self._pool.close()
