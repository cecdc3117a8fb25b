"""An answer becomes a completion. What a completion consists of must be there; all else is read or unknown.

A message without text and without a call is a completion (`Reply.is_unrecognised` names it): the model did answer.
An answer without a message, or with one whose text or calls are of another kind, is Malformed. Measures that are not
of the right kind (counts, log-probabilities, ids) are unknown, never guessed.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model.digest import digest_of_ids
from harness.model.patience import Malformed
from harness.model.protocol import Completion
from harness.record import Tokens, ToolCall, Usage, clean_text


def read_completion(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a chat completion."""
    choice = _first_choice(answer)
    message, usage = choice["message"], _object(answer.get("usage"))
    text = _read_text(message)
    calls = _read_calls(message.get("tool_calls"))
    return Completion(
        text=text,
        tool_calls=calls,
        finish_reason=clean_text(str(choice.get("finish_reason"))),
        usage=Usage(
            input_tokens=_count(usage.get("prompt_tokens")), output_tokens=_count(usage.get("completion_tokens"))
        ),
        model=clean_text(str(answer.get("model") or "")),
        reasoning=_optional_text(message.get("reasoning_content")) or _optional_text(message.get("reasoning")),
        tokens=_read_tokens(choice, None if calls else text),
        prompt_digest=digest_of_ids(_ids(answer.get("prompt_token_ids") or choice.get("prompt_token_ids"))),
        propensity=as_number(_object(choice.get("forkroll")).get("propensity")),
        cached_prompt_tokens=_count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
        server_epoch=_optional_text(answer.get("system_fingerprint")),
    )


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise Malformed("no choices")
    if not isinstance(choice.get("message"), dict):
        raise Malformed("a choice without a message")
    return choice


def _read_text(message: Mapping[str, Any]) -> str:
    """The text of a message: a string, or a list of parts of which some are text; a refusal where there is none."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise Malformed("the content of the message is no text")
    return clean_text(content or "") or _optional_text(message.get("refusal")) or ""


def _read_calls(calls: object) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise Malformed("tool_calls is no list")
    return tuple(_read_call(call, number) for number, call in enumerate(calls, 1))


def _read_call(call: object, number: int) -> ToolCall:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise Malformed("a tool call without a function")
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = "" if arguments is None else json.dumps(arguments)
    return ToolCall(
        id=clean_text(str(call.get("id") or f"call_{number}")),
        name=clean_text(str(function.get("name") or "")),
        arguments=_without_halves(clean_text(arguments)),
    )


_ESCAPES = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def _without_halves(arguments: str) -> str:
    """JSON text in which an escape of half a character, valid JSON that no reader can write again, is U+FFFD."""
    return _ESCAPES.sub(lambda found: "\\ufffd" if found["half"] else found[0], arguments)


_REPLACEMENT = "\ufffd".encode()


def as_logprob(value: object) -> float | None:
    """`value` as a log-probability; None for what servers send in place of one (-9999, -inf, null)."""
    number = as_number(value)
    return None if number is None or number <= -9999 else number


def as_number(value: object) -> float | None:
    """`value` as a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read_tokens(choice: Mapping[str, Any], text: str | None) -> Tokens | None:
    """The tokens of a choice, None where it names none; `text` is what they must hold, None where that is not known."""
    content = _object(choice.get("logprobs")).get("content")
    if not isinstance(content, list) or not content:
        return None
    entries = [_object(entry) for entry in content]
    logprobs = tuple(as_logprob(entry.get("logprob")) for entry in entries)
    honest = text is not None and "\ufffd" in text
    pieces = [_bytes_of(entry.get("bytes"), honest=honest) for entry in entries]
    without = tuple(at for at, piece in enumerate(pieces) if piece is None)
    known = tuple(piece for piece in pieces if piece is not None)
    whole = not without and (text is None or _gives(known, text))
    ids = _ids(choice.get("token_ids"))
    # Ids are kept only when they align one to one: an end-of-text id without a score would shift them.
    aligned = ids is not None and len(ids) == len(logprobs)
    return Tokens(
        ids=ids if aligned else None, logprobs=logprobs, pieces=known if whole else None, without_bytes=without
    )


def _bytes_of(value: object, *, honest: bool) -> bytes | None:
    """The bytes of a token; None where they are not given, or are those of U+FFFD that the text does not have: vLLM
    sends these for a token that is a part of a character."""
    if not isinstance(value, list) or not all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return None
    given = bytes(value)
    return given if honest or _REPLACEMENT not in given else None


def _gives(pieces: Sequence[bytes], text: str) -> bool:
    """Whether the tokens' bytes hold the text: reasoning, stop words and end marks may stand around it."""
    return text.strip() in clean_text(b"".join(pieces).decode("utf-8", "replace"))


def _ids(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(_count(item) is not None for item in value):
        return None
    return tuple(value)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _optional_text(value: object) -> str | None:
    return clean_text(value) if isinstance(value, str) and value else None
