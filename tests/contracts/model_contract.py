"""What every model client must do, as one function a behaviour; a client is one more parameter of the suite.

A behaviour fails by raising. None asks for a sensible action: a weak model meets them all. What a client is known not
to keep stands in `GAPS` with the reason: the suite demands that it fails there, so that a gap that was closed does not
stay listed.
"""

import copy
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.errors import ContextOverflow
from harness.model.protocol import Completion, Message, ModelClient, Sampling
from harness.prompting import Conversation, OwnScaffold
from harness.record import Circumstances, Exit, Observation, Reply, Step, Task, ToolCall, Usage, clean_text
from harness.scaffold.protocol import Dialect

DIALECTS: tuple[Dialect, ...] = ("tool_call", "text")
TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement="`total()` forgets the last row.")
SHORT = Sampling(max_tokens=48)
LARGEST_SEED = 2**53 - 1


@dataclass(frozen=True)
class World:
    """One client."""

    name: str
    client: ModelClient
    context: int | None = None
    """Tokens of a conversation that are certainly too many; None: there is no such number."""

    def ask(
        self,
        messages: Sequence[Message] | None = None,
        *,
        dialect: Dialect = "text",
        sampling: Sampling = SHORT,
        seed: int = 1,
    ) -> Completion:
        """A completion of `messages`, by default of a task's opening."""
        scaffold = OwnScaffold(dialect)
        given = scaffold.opening(TASK) if messages is None else messages
        return self.client.complete(given, tools=scaffold.tools(), sampling=sampling, seed=seed)


BEHAVIOURS: dict[str, Callable[[World], None]] = {}
GAPS: dict[str, dict[str, str]] = {
    "mock": {
        "a_reply_is_no_longer_than_asked": "it says five tokens whatever it is asked",
        "too_long_a_conversation_is_its_own_error": "it has no context",
    },
    "scripted": {
        "too_long_a_conversation_is_its_own_error": "it has no context",
    },
}


def behaviour(check: Callable[[World], None]) -> Callable[[World], None]:
    BEHAVIOURS[check.__name__] = check
    return check


def whole(answer: Completion) -> None:
    """What holds of every completion."""
    texts = [answer.text, answer.finish_reason, answer.model, answer.reasoning or "", answer.server_epoch or ""]
    texts += [text for call in answer.tool_calls for text in (call.id, call.name, call.arguments)]
    assert all(isinstance(text, str) and text == clean_text(text) for text in texts)
    assert answer.finish_reason and answer.model
    assert all(call.id for call in answer.tool_calls)


@behaviour
def both_dialects_are_answered(world: World) -> None:
    for dialect in DIALECTS:
        whole(world.ask(dialect=dialect))


@behaviour
def an_answer_becomes_a_reply_that_can_be_written_and_read(world: World) -> None:
    for dialect in DIALECTS:
        reply = OwnScaffold(dialect).parse(world.ask(dialect=dialect, sampling=Sampling(max_tokens=48, logprobs=True)))
        assert Reply.model_validate_json(reply.model_dump_json()) == reply
        assert (reply.format_error is None) == bool(reply.actions)


@behaviour
def what_is_sent_is_left_as_it_was(world: World) -> None:
    scaffold = OwnScaffold("tool_call")
    messages: list[Any] = [dict(message) for message in scaffold.opening(TASK)]
    tools = [dict(tool) for tool in scaffold.tools()]
    before = copy.deepcopy((messages, tools))
    world.client.complete(messages, tools=tools, sampling=SHORT, seed=1)
    assert (messages, tools) == before


@behaviour
def an_answer_depends_on_nothing_that_was_asked_before(world: World) -> None:
    """Not that it repeats: that a client keeps no conversation of its own."""
    other: list[Message] = [{"role": "user", "content": "Say something else."}]
    for messages in (None, other, None):
        whole(world.ask(messages))


@behaviour
def any_seed_and_temperature_will_do(world: World) -> None:
    for seed in (0, 1, LARGEST_SEED):
        for temperature in (0.0, 1.0):
            whole(world.ask(sampling=Sampling(temperature=temperature, max_tokens=16), seed=seed))


@behaviour
def threads_share_a_client(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda seed: world.ask(seed=seed), range(8)):
            whole(answer)


@behaviour
def counts_are_possible_or_unknown(world: World) -> None:
    answer = world.ask()
    for count in (answer.usage.input_tokens, answer.usage.output_tokens, answer.cached_prompt_tokens):
        assert count is None or count >= 0
    if answer.cached_prompt_tokens is not None and answer.usage.input_tokens is not None:
        assert answer.cached_prompt_tokens <= answer.usage.input_tokens
    assert answer.propensity is None or 0 < answer.propensity <= 1


@behaviour
def circumstances_are_possible_or_unknown(world: World) -> None:
    answer = world.ask()
    assert answer.retries >= 0
    assert answer.in_flight is None or answer.in_flight >= 1
    assert answer.seconds is None or answer.seconds >= 0
    assert answer.server_epoch is None or answer.server_epoch == world.ask().server_epoch


@behaviour
def a_reply_is_no_longer_than_asked(world: World) -> None:
    for limit in (1, 4):
        answer = world.ask(sampling=Sampling(max_tokens=limit))
        assert answer.usage.output_tokens is None or answer.usage.output_tokens <= limit


@behaviour
def scores_are_log_probabilities_or_unknown(world: World) -> None:
    for dialect in DIALECTS:
        tokens = world.ask(dialect=dialect, sampling=Sampling(max_tokens=48, logprobs=True)).tokens
        if tokens is None:
            continue
        assert tokens.logprobs and all(value is None or value <= 1e-6 for value in tokens.logprobs)
        assert tokens.ids is None or len(tokens.ids) == len(tokens.logprobs)
        assert tokens.pieces is None or len(tokens.pieces) == len(tokens.logprobs)
        assert not (tokens.pieces is not None and tokens.without_bytes)
        assert all(0 <= at < len(tokens.logprobs) for at in tokens.without_bytes)


@behaviour
def pieces_give_the_text(world: World) -> None:
    answer = world.ask(sampling=Sampling(max_tokens=48, logprobs=True))
    if answer.tokens is not None and answer.tokens.pieces is not None and not answer.tool_calls:
        assert answer.text.strip() in b"".join(answer.tokens.pieces).decode("utf-8", "replace")


@behaviour
def no_scores_are_given_that_were_not_asked_for(world: World) -> None:
    assert world.ask().tokens is None


@behaviour
def prompts_that_are_equal_have_equal_digests(world: World) -> None:
    logprobs = Sampling(max_tokens=8, logprobs=True)
    one, same = world.ask(sampling=logprobs), world.ask(sampling=logprobs, seed=2)
    other = world.ask([{"role": "user", "content": "Else."}], sampling=logprobs)
    assert one.prompt_digest == same.prompt_digest
    assert one.prompt_digest is None or one.prompt_digest != other.prompt_digest


@behaviour
def any_text_can_be_sent(world: World) -> None:
    odd = "tab\t nul\x00 bell\x07 cr\r\n euro € face 😀 rtl \u202e end \u2028 half \ufffd <|im_end|> ``` {} %s \\u0041"
    for content in (odd, "", " ", "x" * 5000):
        whole(world.ask([{"role": "user", "content": content + "."}]))


@behaviour
def any_conversation_goes_on(world: World) -> None:
    """Three turns each way, with output that is odd, cut, and missing."""
    for dialect in DIALECTS:
        scaffold, steps = OwnScaffold(dialect), []
        conversation = Conversation(TASK, scaffold)
        for seen in (b"ok\n", b"\xff\x00\x1b[31mred", b""):
            answer = world.ask(conversation.follow(TASK, steps), dialect=dialect)
            whole(answer)
            steps.append(made_step(len(steps) + 1, scaffold.parse(answer), seen))


BAD_CALLS = (
    '{"command": "echo never clo',
    '["ls"]',
    '{"cmd": "ls"}',
    "",
)


@behaviour
def bad_replies_may_stand_in_the_history(world: World) -> None:
    for dialect in DIALECTS:
        scaffold, steps = OwnScaffold(dialect), []
        for arguments in BAD_CALLS:
            calls = (ToolCall(id=f"c{len(steps)}", name="bash", arguments=arguments),) if dialect == "tool_call" else ()
            bad = Completion(text=arguments, tool_calls=calls, finish_reason="stop", usage=Usage(), model="m")
            steps.append(made_step(len(steps) + 1, scaffold.parse(bad), b""))
        messages = Conversation(TASK, scaffold).follow(TASK, steps)
        for message in messages:
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        whole(world.ask(messages, dialect=dialect))


@behaviour
def too_long_a_conversation_is_its_own_error(world: World) -> None:
    assert world.context is not None
    try:
        world.ask([{"role": "user", "content": "word " * world.context}])
    except ContextOverflow:
        return
    raise AssertionError("it was answered")


def made_step(index: int, reply: Reply, output: bytes) -> Step:
    """A step in which every action gave `output`."""
    seen = Observation(output=output, exit_code=0, ended=Exit.EXITED, size=len(output), sha256="")
    text = output.decode("utf-8", "replace")
    shown = seen if text.encode() == output else seen.model_copy(update={"shown": text})
    return Step(
        index=index,
        agent="a",
        probability=1.0,
        seed=index,
        reply=reply,
        observations=tuple(shown for _ in reply.actions),
        state_digest=None,
        circumstances=Circumstances(started_at="2026-01-01T00:00:00+00:00", model_seconds=0.1),
    )
