"""What can be known of the models before the first call: they answer, are served, and can hold every opening.

Nothing is written before these checks are over. What cannot be checked is a line, never silence.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config import OpenAIModel, SimulatedModel, Study
from harness.errors import ConfigError, ContextOverflow, ModelError
from harness.model.patience import Refused
from harness.model.protocol import Sampling
from harness.record import Task
from harness.scaffold.protocol import Scaffold

if TYPE_CHECKING:
    from harness.clients import Spoken
    from harness.model.openai import OpenAIClient, Served

COUNTED = 8
"""Openings that are counted in tokens at most: the longest in bytes."""
SHOWN = 40
"""Served names that an error lists."""
TEMPLATE = 2048
"""Tokens that no chat template puts around an opening and the schema of its tools."""


def check_models(study: Study, tasks: Sequence[Task], scaffold: Scaffold, spoken: "Mapping[str, Spoken]") -> list[str]:
    """Raises ConfigError for a model that cannot do its part; what could not be checked, one line each."""
    notes: list[str] = []
    for name, one in spoken.items():
        if not isinstance(study.models[name], SimulatedModel):  # those are ours
            check = _Check(name, one.address, one.client, study.sampling.max_tokens, tasks, scaffold)
            notes += [f"model {name!r}: {note}" for note in check.notes()]
    return notes


@dataclass(frozen=True)
class _Check:
    """The checks of one model."""

    name: str
    model: OpenAIModel
    client: "OpenAIClient"
    reply: int
    """Tokens that a reply may have."""
    tasks: Sequence[Task]
    scaffold: Scaffold

    def notes(self) -> Iterator[str]:
        """What could not be checked."""
        served = self._served()
        if served is None:
            self._try_out()
            yield "its server lists no models; a trial request was answered"
        said = None if served is None else self._entry(served).context
        limits = [limit for limit in (self.model.context, said) if limit is not None]
        if not limits:
            yield f"its context length is not known (set `models.{self.name}.context`): not checked"
        elif not self._openings_fit(min(limits)):
            yield "its server counts no prompt tokens: openings are not checked for length"

    def _fault(self, what: str) -> ConfigError:
        return ConfigError(f"model {self.name!r}: {what}")

    def _served(self) -> "list[Served] | None":
        """What the server lists; None where it has no list."""
        try:
            return self.client.served()
        except ModelError as error:
            if isinstance(error, Refused) and error.status in (404, 405):
                return None
            what = "refused by" if isinstance(error, Refused) else "no answer from"
            raise self._fault(f"{what} {self.model.base_url}: {error}") from None

    def _entry(self, served: "Sequence[Served]") -> "Served":
        wanted = self.model.model
        found = next((entry for entry in served if entry.name in (wanted, f"models/{wanted}")), None)
        if found is None:
            names = _listed([entry.name for entry in served])
            raise self._fault(f"{self.model.base_url} does not serve {wanted!r}; it serves: {names}")
        return found

    def _try_out(self) -> None:
        trial = Sampling(max_tokens=16)
        try:
            self.client.complete([{"role": "user", "content": "Hi"}], tools=[], sampling=trial, seed=0)
        except ModelError as error:
            raise self._fault(
                f"{self.model.base_url} lists no models and refuses a trial request "
                f"(a `base_url` mostly ends in /v1): {error}"
            ) from None

    def _openings_fit(self, context: int) -> bool:
        """True when the longest openings and one reply fit; False when the server cannot count them."""
        if self.reply >= context:
            raise self._fault(
                f"`sampling.max_tokens` is {self.reply} and its context, prompt included, {context} tokens: "
                "lower the one or serve the model with more of the other"
            )
        for task in in_doubt(self.tasks, self.scaffold, context - self.reply):
            tokens = self._tokens(task)
            if tokens is None:
                return False
            if tokens + self.reply > context:
                raise self._fault(
                    f"the opening of task {task.instance_id} has {tokens} tokens; with `sampling.max_tokens` "
                    f"{self.reply} it does not fit the context of {context}: lower max_tokens, serve the model with a "
                    "longer context, or leave the task out"
                )
        return True

    def _tokens(self, task: Task) -> int | None:
        try:
            return self.client.prompt_tokens(self.scaffold.opening(task), self.scaffold.tools())
        except ContextOverflow as error:
            raise self._fault(f"the opening of task {task.instance_id} does not fit: {error}") from None


def _listed(names: Sequence[str]) -> str:
    shown = sorted(names)[:SHOWN]
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shown) + more if shown else "nothing"


def in_doubt(tasks: Sequence[Task], scaffold: Scaffold, room: int) -> list[Task]:
    """The tasks with the longest openings, as far as these might have more than `room` tokens.

    A token is a byte or more, so an opening with fewer bytes than that, and what a template puts around it, fits.
    """

    def size(task: Task) -> int:
        return len(json.dumps([scaffold.opening(task), scaffold.tools()], ensure_ascii=False, default=dict).encode())

    sizes = {task.instance_id: size(task) + TEMPLATE for task in tasks}
    longest = sorted(tasks, key=lambda task: sizes[task.instance_id], reverse=True)[:COUNTED]
    return [task for task in longest if sizes[task.instance_id] > room]
