"""Teacher forcing over a served model: what it gives an action that was taken, token by token.

The prompt is the server's own rendering of the conversation. The action's tokens are those that were generated, where
ids were logged and spell the action under this server's tokenizer; else the text as this tokenizer cuts it. What a
server sends in place of a log-probability, or ties to another token, makes the action's unknown; nothing is imputed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import ContextOverflow, ModelError
from harness.model.digest import digest_of_ids
from harness.model.protocol import Said, Scored
from harness.model.reading import as_logprob
from harness.model.said import END_OF_TURN
from harness.record import How

Post = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(path, body) -> answer; the paths are /completions, /tokenize and /detokenize."""


class _Unknown(Exception):
    """The log-probability cannot be known; the text says why."""


@dataclass(frozen=True)
class _Ids:
    """What to score, as token ids."""

    before: tuple[int, ...]
    action: tuple[int, ...]
    how: How


def score(post: Post, model: str, chat: Mapping[str, Any], said: Said) -> Scored:
    """Score `said` as the next message of `chat`, a request body with messages, tools and template arguments.

    Raises ModelError where the server cannot be asked: that is no property of the action.
    """
    prompt: Sequence[int] = ()
    how: How | None = None
    try:
        prompt = _tokenize(post, {**chat, "model": model, "add_generation_prompt": True})
        ids = _ids_of(post, model, said)
        how = ids.how
        logprob = _sum(_forced(post, model, [*prompt, *ids.before, *ids.action]), ids.action)
    except ContextOverflow:
        return Scored(None, None, how, "the conversation does not fit the model's context", digest_of_ids(prompt))
    except _Unknown as unknown:
        return Scored(None, None, how, str(unknown), digest_of_ids(prompt))
    return Scored(logprob, len(ids.action), how, prompt_digest=digest_of_ids(prompt))


def _tokenize(post: Post, body: Mapping[str, Any]) -> tuple[int, ...]:
    tokens = post("/tokenize", body).get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise _Unknown("the server's /tokenize gives no token ids")
    return tuple(tokens)


def _ids_of(post: Post, model: str, said: Said) -> _Ids:
    """The ids that were generated if they mean the same to this server, else those of the text."""
    before, action = said.before_ids, said.action_ids
    if before is None or action is None:
        return _ids_of_text(post, model, said)
    if _is_spelled(said, _spell(post, model, [*before, *action])):
        return _Ids(before, action, "ids")
    return _ids_of_text(post, model, said)


def _is_spelled(said: Said, spelled: object) -> bool:
    """All of the text, and nothing after it but the end of the turn, which servers spell or do not."""
    text = said.before + said.action
    if not isinstance(spelled, str) or not spelled.startswith(text):
        return False
    rest = spelled[len(text) :]
    return rest in ("", said.end) or END_OF_TURN.fullmatch(rest.encode()) is not None


def _spell(post: Post, model: str, ids: Sequence[int]) -> object:
    """The text of `ids`; None where they are no tokens of this server's: an error then tells the same."""
    try:
        return post("/detokenize", {"model": model, "tokens": list(ids)}).get("prompt")
    except ModelError:
        return None


def _ids_of_text(post: Post, model: str, said: Said) -> _Ids:
    text = said.before + said.action
    if "\ufffd" in text:
        raise _Unknown("the text holds U+FFFD, in place of bytes that may be lost")
    plain = {"model": model, "add_special_tokens": False}
    whole = _tokenize(post, {**plain, "prompt": text})
    before = _tokenize(post, {**plain, "prompt": said.before}) if said.before else ()
    if whole[: len(before)] != before:
        raise _Unknown("to this tokenizer the action begins in the middle of a token")
    if _spell(post, model, whole) != text:
        raise _Unknown("this tokenizer's tokens do not spell the text")
    return _Ids(before, whole[len(before) :], "text")


def _forced(post: Post, model: str, prompt: Sequence[int]) -> Sequence[object]:
    """One entry a token of `prompt`, as the server gives them."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    answer = post("/completions", body)
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    scores = first.get("prompt_logprobs") or answer.get("prompt_logprobs")
    if not isinstance(scores, list):
        raise _Unknown("the server gives no prompt_logprobs")
    if len(scores) != len(prompt):
        raise _Unknown("the server gave more or fewer log-probabilities than there are tokens")
    return scores


def _sum(scores: Sequence[object], action: Sequence[int]) -> float:
    """Over the last tokens, which are the action's, each found under its own id."""
    entries = scores[len(scores) - len(action) :]
    return math.fsum(_one(entry, token) for entry, token in zip(entries, action, strict=True))


def _one(entry: object, token: int) -> float:
    given = entry.get(str(token)) if isinstance(entry, Mapping) else None
    if not isinstance(given, Mapping):
        raise _Unknown("the server gave none for one of the action's own tokens")
    value = as_logprob(given.get("logprob"))
    if value is None:
        raise _Unknown(f"the server sent {given.get('logprob')!r} in place of one")
    return value
