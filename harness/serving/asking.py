"""Asks one server for completions the way the self-test needs it: with or without a seed, with an exact cache state.

A request has the form that the run's have. It is sent without the run's client: no retries, no waiting, nothing that
could hide a difference. A request that fails fails the self-test.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from harness.errors import ModelError, attribute
from harness.model.keys import Key
from harness.model.protocol import Message, Sampling
from harness.model.request import RequestForm

Unit = Literal["token", "character"]
"""What two replies are compared by."""
Cold = Literal["reset", "salt"]
"""How a prompt is made to find no part of itself in the prefix cache: the whole cache is reset before it, or it gets
a salt of its own, which vLLM makes part of every cache key."""

_RESET_WAIT_S = 0.1


@dataclass(frozen=True)
class Answer:
    """One reply as it is compared."""

    text: str
    """Content, reasoning and tool calls, in the order of the message's keys."""
    ids: tuple[int, ...] | None
    """Of its tokens; None where the server does not give them."""
    message: Message
    finish_reason: str
    cached_tokens: int | None
    """Prompt tokens that came from the prefix cache; None where the server does not say."""


@dataclass(frozen=True)
class Asking:
    """One served model, and how it is asked."""

    base_url: str
    model: str
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float = 0.0
    max_tokens: int = 64
    form: RequestForm = field(default_factory=RequestForm)
    key: Key = field(default_factory=Key)
    timeout_s: float = 600.0

    def connect(self) -> "Connection":
        """A connection pool for it; use as a context manager."""
        return Connection(self)


class Connection:
    """Threads may share it."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._http = httpx.Client(headers=asking.key.headers(), timeout=asking.timeout_s, trust_env=False)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def ask(self, messages: Sequence[Message], *, seed: int | None, salt: str | None = None) -> Answer:
        """One reply; `seed` None sends none."""
        asked = self._asking
        sampling = Sampling(asked.temperature, asked.max_tokens)
        body = asked.form.body(asked.model, messages, asked.tools, sampling, seed or 0)
        if seed is None:
            body.pop("seed", None)
        if "return_token_ids" not in asked.form.omit:
            body["return_token_ids"] = True
        if salt is not None:
            body["cache_salt"] = salt
        return self._complete(body)

    def cold_by(self) -> Cold | None:
        """How this server lets a prompt start cold; None: it does not."""
        if self._reset() is not None:
            return "reset"
        return "salt" if "version" in _object(self._send("GET", f"{self._root}/version")) else None

    def reset(self, within_s: float = 5.0) -> None:
        """Empty the prefix cache. Refused by vLLM while blocks are held, which is so for a moment after a reply."""
        deadline = time.monotonic() + within_s
        while not self._reset():
            if time.monotonic() > deadline:
                raise ModelError(f"self-test: {self._root}: the prefix cache stays in use; is anybody else asking?")
            time.sleep(_RESET_WAIT_S)

    def _reset(self) -> bool | None:
        """Whether it was emptied; None when this server has no such thing."""
        answer = self._send("POST", f"{self._root}/reset_prefix_cache", {})
        if answer.status_code != 200:
            return None
        if not answer.content:  # vLLM before it said more than that
            return True
        success = _object(answer).get("success")
        return success if isinstance(success, bool) else None

    @property
    def _root(self) -> str:
        return self._asking.base_url.rstrip("/").removesuffix("/v1")

    def _complete(self, body: Mapping[str, Any]) -> Answer:
        url = f"{self._asking.base_url.rstrip('/')}/chat/completions"
        answer = self._send("POST", url, body)
        if answer.status_code != 200:
            told = " ".join(self._asking.key.hide(answer.text).split())[:300]  # cut last: half a key is not found
            raise ModelError(f"self-test: {url}: HTTP {answer.status_code}: {told}")
        with attribute(ModelError, f"self-test: {url}: reading the reply"):
            return _read(answer.json())

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            return self._http.request(method, url, json=body)
        except httpx.HTTPError as error:
            raise ModelError(f"self-test: {url}: {type(error).__name__}: {error}") from None


def new_salt() -> str:
    """One that no request has had."""
    return uuid.uuid4().hex


def _object(answer: httpx.Response) -> Mapping[str, Any]:
    """The JSON object that an answer holds; empty when it holds none."""
    try:
        parsed = answer.json()
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _read(answer: Mapping[str, Any]) -> Answer:
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    message = choice["message"]
    ids = choice.get("token_ids")
    return Answer(
        text=_text_of(message),
        ids=None if ids is None else tuple(ids),
        message=message,
        finish_reason=str(choice.get("finish_reason")),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    )


def _text_of(message: Mapping[str, Any]) -> str:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
    parts = [message.get("reasoning_content"), message.get("reasoning"), message.get("content")]
    parts += [part for call in calls for part in (call.get("name"), call.get("arguments"))]
    return "\n".join(str(part) for part in parts if part)
