"""Any OpenAI-compatible server, over one HTTP connection pool.

Failures are of four kinds, the same for every arm: the conversation does not fit (ContextOverflow, at once);
permanent (ModelError, at once); passing (waited out, honouring Retry-After, a bounded number of times); malformed
(asked again, fewer times). A reply that was cut off in transit is thrown away whole and asked again. See `refusals`
for which is which, `patience` for how long, `gate` for how many at once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import ContextOverflow, ModelError
from harness.model import scoring
from harness.model.gate import Gate
from harness.model.keys import Key
from harness.model.ledger import Ledger
from harness.model.patience import Attempts, Passing, Patience, Trouble
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.model.reading import read_completion
from harness.model.refusals import object_in
from harness.model.request import RequestForm
from harness.model.transport import Transport


@dataclass(frozen=True)
class Served:
    """One model as a server lists it."""

    name: str
    context: int | None
    """Tokens that a conversation may have, prompt and reply together; None: the server does not say."""


class OpenAIClient:
    """A ModelClient for one served model. Threads may share it."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: Key | None = None,
        form: RequestForm | None = None,
        patience: Patience | None = None,
        gate: Gate | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`gate` is shared by the clients of one family; `say` is told at once what makes a run wait for long."""
        self._model = model
        self._base_url = base_url.rstrip("/")
        self._patience = patience or Patience()
        self._key, self._form, self._gate = key or Key(), form or RequestForm(), gate or Gate()
        self._transport = Transport(self._base_url, self._key, self._patience)
        self._ledger = Ledger(say)

    def close(self) -> None:
        """Close the connection pool."""
        self._transport.close()

    def served(self) -> list[Served]:
        """What the server serves."""
        listed = self._request("GET", "/models", None).get("data")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return [Served(str(entry.get("id")), _context_of(entry)) for entry in entries]

    def facts(self) -> dict[str, object]:
        """What was seen in use, for the manifest."""
        return {**self._ledger.facts(), **self._gate.facts()}

    def notes(self) -> list[str]:
        """What is less than a study asks for: parameters that are dropped, answers that lack something."""
        return [*self._form.notes(self._base_url), *self._ledger.notes()]

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        """Ask for the next assistant message."""
        body = self._form.body(self._model, messages, tools, sampling, seed)
        attempts = Attempts(self._patience, seed, self._base_url)
        while True:
            try:
                completion = replace(self._attempt(body), retries=attempts.failed)
            except Trouble as trouble:
                self._ledger.troubled(trouble, self._patience)
                time.sleep(attempts.wait_after(trouble))
            else:
                self._ledger.answered(completion, sampling)
                return completion

    def _attempt(self, body: Mapping[str, Any]) -> Completion:
        with self._gate.request() as ticket:
            clock = time.monotonic()
            try:
                answer = self._send("POST", self._base_url + "/chat/completions", body)
            except Passing as trouble:
                if trouble.throttled:
                    self._gate.refused(ticket, self._patience.capped(trouble.wait))
                raise
            self._gate.answered()
            return replace(read_completion(answer), in_flight=ticket.in_flight, seconds=time.monotonic() - clock)

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int | None:
        """Tokens of the prompt as the server's chat template makes it; None where the server does not count."""
        chat = {**self._form.prompt(messages, tools), "model": self._model, "add_generation_prompt": True}
        try:
            tokens = self._post("/tokenize", chat).get("tokens")
        except ContextOverflow:
            raise
        except ModelError:
            return None
        return len(tokens) or None if isinstance(tokens, list) else None

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """Teacher forcing by `prompt_logprobs`."""
        return scoring.score(self._post, self._model, self._form.prompt(messages, tools), said)

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        # vLLM serves /tokenize and /detokenize beside /v1, not below it.
        root = self._base_url.removesuffix("/v1") if path.endswith("tokenize") else ""
        return self._request("POST", path, body, root=root)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, root: str = "") -> dict[str, Any]:
        """One request without retries, for what is asked once."""
        try:
            return self._send(method, (root or self._base_url) + path, body)
        except Trouble as error:
            raise ModelError(f"{self._base_url}: {error}") from None

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """The JSON object that answers; where it echoes the key, without it and without the tokens that spell it."""
        answer = self._transport.send(method, url, body)
        value = object_in(answer, self._model, url, self._key)
        clean: dict[str, Any] = self._key.hide_in(value)
        if clean is value:
            return value
        self._ledger.echoed()
        choices = clean.get("choices")
        if isinstance(choices, list):
            kept = [_without_tokens(choice) for choice in choices]
            return {**clean, "choices": kept}
        return clean


def _without_tokens(choice: Any) -> Any:
    return {**choice, "logprobs": None, "token_ids": None} if isinstance(choice, dict) else choice


def _context_of(entry: Mapping[str, Any]) -> int | None:
    """vLLM and SGLang say `max_model_len`, llama.cpp `meta.n_ctx`, OpenRouter `context_length`."""
    meta = entry.get("meta")
    named = [entry.get("max_model_len"), entry.get("context_length"), entry.get("context_window")]
    named += [meta.get("n_ctx")] if isinstance(meta, dict) else []
    return next((value for value in named if isinstance(value, int) and value > 0), None)
