"""Any OpenAI-compatible server, over one HTTP connection pool.

Failures are of four kinds, the same for every arm: the conversation does not fit (ContextOverflow, at once);
permanent (ModelError, at once); passing (waited out, honouring Retry-After, a bounded number of times); malformed
(asked again, fewer times). A reply that was cut off in transit is thrown away whole and asked again.
"""

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from harness.errors import ContextOverflow, ModelError
from harness.model import scoring
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.model.scoring import as_logprob, digest_of_ids
from harness.record import Tokens, ToolCall, Usage, clean_text

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_OVERFLOW_WORDS = ("context_length_exceeded", "maximum context length", "max_model_len", "context length")


@dataclass(frozen=True)
class Patience:
    """How long a client waits before it gives up."""

    request_seconds: float = 600.0
    passing_attempts: int = 6
    malformed_attempts: int = 3
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 60.0
    """Caps a wait, Retry-After's included."""


class _Passing(Exception):
    """Worth another attempt after `wait` seconds (None: the client's own back-off)."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _Malformed(Exception):
    """The server answered with something that is no completion."""


class OpenAIClient:
    """A ModelClient for one served model. Threads may share it."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, patience: Patience | None = None
    ) -> None:
        self._model = model
        self._patience = patience or Patience()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._base_url = base_url.rstrip("/")
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(self._patience.request_seconds, connect=10.0),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=256),
            trust_env=False,  # a proxy between arms and server would be one more thing that differs
        )
        self._flying = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection pool."""
        self._http.close()

    def served_models(self) -> list[str]:
        """Names that the server serves."""
        answer = self._request("GET", "/models", None)
        return [str(entry.get("id")) for entry in answer.get("data", [])]

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        """Ask for the next assistant message."""
        body = {
            "model": self._model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
        }
        if tools:
            body["tools"] = list(tools)
        if sampling.logprobs:
            body |= {"logprobs": True, "return_token_ids": True}
        with self._in_flight() as flying:
            return self._with_patience("/chat/completions", body, flying)

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """Teacher forcing by `prompt_logprobs`."""
        chat: dict[str, Any] = {"messages": list(messages)}
        if tools:
            chat["tools"] = list(tools)
        return scoring.score(self._post, self._model, chat, said)

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        # vLLM serves /tokenize and /detokenize beside /v1, not below it.
        root = self._base_url.removesuffix("/v1") if path.endswith("tokenize") else ""
        return self._request("POST", path, body, root=root)

    @contextmanager
    def _in_flight(self) -> Iterator[int]:
        with self._lock:
            self._flying += 1
            flying = self._flying
        try:
            yield flying
        finally:
            with self._lock:
                self._flying -= 1

    def _with_patience(self, path: str, body: Mapping[str, Any], flying: int) -> Completion:
        retries = malformed = 0
        while True:
            try:
                return _read_completion(self._send("POST", self._base_url + path, body), flying, retries)
            except _Passing as error:
                retries += 1
                if retries >= self._patience.passing_attempts:
                    raise ModelError(f"{self._base_url}: {error} ({retries} attempts)") from None
                self._wait(error.wait, retries)
            except _Malformed as error:
                retries, malformed = retries + 1, malformed + 1
                if malformed >= self._patience.malformed_attempts:
                    raise ModelError(f"{self._base_url}: malformed answer: {error} ({malformed} times)") from None

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, root: str = "") -> dict[str, Any]:
        """One request without retries, for what is asked once."""
        try:
            return self._send(method, (root or self._base_url) + path, body)
        except (_Passing, _Malformed) as error:
            raise ModelError(f"{self._base_url}: {error}") from None

    def _wait(self, named: float | None, attempt: int) -> None:
        own = self._patience.first_wait_seconds * 2 ** (attempt - 1)
        time.sleep(min(own if named is None else max(named, own), self._patience.longest_wait_seconds))

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, json=body)
        except httpx.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from None
        if response.status_code >= 400:
            _raise_for(response, self._model)
        try:
            answer = response.json()
        except ValueError:
            raise _Malformed("not JSON") from None
        if not isinstance(answer, dict):
            raise _Malformed("not a JSON object")
        return answer


def _raise_for(response: httpx.Response, model: str) -> None:
    status, text = response.status_code, response.text[:500]
    if status in (400, 413, 422) and any(word in text for word in _OVERFLOW_WORDS):
        raise ContextOverflow(text)
    if status in _PASSING:
        raise _Passing(f"HTTP {status}", retry_after(response.headers.get("retry-after"), datetime.now(UTC)))
    raise ModelError(f"{response.request.url}: HTTP {status} for model {model!r}: {' '.join(text.split())}")


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for; None when absent or unreadable, never below zero."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return _seconds_until(header, now)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds(), 0.0)


def _read_completion(answer: Mapping[str, Any], flying: int, retries: int) -> Completion:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("message"), dict):
        raise _Malformed("no choices")
    choice, usage = choices[0], answer.get("usage") or {}
    message = choice["message"]
    content = (choice.get("logprobs") or {}).get("content") or None
    return Completion(
        text=_read_text(message.get("content")),
        tool_calls=tuple(_read_call(call, number) for number, call in enumerate(message.get("tool_calls") or [], 1)),
        finish_reason=clean_text(str(choice.get("finish_reason"))),
        usage=Usage(input_tokens=usage.get("prompt_tokens"), output_tokens=usage.get("completion_tokens")),
        model=clean_text(str(answer.get("model", ""))),
        reasoning=_optional_text(message.get("reasoning_content") or message.get("reasoning")),
        tokens=None if content is None else _read_tokens(content, choice.get("token_ids")),
        prompt_digest=digest_of_ids(answer.get("prompt_token_ids") or choice.get("prompt_token_ids")),
        propensity=(choice.get("forkroll") or {}).get("propensity"),
        cached_prompt_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        server_epoch=_optional_text(answer.get("system_fingerprint")),
        in_flight=flying,
        retries=retries,
    )


def _read_text(content: object) -> str:
    """The text of a message: a string, or a list of parts of which some are text."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise _Malformed("the content of the message is no text")
    return clean_text(content or "")


def _optional_text(text: str | None) -> str | None:
    return clean_text(text) if text else None


def _read_call(call: Mapping[str, Any], number: int) -> ToolCall:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    return ToolCall(
        id=clean_text(str(call.get("id") or f"call_{number}")),
        name=clean_text(str(function.get("name"))),
        arguments=_without_halves(clean_text(arguments if isinstance(arguments, str) else str(arguments))),
    )


_ESCAPES = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def _without_halves(arguments: str) -> str:
    """JSON text in which an escape of half a character, valid JSON that no reader can write again, is U+FFFD."""
    return _ESCAPES.sub(lambda found: "\\ufffd" if found["half"] else found[0], arguments)


def _read_tokens(content: Sequence[Mapping[str, Any]], ids: Sequence[int] | None) -> Tokens:
    logprobs = tuple(as_logprob(entry.get("logprob")) for entry in content)
    # Ids are kept only when they align one to one: an end-of-text id without a score would shift them.
    aligned = ids is not None and len(ids) == len(logprobs)
    kept = tuple(ids) if ids is not None and aligned else None
    return Tokens(ids=kept, logprobs=logprobs, pieces=_read_pieces(content))


def _read_pieces(content: Sequence[Mapping[str, Any]]) -> tuple[bytes, ...] | None:
    pieces = [entry.get("bytes") for entry in content]
    return None if any(piece is None for piece in pieces) else tuple(bytes(piece) for piece in pieces if piece)
