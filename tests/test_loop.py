"""The main loop with a scripted model in a real shell: limits, format errors, submission, what is carried."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.errors import ModelError
from harness.loop import NOTHING_YET, Continuation, Start, limit_reached, rollout, spend
from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.model.scripted import ScriptedClient
from harness.prompting import SUBMIT_WORD, OwnScaffold
from harness.record import Exit, Spent, Step, Stop, Task, ToolCall, Usage
from harness.routing import Always, RoutingPolicy, SwitchAt
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.scaffold.protocol import Dialect

TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement="It breaks.")
SUBMIT = f"echo {SUBMIT_WORD}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    tree = tmp_path_factory.mktemp("tree")
    (tree / "notes.txt").write_text(f"{SUBMIT_WORD}\n")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@example.invalid commit -qm start"):
        subprocess.run(["git", "-C", str(tree), *command.split()], check=True)
    return Image(name="tiny", tree=tree)


@pytest.fixture
def sandbox(image: Image, tmp_path: Path) -> Iterator[Sandbox]:
    provider = LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "scratch")
    try:
        with provider.start(image) as started:
            yield started
    finally:
        provider.close()


class Replies:
    """A model that gives the completions it was made with, and keeps what it was asked."""

    def __init__(self, *completions: Completion) -> None:
        self._completions = completions
        self.asked: list[Sequence[Message]] = []
        self.seeds: list[int] = []

    def complete(self, messages: Sequence[Message], *, tools: object, sampling: Sampling, seed: int) -> Completion:
        self.asked.append(list(messages))
        self.seeds.append(seed)
        return self._completions[min(len(self.asked), len(self._completions)) - 1]

    def score(self, messages: Sequence[Message], said: Said, *, tools: object) -> Scored:
        return Scored(None, None, None, "not asked for here")


def calls(*commands: str) -> Completion:
    made = tuple(
        ToolCall(id=f"c{n}", name="bash", arguments=json.dumps({"command": c})) for n, c in enumerate(commands)
    )
    usage = Usage(input_tokens=5, output_tokens=3)
    return Completion(text="", tool_calls=made, finish_reason="tool_calls", usage=usage, model="m")


PROSE = Completion(text="hm", tool_calls=(), finish_reason="stop", usage=Usage(), model="m")


def roll(
    client: ModelClient,
    sandbox: Sandbox,
    *,
    dialect: Dialect = "tool_call",
    limits: LimitsSection | None = None,
    policy: RoutingPolicy | None = None,
    others: dict[str, ModelClient] | None = None,
    **more: Any,
) -> Continuation:
    agents = {
        name: ModelAgent(c, OwnScaffold(dialect), Sampling()) for name, c in {"a": client, **(others or {})}.items()
    }
    made = limits or LimitsSection(calls=10, action_seconds=5)
    return rollout(TASK, policy or Always("a"), agents, sandbox, limits=made, seed=1, **more)


@pytest.mark.parametrize("dialect", ["tool_call", "text"])
def test_a_script_runs_to_its_submission(sandbox: Sandbox, dialect: Dialect) -> None:
    done = roll(ScriptedClient(["echo hi > new.txt", "cat new.txt", SUBMIT, "echo never"]), sandbox, dialect=dialect)
    assert done.stop is Stop.SUBMITTED
    assert done.submission == ""
    assert [step.observations[0].output for step in done.steps[:2]] == [b"", b"hi\n"]
    assert [step.index for step in done.steps] == [1, 2, 3]
    assert done.spent.calls == 3


def test_what_follows_the_submit_word_is_the_submission(sandbox: Sandbox) -> None:
    assert roll(ScriptedClient([f"{SUBMIT}; echo patch; echo more"]), sandbox).submission == "patch\nmore\n"


@pytest.mark.parametrize(
    "command",
    [
        f"echo {SUBMIT_WORD}; false",
        f"false && echo {SUBMIT_WORD}",
        f"grep -rn {SUBMIT_WORD} notes.txt",
        f"grep -rn {SUBMIT_WORD} .",
        f"printf 'running tests\\n{SUBMIT_WORD}\\nmore\\n'",
        f"printf '{SUBMIT_WORD}_NOT_YET\\n'",
        f"echo 'to finish, type echo {SUBMIT_WORD}'",
        f"echo {SUBMIT_WORD} && git diff no-such-revision",
        f"echo; echo {SUBMIT_WORD}",
        f"echo {SUBMIT_WORD}; sleep 9",
    ],
)
def test_the_word_elsewhere_does_not_submit(sandbox: Sandbox, command: str) -> None:
    limits = LimitsSection(calls=1, action_seconds=1)
    assert roll(ScriptedClient([command]), sandbox, limits=limits).stop is Stop.CALL_LIMIT


def test_limits_are_checked_before_the_call(sandbox: Sandbox) -> None:
    client = Replies(calls("true"))
    done = roll(client, sandbox, limits=LimitsSection(calls=3))
    assert (done.stop, len(client.asked), done.spent.calls) == (Stop.CALL_LIMIT, 3, 3)


def test_token_and_time_limits_stop(sandbox: Sandbox) -> None:
    assert roll(Replies(calls("true")), sandbox, limits=LimitsSection(tokens=6)).spent.calls == 2
    done = roll(Replies(calls("sleep 0.2")), sandbox, limits=LimitsSection(seconds=0.3))
    assert (done.stop, done.spent.calls) == (Stop.TIME_LIMIT, 2)


def test_a_format_error_costs_a_call_is_kept_and_is_shown(sandbox: Sandbox) -> None:
    client = Replies(calls("echo 1"), PROSE, calls("echo 2"), calls(SUBMIT))
    done = roll(client, sandbox)
    assert done.spent.calls == 4
    assert [step.reply.format_error is None for step in done.steps] == [True, False, True, True]
    third = client.asked[2]
    assert third[-2] == {"role": "assistant", "content": "hm"}
    assert "calls no tool" in third[-1]["content"]


def test_three_format_errors_in_a_row_stop_and_a_good_reply_resets(sandbox: Sandbox) -> None:
    assert roll(Replies(PROSE), sandbox).stop is Stop.FORMAT_ERRORS
    done = roll(Replies(PROSE, PROSE, calls("true"), PROSE, PROSE, PROSE), sandbox)
    assert (done.stop, done.spent.calls) == (Stop.FORMAT_ERRORS, 6)


def test_actions_of_one_turn_run_in_order_and_a_submission_ends_the_turn(sandbox: Sandbox) -> None:
    done = roll(Replies(calls("echo 1 > f", "cat f", SUBMIT, "echo never")), sandbox)
    assert [seen.output for seen in done.steps[0].observations] == [b"", b"1\n", SUBMIT_WORD.encode() + b"\n"]
    assert done.stop is Stop.SUBMITTED


def test_a_step_past_the_time_limit_is_an_observation_and_the_rollout_goes_on(sandbox: Sandbox) -> None:
    client = Replies(calls("echo part; sleep 60"), calls("echo next"), calls(SUBMIT))
    done = roll(client, sandbox, limits=LimitsSection(calls=5, action_seconds=0.5))
    assert done.steps[0].observations[0].ended is Exit.TIME_LIMIT
    assert done.steps[0].observations[0].output == b"part\n"
    assert done.steps[1].observations[0].output == b"next\n"


def test_a_start_carries_history_budget_and_step_numbers(sandbox: Sandbox) -> None:
    before = roll(Replies(calls("echo 1")), sandbox, limits=LimitsSection(calls=2))
    client = Replies(calls("echo 2"))
    start = Start(before.steps, before.spent)
    done = roll(client, sandbox, limits=LimitsSection(calls=3), start=start)
    assert [step.index for step in done.steps] == [3]
    assert done.spent.calls == 3
    assert sum(message["role"] == "assistant" for message in client.asked[0]) == 2


def test_a_switch_hands_the_whole_history_over(sandbox: Sandbox) -> None:
    first, second = Replies(calls("echo 1")), Replies(calls("echo 2"), calls(SUBMIT))
    done = roll(first, sandbox, policy=SwitchAt("a", "b", 2), others={"b": second})
    assert [step.agent for step in done.steps] == ["a", "b", "b"]
    assert second.asked[0][-1]["content"].endswith("1\n")


def test_seeds_differ_by_step_and_repeat_by_rollout(sandbox: Sandbox) -> None:
    one, other = Replies(calls("true")), Replies(calls("true"))
    for client in (one, other):
        roll(client, sandbox, limits=LimitsSection(calls=4))
    assert one.seeds == other.seeds
    assert len(set(one.seeds)) == 4


def test_every_step_reaches_the_listener_before_the_next_call(sandbox: Sandbox) -> None:
    seen: list[Step] = []
    done = roll(Replies(calls("true")), sandbox, limits=LimitsSection(calls=3), on_step=seen.append)
    assert seen == list(done.steps)


def test_a_script_that_is_over_is_a_failure_not_an_outcome(sandbox: Sandbox) -> None:
    with pytest.raises(ModelError, match="holds 1 commands"):
        roll(ScriptedClient(["true"]), sandbox)


def test_the_state_digest_follows_the_tree(sandbox: Sandbox) -> None:
    done = roll(ScriptedClient(["true", "echo x > f", "rm f", SUBMIT]), sandbox)
    digests = [step.state_digest for step in done.steps]
    assert digests[0] == digests[2] != digests[1]


def test_limit_reached_names_the_limit() -> None:
    limits = LimitsSection(calls=2, tokens=5, seconds=1.0)
    assert limit_reached(NOTHING_YET.spent, limits) is None
    assert limit_reached(Spent(calls=2), limits) is Stop.CALL_LIMIT
    assert limit_reached(Spent(output_tokens=5), limits) is Stop.TOKEN_LIMIT
    assert limit_reached(Spent(seconds=1.0), limits) is Stop.TIME_LIMIT
    assert limit_reached(Spent(format_errors_in_a_row=3), limits) is Stop.FORMAT_ERRORS


def test_spend_adds_up_usage_that_is_known(sandbox: Sandbox) -> None:
    (step,) = roll(Replies(calls("true")), sandbox, limits=LimitsSection(calls=1)).steps
    spent = spend(Spent(calls=1, input_tokens=1, output_tokens=1), step)
    assert (spent.calls, spent.input_tokens, spent.output_tokens) == (2, 6, 4)
