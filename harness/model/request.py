"""The body of a request, and what providers want otherwise than the rest.

Roles. Some chat templates take user and assistant in turn only. `alternate` joins neighbouring messages of one role
with an empty line between them (those that carry tool calls or answer one stay as they are); `fold_system` puts the
system message before the first message of the user. Both change what is sent and nothing that is recorded: the same
history gives the same messages, in every arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from harness.model.protocol import Message, Sampling

KNOWN_TO_IGNORE: Mapping[str, tuple[str, ...]] = {"api.anthropic.com": ("logprobs", "seed")}
"""Host -> parameters that its documentation says are accepted and ignored (read 2026-11-30). What a server leaves out
of its answers is seen in use, whatever its host."""


@dataclass(frozen=True)
class RequestForm:
    """How requests to one model are put."""

    max_tokens_key: str = "max_tokens"
    omit: frozenset[str] = frozenset()
    """Of temperature, seed, logprobs and return_token_ids: what is not sent."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    alternate: bool = False
    fold_system: bool = False

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> dict[str, Any]:
        """What is posted."""
        body: dict[str, Any] = {
            **self.extra_body,
            **self.prompt(messages, tools),
            "model": model,
            "temperature": sampling.temperature,
            self.max_tokens_key: sampling.max_tokens,
            "seed": seed,
        }
        if sampling.logprobs:
            body |= {"logprobs": True, "return_token_ids": True}
        return {key: value for key, value in body.items() if key not in self.omit}

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The part of a body that the server's chat template reads."""
        body: dict[str, Any] = {"messages": self.messages(messages)}
        if tools:
            body["tools"] = list(tools)
        if self.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        return body

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` in the order of roles that the server takes."""
        made = list(messages)
        if self.fold_system:
            made = fold_system(made)
        return alternate(made) if self.alternate else made

    def notes(self, base_url: str) -> list[str]:
        """What is sent otherwise than a study's reader would think, or to no effect."""
        vain = KNOWN_TO_IGNORE.get(urlsplit(base_url).hostname or "", ())
        ignored = [f"`{name}` is sent, and its server is known to ignore it" for name in vain if name not in self.omit]
        dropped = [f"`{name}` is not sent" for name in sorted(self.omit)]
        joined = ["neighbouring messages of one role are sent as one"] if self.alternate else []
        folded = ["the system message is sent as the start of the first user message"] if self.fold_system else []
        return ignored + dropped + joined + folded


def alternate(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of one role as one."""
    made: list[Message] = []
    for message in messages:
        if made and _joins(made[-1]) and _joins(message) and made[-1]["role"] == message["role"]:
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
    return made


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages that stand first, as the start of the first user message or as one of their own."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if not count:
        return list(messages)
    system = {**messages[0], "role": "user"}
    for message in messages[1:count]:
        system = _joined(system, message)
    rest = list(messages[count:])
    if rest and rest[0]["role"] == "user" and _joins(rest[0]):
        return [_joined(system, rest[0]), *rest[1:]]
    return [system, *rest]


def _joins(message: Message) -> bool:
    plain = isinstance(message.get("content"), str) and not message.get("tool_calls")
    return plain and message["role"] != "tool"


def _joined(first: Message, second: Message) -> dict[str, Any]:
    texts = [text for text in (first["content"], second["content"]) if text]
    return {**first, "content": "\n\n".join(texts)}
