"""The simulated model in this process: the same engine as the server's, without the wire.

It answers what the server answers, except for what only a server has: nothing is in flight beside the call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.model.digest import digest_of_ids
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.model.simulated.engine import Engine, Generated
from harness.model.simulated.noise import Kind, Noise
from harness.model.simulated.profiles import Profile
from harness.model.simulated.tokens import Turn, encode, render
from harness.model.simulated.wire import parts_of, turns_of
from harness.record import How, Tokens, Usage


class SimulatedClient:
    """A model client over an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def of(cls, profile: Profile, noise: Kind = "iid", epoch: str = "0") -> "SimulatedClient":
        """A client with an engine of its own."""
        return cls(Engine(profile, Noise(noise, epoch)))

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        """The next assistant message."""
        turns = turns_of(messages, tools)
        with self.engine.noise.in_flight() as batch:
            generated = self.engine.complete(
                turns,
                temperature=sampling.temperature,
                seed=seed,
                max_tokens=sampling.max_tokens,
                logprobs=sampling.logprobs,
                batch=batch,
            )
        done = self._completion(generated, with_tools=bool(tools))
        return replace(done, prompt_digest=_prompt_digest(turns)) if sampling.logprobs else done

    def _completion(self, generated: Generated, *, with_tools: bool) -> Completion:
        parts = parts_of(generated, with_tools=with_tools)
        tokens = None
        if generated.logprobs is not None:
            tokens = Tokens(
                ids=tuple(generated.ids),
                logprobs=tuple(finite(value) for value in generated.logprobs),
                pieces=generated.chunks,
            )
        return Completion(
            text=parts.content,
            tool_calls=parts.tool_calls,
            finish_reason=_finish(generated, called=bool(parts.tool_calls)),
            usage=Usage(input_tokens=generated.prompt_tokens, output_tokens=len(generated.chunks)),
            model=self.engine.profile.name,
            tokens=tokens,
            propensity=generated.propensity,
            cached_prompt_tokens=generated.cached_tokens,
            server_epoch=self.engine.fingerprint,
            in_flight=1,
        )

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """By the ids that were logged, else by those of the text, which never join a note and an action."""
        how: How = "text"
        before, ids = encode(said.before), encode(said.action)
        if said.before_ids is not None and said.action_ids is not None:
            before, ids, how = list(said.before_ids), list(said.action_ids), "ids"
        turns = turns_of(messages, tools)
        total, prompt = math.fsum(self.engine.score(turns, before + ids)[len(before) :]), _prompt_digest(turns)
        if total == -math.inf:
            return Scored(None, None, how, "the model never says it", prompt)
        return Scored(total, len(ids), how, prompt_digest=prompt)


def _prompt_digest(turns: Sequence[Turn]) -> str | None:
    return digest_of_ids(render(turns, open_reply=True))


def _finish(generated: Generated, *, called: bool) -> str:
    return "tool_calls" if called else generated.finish_reason


def finite(value: float) -> float | None:
    """A probability of zero has no logarithm: None."""
    return value if value > -math.inf else None
