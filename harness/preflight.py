"""What can be known of the models before the first call: they answer, are served, and can hold every opening.

Nothing is written before these checks are over. What cannot be checked is a line, never silence.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
            entry = _entry(name, one.address, one.client, notes)
            notes += _check_context(name, one.address, entry, one.client, study, tasks, scaffold)
    return notes


def _entry(name: str, model: OpenAIModel, client: "OpenAIClient", notes: list[str]) -> "Served | None":
    """The model as its server lists it; None where a server lists nothing and answers all the same."""
    try:
        served = client.served()
    except ModelError as error:
        if not isinstance(error, Refused) or error.status not in (404, 405):
            raise ConfigError(f"model {name!r}: no answer from {model.base_url}: {error}") from None
        _try_out(name, model, client)
        notes.append(f"model {name!r}: its server lists no models; a trial request was answered")
        return None
    found = next((entry for entry in served if entry.name in (model.model, f"models/{model.model}")), None)
    if found is None:
        names = _listed([entry.name for entry in served])
        raise ConfigError(f"model {name!r}: {model.base_url} does not serve {model.model!r}; it serves: {names}")
    return found


def _listed(names: Sequence[str]) -> str:
    shown = sorted(names)[:SHOWN]
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shown) + more if shown else "nothing"


def _try_out(name: str, model: OpenAIModel, client: "OpenAIClient") -> None:
    try:
        client.complete([{"role": "user", "content": "Hi"}], tools=[], sampling=Sampling(max_tokens=16), seed=0)
    except ModelError as error:
        raise ConfigError(
            f"model {name!r}: {model.base_url} lists no models and refuses a trial request "
            f"(a `base_url` mostly ends in /v1): {error}"
        ) from None


def _check_context(
    name: str,
    model: OpenAIModel,
    entry: "Served | None",
    client: "OpenAIClient",
    study: Study,
    tasks: Sequence[Task],
    scaffold: Scaffold,
) -> Iterator[str]:
    """Whether the longest opening and one reply fit."""
    limits = [limit for limit in (model.context, entry.context if entry else None) if limit is not None]
    if not limits:
        yield f"model {name!r}: its context length is not known (set `models.{name}.context`): not checked"
        return
    context, reply = min(limits), study.sampling.max_tokens
    if reply >= context:
        raise ConfigError(
            f"model {name!r}: `sampling.max_tokens` is {reply} and its context, prompt included, {context} tokens: "
            "lower the one or serve the model with more of the other"
        )
    for task in in_doubt(tasks, scaffold, context - reply):
        try:
            tokens = client.prompt_tokens(scaffold.opening(task), scaffold.tools())
        except ContextOverflow as error:
            raise ConfigError(f"model {name!r}: the opening of task {task.instance_id} does not fit: {error}") from None
        if tokens is None:
            yield f"model {name!r}: its server counts no prompt tokens: openings are not checked for length"
            return
        if tokens + reply > context:
            raise ConfigError(
                f"model {name!r}: the opening of task {task.instance_id} has {tokens} tokens; with "
                f"`sampling.max_tokens` {reply} it does not fit the context of {context}: lower max_tokens, serve the "
                "model with a longer context, or leave the task out"
            )


def in_doubt(tasks: Sequence[Task], scaffold: Scaffold, room: int) -> list[Task]:
    """The tasks with the longest openings, as far as these might have more than `room` tokens.

    A token is a byte or more, so an opening with fewer bytes than that, and what a template puts around it, fits.
    """

    def size(task: Task) -> int:
        return len(json.dumps([scaffold.opening(task), scaffold.tools()], ensure_ascii=False, default=dict).encode())

    sizes = {task.instance_id: size(task) + TEMPLATE for task in tasks}
    longest = sorted(tasks, key=lambda task: sizes[task.instance_id], reverse=True)[:COUNTED]
    return [task for task in longest if sizes[task.instance_id] > room]
