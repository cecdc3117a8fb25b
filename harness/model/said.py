"""Where in a generated message its action begins. Every log-probability of an action counts from there.

What cannot be told apart exactly is unclear by name; nothing here guesses a token or a boundary.
"""

import re
from collections.abc import Sequence
from itertools import accumulate

from harness.model.protocol import Said
from harness.record import Reply, Tokens

END_OF_TURN = re.compile(rb"<\|[A-Za-z0-9_]+\|>|</s>|<eos>|<end_of_turn>|<\xef\xbd\x9c.+\xef\xbd\x9c>")
"""How the families in use spell the token that ends a turn, where a server logs it."""


class Unclear(Exception):
    """What was generated, or where its action begins, cannot be known; the text says why."""


def first_token(tokens: Tokens, marker: bytes, text: str, reasoning: str | None) -> int:
    """Index of the token at which `marker` opens the action. Raises Unclear.

    `text` and `reasoning` are what the server made of the tokens: the tokens must hold both, else they are not its
    tokens; what the reasoning merely mentions opens no action.
    """
    pieces = _pieces(tokens)
    whole = b"".join(pieces)
    said = _end_of(reasoning or "", whole, 0)
    _end_of(text, whole, said)
    start = whole.find(marker, said)
    if start < 0:
        raise Unclear("no action begins in the reply")
    return _boundary(pieces, start)


def _end_of(part: str, whole: bytes, start: int) -> int:
    sought = part.strip().encode()
    found = whole.find(sought, start)
    if found < 0:
        raise Unclear("the logged tokens do not spell the reply")
    return found + len(sought)


def _pieces(tokens: Tokens) -> Sequence[bytes]:
    if tokens.pieces is None:
        raise Unclear(_why_no_pieces(tokens))
    if len(tokens.pieces) != len(tokens.logprobs):
        raise Unclear("tokens and log-probabilities do not pair up")
    return tokens.pieces


def _why_no_pieces(tokens: Tokens | None) -> str:
    if tokens is None:
        return "no tokens were logged"
    return "not every token's bytes were logged" if tokens.without_bytes else "the logged tokens do not spell the reply"


def _boundary(pieces: Sequence[bytes], start: int) -> int:
    starts = list(accumulate(map(len, pieces), initial=0))
    here = [at for at, _ in enumerate(pieces) if starts[at] == start]
    if not here:
        raise Unclear("the action begins in the middle of a token")
    if len(here) > 1:
        raise Unclear("a token without bytes stands where the action begins")
    return here[0]


def said_of(reply: Reply, marker: bytes, *, as_text: bool) -> Said:
    """The reply as it was generated. Raises Unclear.

    `as_text`: actions are written in the message's text, so that the text alone tells it where no tokens were
    logged. A tool call's markup is known from tokens only: how a template wrote it cannot be told from its parts.
    """
    if reply.tokens is not None and reply.tokens.pieces is not None:
        return _from_tokens(reply, reply.tokens, marker)
    lacks = _why_no_pieces(reply.tokens)
    if not as_text:
        raise Unclear(f"{lacks}, so how the call was written is not known")
    if reply.reasoning is not None:
        raise Unclear(f"{lacks}, so how the reasoning was written is not known")
    before, found, rest = reply.text.partition(marker.decode())
    if not found:
        raise Unclear("no action begins in the reply")
    return Said(before, found + rest)


def _from_tokens(reply: Reply, tokens: Tokens, marker: bytes) -> Said:
    first, pieces = first_token(tokens, marker, reply.text, reply.reasoning), _pieces(tokens)
    last = len(pieces) - bool(END_OF_TURN.fullmatch(pieces[-1]))
    ids = tokens.ids
    return Said(
        before=_text(pieces[:first]),
        action=_text(pieces[first:last]),
        end=_text(pieces[last:]),
        before_ids=None if ids is None else ids[:first],
        action_ids=None if ids is None else ids[first:],
    )


def _text(pieces: Sequence[bytes]) -> str:
    """U+FFFD for bytes that are not UTF-8: a reply cut in the middle of a character."""
    return b"".join(pieces).decode("utf-8", "replace")
