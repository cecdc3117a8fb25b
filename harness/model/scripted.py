"""A model that answers call n of a conversation with command n. For tests, demonstrations and forced actions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import ModelError
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.record import ToolCall, Usage


class ScriptedClient:
    """Depends on the number of assistant messages alone. Stateless, so threads may share it."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = tuple(commands)

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        """The next command; ModelError when the script is over."""
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(self._commands):
            raise ModelError(f"the script holds {len(self._commands)} commands and call {turn + 1} was made")
        command = self._commands[turn]
        if not tools:
            return self._reply(f"```bash\n{command}\n```", ())
        arguments = json.dumps({"command": command})
        return self._reply("", (ToolCall(id=f"call_{turn + 1}", name="bash", arguments=arguments),))

    def _reply(self, text: str, calls: tuple[ToolCall, ...]) -> Completion:
        reason = "tool_calls" if calls else "stop"
        return Completion(text=text, tool_calls=calls, finish_reason=reason, usage=Usage(), model="scripted")

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """Unknown."""
        return Scored(None, None, None, "a script has no probabilities")
