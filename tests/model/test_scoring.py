"""Teacher forcing: over the simulated server as it is, and over a small server of ours that misbehaves on order."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ModelError
from harness.model.openai import OpenAIClient
from harness.model.protocol import Message, Said, Sampling, Scored
from harness.model.said import Unclear, first_token, said_of
from harness.model.scoring import digest_of_ids
from harness.model.scripted import ScriptedClient
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.process import SimulatedServer
from harness.model.simulated.profiles import PROFILES
from harness.prompting import OwnScaffold, opening, parse, tools
from harness.record import Reply, Task, Tokens, ToolCall, Usage
from harness.scaffold.protocol import Dialect
from harness.tasks.pocket import pocket_tasks
from tests.bug_cases.parts import shared_case
from tests.model.served import Answerer, Words, serving

FACTS = next(iter(pocket_tasks().values())).facts
TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement=FACTS["problem_statement"])
DIALECTS: tuple[Dialect, ...] = ("tool_call", "text")
MARKER = b"```bash\n"


# --- where the action begins


def reply_of(
    pieces: Sequence[bytes] | None, text: str, reasoning: str | None = None, ids: Sequence[int] | None = None
) -> Reply:
    tokens = None
    if pieces is not None:
        kept = None if ids is None else tuple(ids)
        tokens = Tokens(ids=kept, logprobs=tuple(-1.0 for _ in pieces), pieces=tuple(pieces))
    return Reply(
        text=text, actions=(), finish_reason="stop", usage=Usage(), tokens=tokens, model="m", reasoning=reasoning
    )


def cut(text: str, at: Sequence[int]) -> list[bytes]:
    """`text` in pieces."""
    raw, ends = text.encode(), sorted({0, len(text.encode()), *at})
    return [raw[one:other] for one, other in pairwise(ends)]


NOTES = st.text(alphabet="ab €😀\n", max_size=8)


@given(NOTES, NOTES, st.lists(st.integers(0, 30), max_size=8))
@settings(derandomize=True, deadline=None)
def test_the_parts_join_to_what_was_generated_and_the_cut_is_a_token_boundary(
    note: str, command: str, at: list[int]
) -> None:
    text = f"{note}```bash\n{command}\n```"
    pieces = cut(text, [place for place in at if place <= len(text.encode())])
    boundary = len(note.encode()) in {sum(map(len, pieces[:n])) for n in range(len(pieces))}
    reply = reply_of(pieces, text, ids=range(len(pieces)))
    if not boundary:
        with pytest.raises(Unclear, match="in the middle of a token"):
            said_of(reply, MARKER, as_text=True)
        return
    said = said_of(reply, MARKER, as_text=True)
    assert (said.before, said.action, said.end) == (note, f"```bash\n{command}\n```", "")
    assert said.before_ids is not None and said.action_ids is not None
    assert [*said.before_ids, *said.action_ids] == list(range(len(pieces)))
    assert b"".join(pieces[: len(said.before_ids)]).decode() == note


@pytest.mark.parametrize(
    ("pieces", "text", "reasoning", "why"),
    [
        ([b"Go. ```", b"bash\nls\n```"], "Go. ```bash\nls\n```", None, "in the middle of a token"),
        ([b"Go.", b"", b"```bash\nls\n```"], "Go.```bash\nls\n```", None, "a token without bytes"),
        ([b"Go."], "Go.", None, "no action begins"),
        ([b"Go.", b"```bash\nls\n```"], "Gone.```bash\nls\n```", None, "do not spell the reply"),
        ([b"\xef\xbf\xbd", b"```bash\nls\n```"], "😀```bash\nls\n```", None, "do not spell the reply"),
        ([b"Go.", b"```bash\nls\n```"], "Go.```bash\nls\n```", "I think", "do not spell the reply"),
        (None, "Go.", None, "no action begins"),
        (None, "```bash\nls\n```", "I think", "how the reasoning was written is not known"),
    ],
)
def test_what_cannot_be_told_apart_is_unclear_by_name(
    pieces: list[bytes] | None, text: str, reasoning: str | None, why: str
) -> None:
    with pytest.raises(Unclear, match=why):
        said_of(reply_of(pieces, text, reasoning), MARKER, as_text=True)


def test_a_fence_that_the_reasoning_mentions_opens_no_action() -> None:
    pieces = [b"<think>", b"a ", b"```bash\nno\n```", b"</think>", b"Go. ", b"```bash\n", b"ls\n```"]
    said = said_of(reply_of(pieces, "Go. ```bash\nls\n```", "a ```bash\nno\n```"), MARKER, as_text=True)
    assert said == Said("<think>a ```bash\nno\n```</think>Go. ", "```bash\nls\n```")


@pytest.mark.parametrize("end", ["<|im_end|>", "</s>", "<|eot_id|>", "<end_of_turn>"])
def test_a_logged_end_of_turn_is_apart_from_the_text_and_among_the_ids(end: str) -> None:
    pieces = [b"Go. ", b"```bash\nls\n```", end.encode()]
    said = said_of(reply_of(pieces, "Go. ```bash\nls\n```", ids=[1, 2, 3]), MARKER, as_text=True)
    assert (said.action, said.end, said.action_ids) == ("```bash\nls\n```", end, (2, 3))


def test_the_end_of_a_call_is_no_end_of_turn() -> None:
    pieces = [b"<tool_call>", b"{}", b"</tool_call>"]
    said = said_of(reply_of(pieces, ""), b"<tool_call>", as_text=False)
    assert (said.action, said.end) == ("<tool_call>{}</tool_call>", "")


def test_without_tokens_a_text_is_cut_by_itself_and_a_call_is_unknown() -> None:
    said = said_of(reply_of(None, "Go.\n```bash\nls\n```"), MARKER, as_text=True)
    assert said == Said("Go.\n", "```bash\nls\n```")
    with pytest.raises(Unclear, match="no tokens were logged, so how the call was written is not known"):
        said_of(reply_of(None, ""), b"<tool_call>", as_text=False)


def test_a_token_without_bytes_is_named_not_guessed() -> None:
    """The last token of the shared case lacks its bytes: what was generated is not known."""
    (message,) = json.loads((shared_case("046-token-bytes") / "response_chat.json").read_text())
    body = {"model": "m", "choices": [{"message": {"content": message["content"]}, **message}]}
    body["choices"][0]["finish_reason"] = "stop"
    with serving(lambda path, asked: body) as url:
        client = OpenAIClient(url, "m")
        completion = client.complete([], tools=[], sampling=Sampling(logprobs=True), seed=1)
        client.close()
    assert completion.tokens is not None
    assert completion.tokens.pieces is None
    with pytest.raises(Unclear, match="not every token's bytes were logged"):
        first_token(completion.tokens, MARKER, completion.text, None)
    assert parse(completion, "text").logprob is None


# --- over the simulated server


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(["--epoch", "0"]) as running:
        yield running


def conversation(client: OpenAIClient, dialect: Dialect, seeds: int) -> Iterator[tuple[list[Message], Reply, str]]:
    """Messages, the reply to them, and the digest of their prompt; the conversation goes on."""
    messages, scaffold = list(opening(TASK, dialect)), OwnScaffold(dialect)
    for seed in range(seeds):
        done = client.complete(
            messages, tools=tools(dialect), sampling=Sampling(temperature=1.0, logprobs=True), seed=seed
        )
        assert done.prompt_digest is not None
        yield list(messages), scaffold.parse(done), done.prompt_digest
        messages.append({"role": "assistant", "content": done.text})
        messages.append({"role": "user", "content": "exit code: 0\noutput:\n"})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_model_that_acted_scores_what_it_logged(server: SimulatedServer, dialect: Dialect) -> None:
    client, scaffold = OpenAIClient(server.base_url, "small"), OwnScaffold(dialect)
    scored = 0
    for messages, reply, prompt in conversation(client, dialect, 15):
        if reply.logprob is None:
            continue
        said = said_of(reply, scaffold.action_marker, as_text=dialect == "text")
        assert said.action_ids is not None
        by_ids = client.score(messages, said, tools=tools(dialect))
        by_text = client.score(messages, Said(said.before, said.action), tools=tools(dialect))
        assert (by_ids.how, by_text.how) == ("ids", "text")
        assert by_ids.tokens == by_text.tokens == len(said.action_ids)
        assert by_ids.logprob == pytest.approx(reply.logprob, abs=1e-9)
        assert by_text.logprob == pytest.approx(reply.logprob, abs=1e-9)
        assert by_ids.prompt_digest == by_text.prompt_digest == prompt
        scored += 1
    client.close()
    assert scored > 8


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_model_scores_over_the_wire_as_in_this_process(server: SimulatedServer, dialect: Dialect) -> None:
    acting, far = OpenAIClient(server.base_url, "small"), OpenAIClient(server.base_url, "large")
    near, scaffold = SimulatedClient.of(PROFILES["large"]), OwnScaffold(dialect)
    differs = False
    for messages, reply, _ in conversation(acting, dialect, 10):
        if reply.logprob is not None:
            said = said_of(reply, scaffold.action_marker, as_text=dialect == "text")
            over, here = (each.score(messages, said, tools=tools(dialect)) for each in (far, near))
            assert over == here
            assert over.logprob is not None
            differs = differs or abs(over.logprob - reply.logprob) > 0.1
    acting.close()
    far.close()
    assert differs


def test_ids_of_another_tokenizer_are_not_used(server: SimulatedServer) -> None:
    client, messages = OpenAIClient(server.base_url, "small"), list(opening(TASK, "text"))
    text = client.score(messages, Said("Next.\n", "```bash\nls\n```"), tools=[])
    for foreign in ((300, 301), (10**9,)):
        other = client.score(messages, Said("Next.\n", "```bash\nls\n```", "", foreign, foreign), tools=[])
        assert other == text
    client.close()
    assert text.how == "text" and text.logprob is not None


def test_what_a_model_never_says_is_unknown_and_not_a_number() -> None:
    with SimulatedServer(["--true-zero", "--models", "small"]) as hard:
        client = OpenAIClient(hard.base_url, "small")
        never = client.score(list(opening(TASK, "text")), Said("Next.\n", "```bash\nmake\n```"), tools=[])
        known = client.score(list(opening(TASK, "text")), Said("Next.\n", "```bash\nls\n```"), tools=[])
        client.close()
    assert (never.logprob, never.tokens, never.why) == (None, None, "the server sent None in place of one")
    assert known.logprob is not None


def test_a_conversation_that_does_not_fit_is_unknown_by_name() -> None:
    with SimulatedServer(["--models", "small", "--max-model-len", "40"]) as narrow:
        client = OpenAIClient(narrow.base_url, "small")
        got = client.score(list(opening(TASK, "text")), Said("", "```bash\nls\n```"), tools=[])
        client.close()
    assert (got.logprob, got.why) == (None, "the conversation does not fit the model's context")


def test_a_script_has_no_probabilities() -> None:
    got = ScriptedClient(["ls"]).score([], Said("", "x"), tools=[])
    assert got == Scored(None, None, None, "a script has no probabilities")


# --- over a server that misbehaves

SAID = Said("Look at it.\n", "```bash\nls -l\n```")


def score(server: Answerer, said: Said = SAID, tools: Sequence[Mapping[str, Any]] = ()) -> Scored:
    with serving(server) as url:
        client = OpenAIClient(url, "words")
        try:
            return client.score([{"role": "user", "content": "u"}], said, tools=tools)
        finally:
            client.close()


def test_the_sum_is_over_the_actions_tokens_alone() -> None:
    server = Words()
    got = score(server, tools=[{"type": "function"}])
    count = len(re.findall(r"\w+|.", SAID.action, re.DOTALL))
    assert got == Scored(-0.5 * count, count, "text", "", digest_of_ids([0, 0]))
    chat = next(asked for path, asked in server.asked if "messages" in asked)
    assert (chat["add_generation_prompt"], chat["tools"]) == (True, [{"type": "function"}])
    plain = [asked for path, asked in server.asked if path == "/tokenize" and "prompt" in asked]
    assert all(asked["add_special_tokens"] is False for asked in plain)


@pytest.mark.parametrize("sentinel", [-9999.0, -10000, -math.inf, math.nan, None, "x", True])
@pytest.mark.parametrize("place", [-1, -8])
def test_a_sentinel_anywhere_in_the_action_makes_it_unknown(sentinel: object, place: int) -> None:
    def tamper(scores: list[Any]) -> Any:
        ((token, _),) = scores[place].items()
        return [*scores[:place], {token: {"logprob": sentinel}}, *scores[len(scores) + place + 1 :]]

    got = score(Words(tamper=tamper))
    assert (got.logprob, got.tokens, got.how) == (None, None, "text")
    assert "in place of one" in got.why


def test_a_sentinel_before_the_action_is_none_of_its_business() -> None:
    got = score(Words(tamper=lambda scores: [None, None, *scores[2:]]))
    assert got.logprob is not None


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda scores: scores[:-1], "more or fewer log-probabilities than there are tokens"),
        (lambda scores: [*scores, scores[-1]], "more or fewer log-probabilities than there are tokens"),
        (lambda scores: None, "the server gives no prompt_logprobs"),
        (lambda scores: [*scores[:-1], None], "none for one of the action's own tokens"),
        (lambda scores: [*scores[:-1], {"77": {"logprob": -0.5}}], "none for one of the action's own tokens"),
        (lambda scores: [*scores[:-1], [-0.5]], "none for one of the action's own tokens"),
        (lambda scores: [None, *scores[2:], scores[1]], "none for one of the action's own tokens"),
    ],
)
def test_what_is_tied_to_another_token_is_unknown_by_name(tamper: Callable[[list[Any]], Any], why: str) -> None:
    got = score(Words(tamper=tamper))
    assert got.logprob is None
    assert why in got.why


def test_an_action_that_begins_in_the_middle_of_a_token_is_unknown_by_name() -> None:
    got = score(Words(pattern=r"\n```|\w+|."))
    assert (got.logprob, got.why) == (None, "to this tokenizer the action begins in the middle of a token")


def test_a_tokenizer_that_loses_characters_is_unknown_by_name() -> None:
    got = score(Words(pattern=r"\w+|[^\w ]"))
    assert (got.logprob, got.why) == (None, "this tokenizer's tokens do not spell the text")


def test_a_text_that_may_have_lost_bytes_is_not_scored_as_text() -> None:
    got = score(Words(), Said("Look \ufffd.\n", "```bash\nls\n```"))
    assert (got.logprob, got.how) == (None, None)
    assert "U+FFFD" in got.why


def test_logged_ids_are_sent_as_they_are_with_the_end_of_the_turn() -> None:
    server = Words(pattern=r"<\|end\|>|\w+|.")
    text = score(server)
    with serving(server) as url:  # learn the ids as a client that sampled would have
        client = OpenAIClient(url, "words")
        spans = [server("/tokenize", {"prompt": part})["tokens"] for part in (SAID.before, SAID.action + "<|end|>")]
        client.close()
    said = Said(SAID.before, SAID.action, "<|end|>", *(tuple(span) for span in spans))
    got = score(server, said)
    sent = next(asked["prompt"] for path, asked in reversed(server.asked) if path == "/v1/completions")
    assert sent == [0, 0, *spans[0], *spans[1]]
    assert (got.how, got.tokens, text.tokens) == ("ids", len(spans[1]), len(spans[1]) - 1)
    unspelled = score(server, Said(SAID.before, SAID.action, "", *(tuple(span) for span in spans)))
    assert unspelled == got, "a server that spells the end of a turn where the log does not"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_a_server_that_cannot_be_asked_is_an_error_and_no_score(path: str) -> None:
    words = Words()
    with pytest.raises(ModelError, match="HTTP 404"):
        score(lambda asked_path, asked: (404, {}) if asked_path == path else words(asked_path, asked))


def test_a_tokenizer_that_answers_something_else_is_unknown_by_name() -> None:
    got = score(lambda path, asked: {"tokens": ["a", "b"]})
    assert (got.logprob, got.why) == (None, "the server's /tokenize gives no token ids")


def test_a_call_is_scored_from_its_tokens_whatever_its_arguments_say() -> None:
    pieces = [b"Look.\n", b"<tool_call>", b'{"name": "bash"}', b"</tool_call>"]
    reply = reply_of(pieces, "Look.").model_copy(
        update={"tool_calls": (ToolCall(id="1", name="bash", arguments="{}"),)}
    )
    got = score(Words(), said_of(reply, b"<tool_call>", as_text=False))
    assert got.how == "text" and got.logprob is not None
