"""The OpenAI-compatible interface without HTTP: a parsed request body in, a JSON-ready answer out.

A request that cannot be answered raises ApiError, which carries the status and OpenAI's error object.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from harness.errors import ContextOverflow
from harness.model.simulated.engine import Engine, Generated
from harness.model.simulated.tokens import Turn, decode, encode_prompt, parse, render, token_text
from harness.model.simulated.wire import Malformed, parts_of, turns_of

Body = Mapping[str, Any]
T = TypeVar("T")
_PER_BYTE = -math.log(256.0)
"""Log-probability that a token outside the open reply is given, per byte: the model does not predict prompts."""


class ApiError(Exception):
    """A refusal: `status` and OpenAI's error object."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code or status}}


class Api:
    """The served models, by name."""

    def __init__(self, engines: Mapping[str, Engine], *, latency_s: float = 0.0) -> None:
        self.engines = engines
        self._latency_s = latency_s
        self.posts: Mapping[str, Callable[[Body], dict[str, Any]]] = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/reset_prefix_cache": self.reset_prefix_cache,
        }

    def models(self) -> dict[str, Any]:
        """GET /v1/models."""
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "forkroll",
                "root": name,
                "max_model_len": engine.max_model_len,
            }
            for name, engine in self.engines.items()
        ]
        return {"object": "list", "data": data}

    def chat(self, body: Body) -> dict[str, Any]:
        """POST /v1/chat/completions."""
        engine, turns, with_tools = self._conversation(body)
        temperature = _number(body, "temperature", 1.0)
        with engine.noise.in_flight() as batch:
            if self._latency_s:
                time.sleep(self._latency_s)
            generated = _or_refuse(
                lambda: engine.complete(
                    turns,
                    temperature=temperature,
                    seed=_integer(body, "seed"),
                    max_tokens=_max_tokens(body),
                    logprobs=bool(body.get("logprobs")),
                    batch=batch,
                )
            )
        answer = _chat_answer(engine, generated, body, with_tools=with_tools)
        return (
            {**answer, "prompt_token_ids": render(turns, open_reply=True)} if body.get("return_token_ids") else answer
        )

    def completions(self, body: Body) -> dict[str, Any]:
        """POST /v1/completions: scores a prompt that the chat template rendered; generates nothing."""
        engine = self._engine(body)
        _only_one(body)
        if (_integer(body, "max_tokens") or 0) > 1:
            raise ApiError(400, "this server completes chats only: max_tokens must be 0 or 1 here")
        ids = self._prompt_ids(engine, body.get("prompt"))
        asked = body.get("prompt_logprobs")
        scores = None if asked is None else _or_refuse(lambda: prompt_logprobs(engine, ids))
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "prompt_logprobs": scores}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 0, "total_tokens": len(ids)}
        return {**_head(engine, "cmpl-0", "text_completion"), "choices": [choice], "usage": usage}

    def tokenize(self, body: Body) -> dict[str, Any]:
        """POST /tokenize, of messages or of a prompt."""
        engine = self._engine(body)
        if "messages" in body:
            _, turns, _ = self._conversation(body)
            ids = render(turns, open_reply=body.get("add_generation_prompt", True))
        else:
            ids = self._prompt_ids(engine, body.get("prompt"), bounded=False)
        return {"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids}

    def detokenize(self, body: Body) -> dict[str, Any]:
        """POST /detokenize."""
        self._engine(body)
        return {"prompt": _or_refuse(lambda: decode(_ids(body.get("tokens"))))}

    def reset_prefix_cache(self, body: Body) -> dict[str, Any]:
        """POST /reset_prefix_cache: every conversation starts cold again."""
        for engine in self.engines.values():
            engine.forget()
        return {"success": True}

    def _engine(self, body: Body) -> Engine:
        name = body.get("model")
        if name is None and len(self.engines) == 1:
            return next(iter(self.engines.values()))
        engine = self.engines.get(name) if isinstance(name, str) else None
        if engine is None:
            raise ApiError(404, f"The model `{name}` does not exist; served: {', '.join(self.engines)}")
        return engine

    def _conversation(self, body: Body) -> tuple[Engine, list[Turn], bool]:
        engine = self._engine(body)
        _only_one(body)
        messages, tools = body.get("messages"), body.get("tools")
        if not isinstance(messages, list) or not messages:
            raise ApiError(400, "messages must be a list that is not empty")
        return engine, _or_refuse(lambda: turns_of(messages, tools)), bool(tools)

    def _prompt_ids(self, engine: Engine, prompt: object, *, bounded: bool = True) -> list[int]:
        ids = encode_prompt(prompt) if isinstance(prompt, str) else _ids(prompt)
        if bounded and len(ids) > engine.max_model_len:
            raise _too_long(f"the prompt has {len(ids)} tokens, the model takes {engine.max_model_len}")
        return ids


def prompt_logprobs(engine: Engine, ids: Sequence[int]) -> list[dict[str, Any] | None]:
    """As vLLM gives them: null for the first token, then one object a token, keyed by its id."""
    prompt = parse(ids)
    reply = [] if prompt.continuation is None else engine.score(prompt.turns, prompt.continuation)
    values: list[float] = [_foreign(number) for number in ids[: len(ids) - len(reply)]] + reply
    entries = [_prompt_entry(number, value) for number, value in zip(ids, values, strict=True)]
    return [None, *entries[1:]]


def _foreign(number: int) -> float:
    return _PER_BYTE * max(len(token_text(number).encode()), 1) if number >= 256 else 0.0


def _prompt_entry(number: int, value: float) -> dict[str, Any]:
    return {str(number): {"logprob": _sendable(value), "rank": 1, "decoded_token": token_text(number)}}


def _sendable(value: float) -> float | None:
    """JSON has no minus infinity: null, which readers take for an unknown log-probability."""
    return value if value > -math.inf else None


def _chat_answer(engine: Engine, generated: Generated, body: Body, *, with_tools: bool) -> dict[str, Any]:
    parts = parts_of(generated, with_tools=with_tools)
    message: dict[str, Any] = {"role": "assistant", "content": parts.content}
    if parts.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parts.tool_calls
        ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(generated),
        "finish_reason": "tool_calls" if parts.tool_calls else generated.finish_reason,
        "forkroll": {"propensity": generated.propensity, "seed": generated.seed, "entry": generated.entry},
    }
    if body.get("return_token_ids"):
        choice["token_ids"] = generated.ids
    answer = {**_head(engine, f"chatcmpl-{generated.digest}", "chat.completion"), "choices": [choice]}
    return {**answer, "usage": _usage(generated)}


def _head(engine: Engine, identity: str, kind: str) -> dict[str, Any]:
    return {
        "id": identity,
        "object": kind,
        "created": int(time.time()),
        "model": engine.profile.name,
        "system_fingerprint": engine.fingerprint,
    }


def _usage(generated: Generated) -> dict[str, Any]:
    prompt, completion = generated.prompt_tokens, len(generated.chunks)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generated.cached_tokens},
    }


def _logprobs(generated: Generated) -> dict[str, Any] | None:
    if generated.logprobs is None:
        return None
    pairs = zip(generated.chunks, generated.logprobs, strict=True)
    return {
        "content": [
            {
                "token": chunk.decode("utf-8", "replace"),
                "logprob": _sendable(value),
                "bytes": list(chunk),
                "top_logprobs": [],
            }
            for chunk, value in pairs
        ]
    }


def _or_refuse(answer: Callable[[], T]) -> T:
    try:
        return answer()
    except ContextOverflow as error:
        raise _too_long(str(error)) from error
    except (Malformed, ValueError) as error:
        raise ApiError(400, str(error)) from error


def _too_long(message: str) -> ApiError:
    return ApiError(400, f"This model's maximum context length is exceeded: {message}", "context_length_exceeded")


def _only_one(body: Body) -> None:
    if body.get("n") not in (None, 1):
        raise ApiError(400, "n must be 1")
    if body.get("stream"):
        raise ApiError(400, "stream is not offered")


def _integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ApiError(400, f"{name} must be an integer")
    return value


def _max_tokens(body: Body) -> int | None:
    newer = _integer(body, "max_completion_tokens")
    limit = _integer(body, "max_tokens") if newer is None else newer
    if limit is not None and limit < 1:
        raise ApiError(400, "max_tokens must be at least 1")
    return limit


def _number(body: Body, name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ApiError(400, f"{name} must be a number, not negative")
    return float(value)


def _ids(value: object) -> list[int]:
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return value
    raise ApiError(400, "a prompt is a string or a list of token ids that is not empty")
