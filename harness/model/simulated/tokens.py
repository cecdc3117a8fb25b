"""Text to token ids and back, without a vocabulary.

A token is a chunk of at most four bytes. A chunk ends with its line and never spans the start of an action's
marker, so that a note and an action tokenise alike together and apart. Ids invert: 1 followed by the chunk's bytes,
read as a big-endian number, hence 256 and above; ids below 256 are the control tokens of the chat template:

    <|start|> <role> text of the message ... <|end|>          one message; the last one may be open
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

START, END = 1, 2
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6, "tools": 7}
"""`tools` opens the message that carries the tool schemas; it comes first."""
MARKERS = (b"<tool_call>", b"```bash\n")

_ROLE_NAMES = {number: name for name, number in ROLES.items()}
_TEXTS = {START: "<|start|>", END: "<|end|>", **{number: f"<|{name}|>" for name, number in ROLES.items()}}
_NUMBERS = {text: number for number, text in _TEXTS.items()}
_CONTROL = re.compile("(" + "|".join(re.escape(text) for text in _NUMBERS) + ")")
_CHUNK = re.compile(rb"[^\n]{0,3}\n|[^\n]{1,4}")
_MARKER = re.compile(b"(?=" + b"|".join(re.escape(marker) for marker in MARKERS) + b")")
_LIMIT = 2 << 32  # a 1 and four bytes


class Turn(NamedTuple):
    """One message as the template renders it; an assistant's tool calls are part of its text."""

    role: str
    text: str


class Prompt(NamedTuple):
    """A rendered conversation."""

    turns: tuple[Turn, ...]
    continuation: tuple[int, ...] | None
    """Ids of the assistant message that is still open; None when every message is closed."""


def chunks(text: bytes) -> list[bytes]:
    """`text` cut into tokens."""
    if MARKERS[0] not in text and MARKERS[1] not in text:
        return _CHUNK.findall(text)
    return [chunk for part in _MARKER.split(text) for chunk in _CHUNK.findall(part)]


def token_id(chunk: bytes) -> int:
    """Id of a chunk."""
    return int.from_bytes(b"\x01" + chunk, "big")


def chunk_of(number: int) -> bytes:
    """Bytes of an ordinary token; ValueError for a control token or a number that is no token."""
    if not 256 <= number < _LIMIT:
        raise ValueError(f"{number} is not an ordinary token")
    whole = number.to_bytes((number.bit_length() + 7) // 8, "big")
    if whole[0] != 1:
        raise ValueError(f"{number} is not a token")
    return whole[1:]


def token_text(number: int) -> str:
    """How a token reads; bytes that are not UTF-8 by themselves as U+FFFD."""
    return _TEXTS[number] if number in _TEXTS else chunk_of(number).decode("utf-8", "replace")


def encode(text: str) -> list[int]:
    """Ids of plain text: nothing in it is read as a control token."""
    return [token_id(chunk) for chunk in chunks(text.encode("utf-8", "surrogatepass"))]


def encode_prompt(text: str) -> list[int]:
    """Ids of a prompt given as a string: control tokens are read where they are spelled out."""
    ids: list[int] = []
    for part in _CONTROL.split(text):
        ids += [_NUMBERS[part]] if part in _NUMBERS else encode(part)
    return ids


def decode(ids: Iterable[int]) -> str:
    """Text of `ids`, control tokens spelled out; ValueError for a number that is no token."""
    parts = [_TEXTS[number].encode() if number in _TEXTS else chunk_of(number) for number in ids]
    return b"".join(parts).decode("utf-8", "replace")


def render_turn(turn: Turn) -> list[int]:
    """Ids of one closed message."""
    return [START, ROLES[turn.role], *encode(turn.text), END]


def render(turns: Iterable[Turn], *, open_reply: bool) -> list[int]:
    """Ids of a conversation, with the opening of the next assistant message where `open_reply`."""
    ids = [number for turn in turns for number in render_turn(turn)]
    return [*ids, START, ROLES["assistant"]] if open_reply else ids


def parse(ids: Sequence[int]) -> Prompt:
    """The conversation that `ids` renders; ValueError where they do not follow the template."""
    turns: list[Turn] = []
    position = 0
    while position < len(ids):
        role = _role_at(ids, position)
        end = _end_after(ids, position + 2)
        if end is None:
            if role != "assistant":
                raise ValueError(f"the open message belongs to {role}, not to the assistant")
            return Prompt(tuple(turns), tuple(ids[position + 2 :]))
        text = b"".join(chunk_of(number) for number in ids[position + 2 : end])
        turns.append(Turn(role, text.decode("utf-8", "surrogatepass")))
        position = end + 1
    return Prompt(tuple(turns), None)


def _role_at(ids: Sequence[int], position: int) -> str:
    opening = list(ids[position : position + 2])
    if len(opening) < 2 or opening[0] != START or opening[1] not in _ROLE_NAMES:
        raise ValueError(f"no message opens at token {position}")
    return _ROLE_NAMES[opening[1]]


def _end_after(ids: Sequence[int], position: int) -> int | None:
    return next((index for index in range(position, len(ids)) if ids[index] == END), None)
