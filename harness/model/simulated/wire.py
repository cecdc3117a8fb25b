"""Between OpenAI's chat form and the model's raw text: messages to turns, a reply to content and tool calls.

What a call to `turns_of` makes of a reply that `parts_of` took apart is the reply itself, so a conversation that comes
back is the conversation that was sampled.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.model.simulated.engine import Generated
from harness.model.simulated.menu import call_arguments, call_text
from harness.model.simulated.tokens import MARKERS, ROLES, Turn
from harness.record import ToolCall

_CALL_MARKER = MARKERS[0].decode()


class Malformed(ValueError):
    """Messages that are not in OpenAI's form; the text says where."""


class Parts(NamedTuple):
    """A reply as a server returns it."""

    content: str
    tool_calls: tuple[ToolCall, ...]


def turns_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[Turn]:
    """The conversation as the chat template renders it, message by message."""
    turns = [Turn("tools", json.dumps(tools, sort_keys=True, separators=(",", ":")))] if tools else []
    for at, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES or role == "tools":
            raise Malformed(f"messages[{at}]: role must be system, user, assistant or tool")
        turns.append(Turn(role, _text(message, at)))
    return turns


def _text(message: Mapping[str, Any], at: int) -> str:
    content, calls = _content(message.get("content"), at), message.get("tool_calls")
    if not calls:
        return content
    try:
        texts = [_call(call["function"]) for call in calls]
    except (KeyError, TypeError) as error:
        raise Malformed(f"messages[{at}]: tool_calls are not in OpenAI's form") from error
    return "\n".join([content, *texts] if content else texts)


def _content(content: object, at: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise Malformed(f"messages[{at}]: content must be text")


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return call_text(raw, function["name"])


def parts_of(generated: Generated, *, with_tools: bool) -> Parts:
    """Content and tool calls of a reply; a call that was cut stays in the content as text."""
    note, marker, rest = generated.text.partition(_CALL_MARKER)
    if not with_tools or not marker or generated.finish_reason == "length":
        return Parts(generated.text, ())
    calls = [
        ToolCall(id=f"call-{generated.digest}-{at}", name="bash", arguments=arguments)
        for at, arguments in enumerate(call_arguments(marker + rest))
    ]
    return Parts(note.removesuffix("\n"), tuple(calls))
