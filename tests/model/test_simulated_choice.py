"""What the model does is known: messages alone decide the odds, the seed decides the draw, and both are stated."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError, ContextOverflow
from harness.model.protocol import Message, Said, Sampling
from harness.model.simulated.choice import softmax
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.engine import Engine, draw
from harness.model.simulated.menu import Menu, edit_command, menu_of, pocket_menus
from harness.model.simulated.noise import KINDS, Noise, gumbel
from harness.model.simulated.profiles import PROFILES, profile
from harness.model.simulated.wire import turns_of
from harness.prompting import opening, parse, tools
from harness.record import Task
from harness.scaffold.protocol import Dialect
from harness.tasks.pocket import pocket_tasks

POCKET = pocket_tasks()
FIRST = next(iter(POCKET.values()))
DIALECTS: tuple[Dialect, ...] = ("tool_call", "text")


def start(dialect: Dialect, pocket=FIRST) -> list[Message]:
    facts = pocket.facts
    task = Task(
        instance_id=facts["instance_id"], repo="r", base_commit="c", problem_statement=facts["problem_statement"]
    )
    return opening(task, dialect)


def after(messages: list[Message], command: str, output: str = "", code: int = 0, note: str = "n") -> list[Message]:
    """The conversation with one more step, in the tool dialect."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    answer = {"role": "tool", "tool_call_id": "c", "content": f"exit code: {code}\noutput:\n{output}"}
    return [*messages, {"role": "assistant", "content": note, "tool_calls": [call]}, answer]


def odds(messages: list[Message], name: str = "large", dialect: Dialect = "tool_call") -> dict[str, float]:
    engine = Engine(PROFILES[name], Noise("iid", "e"))
    known = engine.distribution(turns_of(messages, tools(dialect)))
    return dict(zip(known.names, known.probabilities, strict=True))


@pytest.mark.parametrize("name", list(PROFILES))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_odds_sum_to_one_and_the_rate_of_format_errors_is_the_profile_s(name: str, dialect: Dialect) -> None:
    known = odds(start(dialect), name, dialect)
    assert math.fsum(known.values()) == pytest.approx(1.0, abs=1e-12)
    unreadable = sum(value for entry, value in known.items() if entry.startswith("format_error"))
    assert unreadable == pytest.approx(PROFILES[name].format_error_rate)
    assert (known["format_error:call"] > 0) == (dialect == "tool_call")


def test_gumbel_noise_draws_the_closed_form() -> None:
    wanted = (0.7214, 0.2654, 0.0132)
    names, n = ("a", "b", "c"), 20_000
    values = [0.3 * math.log(p) for p in wanted]
    drawn = Counter(draw(values, names, 0.3, f"{seed}".encode()) for seed in range(n))
    for at, p in enumerate(softmax(values, 0.3)):
        assert p == pytest.approx(wanted[at], abs=1e-9)
        assert abs(drawn[at] / n - p) < 4 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize(("temperature", "name"), [(1.0, "small"), (0.6, "large"), (0.0, "small"), (0.0, "large")])
def test_replies_come_as_often_as_their_propensity_says(temperature: float, name: str) -> None:
    engine, turns, n = Engine(PROFILES[name], Noise("iid", "e")), turns_of(start("text"), None), 3000
    replies = [engine.complete(turns, temperature=temperature, seed=seed) for seed in range(n)]
    stated = {reply.entry: reply.propensity for reply in replies}
    seen = Counter(reply.entry for reply in replies)
    for entry, p in stated.items():
        assert p is not None
        assert abs(seen[entry] / n - p) < 4.5 * math.sqrt(p * (1 - p) / n) + 1e-9, entry
    assert math.fsum(p for p in stated.values() if p is not None) <= 1 + 1e-9


@given(st.integers(0, 2**53 - 1), st.sampled_from(DIALECTS), st.sampled_from([0.0, 0.7, 1.0]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_same_request_gets_the_same_reply_whatever_was_asked_before(
    seed: int, dialect: Dialect, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, logprobs=True)
    used, fresh = SimulatedClient.of(PROFILES["small"]), SimulatedClient.of(PROFILES["small"])
    used.complete(start(dialect), tools=tools(dialect), sampling=sampling, seed=seed + 1)
    one = used.complete(start(dialect), tools=tools(dialect), sampling=sampling, seed=seed)
    other = fresh.complete(start(dialect), tools=tools(dialect), sampling=sampling, seed=seed)
    assert replace(one, cached_prompt_tokens=None) == replace(other, cached_prompt_tokens=None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", list(PROFILES))
def test_the_stated_log_probability_is_that_of_the_entry_and_of_scoring(name: str, dialect: Dialect) -> None:
    client, messages = SimulatedClient.of(PROFILES[name]), start(dialect)
    for seed in range(20):
        done = client.complete(
            messages, tools=tools(dialect), sampling=Sampling(temperature=1.0, logprobs=True), seed=seed
        )
        reply = parse(done, dialect)
        if reply.format_error is not None:
            continue
        assert reply.logprob is not None
        assert done.propensity is not None
        assert reply.logprob == pytest.approx(math.log(done.propensity), abs=1e-11)
        assert done.tokens is not None and done.tokens.pieces is not None
        raw = b"".join(done.tokens.pieces).decode()
        note, marker, rest = raw.partition("<tool_call>" if dialect == "tool_call" else "```bash\n")
        scored = client.score(messages, Said(note, marker + rest), tools=tools(dialect)).logprob
        assert scored == pytest.approx(reply.logprob, abs=1e-12)


def test_scoring_reaches_what_the_menu_lacks_unless_zero_is_true_zero() -> None:
    messages = start("text")
    foreign = "```bash\nrm -rf build\n```"
    soft = SimulatedClient.of(PROFILES["small"]).score(messages, Said("", foreign), tools=[]).logprob
    assert soft is not None
    assert soft == pytest.approx(math.log(1e-12) - len(foreign) * math.log(256.0))
    hard = SimulatedClient(Engine(PROFILES["small"], Noise("off", "e"), epsilon=0.0))
    assert hard.score(messages, Said("", foreign), tools=[]).logprob is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_action_scores_the_same_after_any_note(dialect: Dialect) -> None:
    client, messages = SimulatedClient.of(PROFILES["large"]), start(dialect)
    menu = menu_of(FIRST)
    for text in filter(None, menu.texts[dialect]):
        if text.startswith(("<tool_call>", "```bash")):
            scored = [client.score(messages, Said(n, text), tools=tools(dialect)) for n in ("", "Hm. ", "a\n\nb\n")]
            scores = {each.logprob for each in scored if each.logprob is not None}
            assert len(scores) == 1 or max(scores) - min(scores) < 1e-12


def test_the_dialogue_moves_the_odds_as_work_on_an_issue_would() -> None:
    menu, begin = menu_of(FIRST), start("tool_call")
    read = next(e for e in menu.entries if e.kind == "read" and e.position in menu.faulty and e.command is not None)
    fix, bad = edit_command(FIRST, "right"), edit_command(FIRST, "wrong_1")
    verify = next(e.command for e in menu.entries if e.kind == "verify")
    assert read.command is not None
    assert verify is not None
    known = after(begin, read.command)
    edited = after(known, bad)
    caught = after(edited, verify, code=1)
    tested = after(after(after(known, fix), "python run_tests.py"), verify)

    def wants_edit(messages: list[Message]) -> float:
        return sum(value for entry, value in odds(messages).items() if entry.startswith("edit"))

    assert wants_edit(known) > 3 * wants_edit(begin)
    assert odds(edited)["tests"] + odds(edited)["verify"] > 0.5
    assert odds(caught)["edit:right"] > 5 * odds(edited)["edit:right"]
    assert odds(caught)["edit:wrong_1"] < 0.05
    assert odds(begin)["submit"] < 0.01 < odds(tested)["submit"]


def test_only_commands_and_results_count_not_notes_or_outputs() -> None:
    begin = start("tool_call")
    assert odds(after(begin, "ls", "a\n", note="x")) == odds(after(begin, "ls", "b\n", note="y"))
    assert odds(after(begin, "make all", "zzz")) == odds(begin)  # another agent's command says nothing here


def test_profiles_differ_in_habits_and_meet_every_task() -> None:
    differ = 0
    for pocket in POCKET.values():
        small, large = odds(start("text", pocket), "small", "text"), odds(start("text", pocket), "large", "text")
        assert len(small) > 20
        differ += max(small, key=small.__getitem__) != max(large, key=large.__getitem__)
    assert differ > len(POCKET) / 2


def test_a_conversation_about_nothing_known_is_answered() -> None:
    client = SimulatedClient.of(PROFILES["small"])
    done = client.complete([{"role": "user", "content": "hello"}], tools=[], sampling=Sampling(), seed=1)
    assert parse(done, "text").actions or parse(done, "text").format_error


def test_what_does_not_fit_overflows_and_what_is_cut_says_so() -> None:
    messages, profile_ = start("text"), PROFILES["large"]
    with pytest.raises(ContextOverflow, match="tokens"):
        SimulatedClient(Engine(profile_, Noise("off", "e"), max_model_len=100)).complete(
            messages, tools=[], sampling=Sampling(), seed=1
        )
    cut = SimulatedClient.of(profile_).complete(messages, tools=[], sampling=Sampling(max_tokens=3), seed=1)
    assert cut.finish_reason == "length"
    assert cut.usage.output_tokens == 3
    assert cut.propensity is None


def test_every_menu_is_made_of_unique_strings_that_state_whole_files() -> None:
    for pocket in POCKET.values():
        menu: Menu = menu_of(pocket)
        commands = [entry.command for entry in menu.entries if entry.command is not None]
        assert len(set(commands)) == len(commands)
        assert len(set(menu.names)) == len(menu.names)
        assert menu.faulty, pocket.facts["instance_id"]
        for version in ("right", "wrong_1", "wrong_2"):
            assert all(text.endswith("\n") for text in pocket.changed(version).values())
    titles = {pocket.facts["problem_statement"].split("\n", 1)[0] for pocket in POCKET.values()}
    assert len(titles) == len(POCKET)
    assert pocket_menus().for_text("x\n" + FIRST.facts["problem_statement"]).task == FIRST.facts["instance_id"]


@pytest.mark.parametrize(
    ("settings_", "says"), [({"skil": 1.0}, "skil"), ({"skill": 1.5}, "between"), ({"sigma": -1.0}, "sigma")]
)
def test_a_wrong_parameter_is_named(settings_: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        profile("small", settings_)


def test_gumbel_is_standard() -> None:
    draws = [gumbel(str(at).encode(), "x") for at in range(20_000)]
    mean = math.fsum(draws) / len(draws)
    assert mean == pytest.approx(0.5772, abs=4 * 1.2825 / math.sqrt(len(draws)))
    assert KINDS[0] == "off"
