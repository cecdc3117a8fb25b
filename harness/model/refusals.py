"""What an HTTP answer that is no completion means: the conversation is too long, try again, or someone must act.

Servers agree on status codes and little else. Words are looked for in the error's own message and code only, never in
what the server quotes of the request; the sources of the wordings are named beside them.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from harness.errors import ContextOverflow
from harness.model.keys import Key
from harness.model.patience import Malformed, Passing, Refused, named_wait
from harness.model.transport import Answer, parsed

_PASSING = frozenset({408, 409, 425, 429})
_FINAL_SERVER_ERRORS = frozenset({501, 505})
_THROTTLED = frozenset({429, 503, 529})
_NO_OVERFLOW = frozenset({401, 403, 404, 429})
_MESSAGE = 600
"""Characters of an error's message that are looked at and shown."""

_QUOTED = re.compile(r"""['"]input['"] ?:""")
"""After this, servers that validate with pydantic quote what they were sent: the words of a task, perhaps."""

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"})
_OVERFLOW = re.compile(
    "|".join(
        (
            r"maximum context (length|limit)",  # OpenAI, vLLM, SGLang, Mistral
            r"longer than the (maximum model length|model's context length)",  # vLLM's engine; SGLang
            r"too long to fit into the model",  # vLLM, multimodal prompts
            r"exceeds? (the )?(available )?context (size|window|length)",  # llama.cpp
            r"exceeds? the model'?s? (maximum )?context length",
            r"exceeds? the maximum (allowed )?(input |number of tokens)",  # SGLang; Gemini
            r"maximum (prompt|input) length",
            r"prompt is too long",  # Anthropic's compatible endpoint
            r"reduce the length of the (messages|input|prompt)",  # OpenAI, Groq
            r"`inputs` tokens \+ `max_new_tokens` must be",  # TGI
        )
    ),
    re.IGNORECASE,
)
_NO_TOOLS = re.compile(
    r"tool-call-parser"  # vLLM without a parser refuses every request that has tools
    r"|requires --jinja"  # llama.cpp without its template engine, as a server error
    r"|not support tools|support tool use|tools? (is|are) not supported",  # Ollama; OpenRouter
    re.IGNORECASE,
)
_ADVICE = (
    (_NO_TOOLS, "start the server with a tool parser, or set `dialect: text`"),
    (
        re.compile(r"system (role|message|prompt)s? (is |are )?not (supported|allowed|enabled)", re.IGNORECASE),
        "set `fold_system: true` for this model",
    ),
    (
        re.compile(r"roles? must (strictly )?alternate|successive user or assistant messages", re.IGNORECASE),
        "set `roles: alternate` for this model (and `fold_system: true` where its template takes no system role)",
    ),
    (re.compile(r"\bmax_completion_tokens\b.*instead", re.IGNORECASE), "set `max_tokens_key: max_completion_tokens`"),
    (re.compile(r"\btemperature\b", re.IGNORECASE), "where it takes no temperature set `omit: [temperature]`"),
    (re.compile(r"\breturn_token_ids\b", re.IGNORECASE), "set `omit: [return_token_ids]` for this model"),
    (re.compile(r"\bseed\b", re.IGNORECASE), "where it takes no seed set `omit: [seed]`"),
    (re.compile(r"\blogprobs\b", re.IGNORECASE), "where it gives none set `omit: [logprobs, return_token_ids]`"),
)
"""What to set when a refusal's message says so; the first that fits."""
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


def object_in(answer: Answer, model: str, url: str, key: Key) -> dict[str, Any]:
    """The JSON object of a good answer; anything else is raised as what it means, without `key` in its words."""
    if 300 <= answer.status < 400:
        place = key.hide(answer.headers.get("location", "-"))
        raise Refused(
            f"{url}: HTTP {answer.status} redirects to {place!r}, which is not followed: set `base_url` to where it is",
            answer.status,
        )
    if answer.status >= 400:
        _raise_for(answer.status, key.hide_in(_error_in(answer.body)), answer, model, url)
    value = parsed(answer.body)
    error = _error_of_choice(value) if "choices" in value else _error_object(value)
    if error is not None:
        _raise_for(_status_in(error), key.hide_in(error), answer, model, url)
    return value


def _raise_for(status: int | None, error: Mapping[str, Any], answer: Answer, model: str, url: str) -> NoReturn:
    """The exception that an error with this status stands for; without a status an error is malformed."""
    text = _QUOTED.split(" ".join(str(error.get("message") or "").split())[:_MESSAGE])[0]
    words = [str(error.get(name)) for name in ("type", "code") if isinstance(error.get(name), str)]
    text = " ".join([*(f"[{word[:60]}]" for word in words), text]).strip()
    if status not in _NO_OVERFLOW and (_OVERFLOW_CODES.intersection(words) or _OVERFLOW.search(text)):
        raise ContextOverflow(f"{url}: {text}")
    told = f"HTTP {status} for model {model!r}" + (f": {text}" if text else "")
    if status is None:
        raise Malformed(f"an error without a status: {text}")
    if _passes(status) and not _NO_MONEY.intersection(words) and not _NO_TOOLS.search(text):
        wait = named_wait(answer.headers, datetime.now(UTC))
        raise Passing(told, wait=wait, throttled=status in _THROTTLED)
    raise Refused(f"{url}: {told}{_advice(status, text)}", status)


def _passes(status: int) -> bool:
    return status in _PASSING or (status >= 500 and status not in _FINAL_SERVER_ERRORS)


def _advice(status: int, text: str) -> str:
    if status in (401, 403):
        return "; check the key that `api_key_env` or `api_key_file` names"
    return next((f"; {advice}" for words, advice in _ADVICE if words.search(text)), "")


def _error_in(body: bytes) -> dict[str, Any]:
    """The error that the body of a refusal holds, in whichever form."""
    try:
        value = parsed(body)
    except Malformed:
        return {"message": body.decode("utf-8", "replace")}
    found = _error_object(value)
    return found if found is not None else {"message": body.decode("utf-8", "replace")}


def _error_object(value: dict[str, Any]) -> dict[str, Any] | None:
    """OpenAI nests an error; vLLM used to answer with a bare one; FastAPI says `detail`."""
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    if value.get("object") == "error" or {"message", "code"} <= value.keys():
        return value
    detail = value.get("detail")
    if isinstance(detail, list):
        detail = "; ".join(str(item.get("msg")) for item in detail if isinstance(item, dict))
    return {"message": detail} if isinstance(detail, str) else None


def _error_of_choice(value: dict[str, Any]) -> dict[str, Any] | None:
    """A router puts the error of the server behind it into the choice."""
    choices = value["choices"]
    choice = choices[0] if isinstance(choices, list) and choices else None
    error = choice.get("error") if isinstance(choice, dict) else None
    return error if isinstance(error, dict) else None


def _status_in(error: Mapping[str, Any]) -> int | None:
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else None
