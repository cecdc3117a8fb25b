"""What a scaffold decides: the words around a task, how a reply is read, what of an observation is shown, what submits.

One scaffold speaks in one rollout, whichever models act in it: a history can be handed from one to the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from harness.model.protocol import Completion, Message
from harness.record import Action, Observation, Reply, Step, Task

Dialect = Literal["tool_call", "text"]
"""tool_call: one tool `bash`, one or more calls a turn. text: exactly one fenced block."""


class Scaffold(Protocol):
    """Stateless; threads may share it."""

    @property
    def name(self) -> str:
        """As a study names it."""
        ...

    @property
    def dialect(self) -> Dialect:
        """How actions are written."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that actions get beyond those of image and provider."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What a manifest should say: versions, and digests of templates."""
        ...

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Tool schemas to send with a request."""
        ...

    def opening(self, task: Task) -> Sequence[Message]:
        """The messages before the first step."""
        ...

    def parse(self, completion: Completion) -> Reply:
        """The reply that a completion holds; one that cannot be read carries `format_error`."""
        ...

    @property
    def action_marker(self) -> bytes:
        """What opens an action in the generated text: the log-probability of an action counts from there."""
        ...

    def observe(self, observation: Observation, action: Action, *, timeout_s: float) -> Observation:
        """The observation of `action`, with `shown` where the model does not simply read the output as text."""
        ...

    def step_messages(self, step: Step) -> Sequence[Message]:
        """The messages that `step` adds to the conversation."""
        ...

    def submission_of(self, observation: Observation) -> str | None:
        """What a submitting command submitted ("" when nothing); None when the observation is no submission."""
        ...
