"""Each kind of noise leaves its own pattern in the self-test's table; what could not be asked is not vouched for."""

import itertools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.selftest_table import selftest_table
from analysis.table import FORMATS, render
from harness.determinism import openings
from harness.errors import ModelError
from harness.model.protocol import Message
from harness.model.request import RequestForm
from harness.prompting import OwnScaffold
from harness.serving.asking import Answer, Asking
from harness.serving.card import ModelCard
from harness.serving.selftest import NO_COLD, SelfTest, first_difference, self_test
from harness.serving.server import serving
from harness.tasks.pocket import Pocket
from tests.bug_cases.parts import serve_shared
from tests.serving.parts import FORKROLL, Reply, card_file, launch, simulated, small_server

PROMPTS = 8
ALL = {"again", "order", "warm", "batch", "twins", "seed", "handover", "restart"}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Message]]:
    made = openings(OwnScaffold("text"), Pocket(tmp_path_factory.mktemp("cache")).tasks(), PROMPTS)
    return made


def examined(card: ModelCard, folder: Path, prompts: Mapping[str, Sequence[Message]], **how: Any) -> SelfTest:
    """The self-test of a card's server, restart included."""
    with ExitStack() as stack:
        stack.enter_context(serving([card], launch(folder, [])))

        def restart() -> None:
            stack.close()
            stack.enter_context(serving([card], launch(folder, [])))

        return self_test(Asking(card.base_url, card.served, **how), prompts, restart=restart)


@pytest.mark.parametrize(
    ("noise", "broken"),
    [
        ("off", set()),
        ("iid", {"seed"}),
        ("position", {"seed", "handover"}),
        ("server_sticky", {"restart"}),
    ],
)
def test_each_kind_of_noise_has_its_pattern(
    tmp_path: Path, prompts: Mapping[str, Sequence[Message]], noise: str, broken: set[str]
) -> None:
    found = examined(simulated(tmp_path, noise), tmp_path, prompts)
    assert set(found.broken) == broken
    assert found.deterministic == (not broken)
    assert (found.unit, found.cold_by, found.cached_cold, found.untried) == ("token", "reset", 0, ())
    assert found.cached_warm is not None and found.cached_warm > 0
    assert all(condition.n == PROMPTS for condition in found.conditions)
    for condition in found.conditions:
        assert (condition.first is None) == (condition.differing == 0) == (condition.prompts == ())


def test_above_temperature_0_another_seed_has_to_make_a_difference(
    tmp_path: Path, prompts: Mapping[str, Sequence[Message]]
) -> None:
    found = examined(simulated(tmp_path, "off"), tmp_path, prompts, temperature=1.0)
    by_name = {condition.name: condition for condition in found.conditions}
    assert by_name["seed"].differing > 0 and not by_name["seed"].counts
    assert by_name["unseeded"].differing > 0
    assert found.deterministic


def test_one_draw_for_all_that_is_in_flight_together_shows_everywhere_but_between_twins(
    tmp_path: Path, prompts: Mapping[str, Sequence[Message]]
) -> None:
    card = simulated(tmp_path, "batch_shared", **{"latency-ms": 40})  # long enough for twins to meet
    found = examined(card, tmp_path, prompts)
    differing = {condition.name: condition.differing for condition in found.conditions}
    assert set(found.broken) >= ALL - {"twins"}
    assert differing["twins"] < min(differing["again"], differing["batch"], differing["order"])
    assert "does not repeat itself under again" in found.line()


# --- servers that give less


def completion(text: str, **more: Any) -> tuple[int, dict[str, Any]]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
    return 200, {"choices": [choice]}


def asked_by(reply: Reply, prompts: Mapping[str, Sequence[Message]]) -> SelfTest:
    with small_server(reply) as url:
        return self_test(Asking(url, "m"), prompts)


def test_without_token_ids_texts_are_compared_and_without_a_reset_warmth_is_not_vouched_for(
    prompts: Mapping[str, Sequence[Message]],
) -> None:
    turns = itertools.count()

    def reply(path: str, body: Mapping[str, Any]) -> tuple[int, object]:
        if path != "/v1/chat/completions":
            return 404, {}
        return completion("the same until here: " + "ab"[next(turns) % 2])

    one = dict(itertools.islice(prompts.items(), 1))
    found = asked_by(reply, one)
    by_name = {condition.name: condition for condition in found.conditions}
    assert (found.unit, found.cold_by, found.cached_cold) == ("character", None, None)
    assert (by_name["again"].differing, by_name["again"].first) == (1, 22)
    assert (by_name["warm"].n, by_name["warm"].why_not) == (0, NO_COLD)
    assert found.untried == ("warm",)


def test_vllm_without_its_development_mode_is_asked_cold_by_a_salt(prompts: Mapping[str, Sequence[Message]]) -> None:
    salts: list[str] = []

    def reply(path: str, body: Mapping[str, Any]) -> tuple[int, object]:
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path != "/v1/chat/completions":
            return 404, {}
        salts.append(body["cache_salt"])
        return completion("x", token_ids=[1])

    found = asked_by(reply, dict(itertools.islice(prompts.items(), 2)))
    assert (found.cold_by, found.untried) == ("salt", ())
    assert len(set(salts[:6])) == 6  # reference, again, order
    assert salts[6] == salts[7] != salts[8] == salts[9]  # warm: the same salt twice


FORM = RequestForm(chat_template_kwargs={"enable_thinking": False}, extra_body={"top_k": 5})


def test_a_request_says_seed_tools_and_template_arguments_only_where_there_are_any() -> None:
    bodies: list[Mapping[str, Any]] = []

    def reply(path: str, body: Mapping[str, Any]) -> tuple[int, object]:
        bodies.append(body)
        return completion("x")

    with small_server(reply) as url, Asking(url, "m", max_tokens=7).connect() as plain:
        plain.ask([{"role": "user", "content": "?"}], seed=None)
    with small_server(reply) as url, Asking(url, "m", form=FORM).connect() as other:
        other.ask([{"role": "user", "content": "?"}], seed=5)
    assert set(bodies[0]) == {"model", "messages", "temperature", "max_tokens", "return_token_ids"}
    assert (bodies[1]["seed"], bodies[1]["top_k"]) == (5, 5)
    assert bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("answer", "says"),
    [((500, "broken"), "HTTP 500: broken"), ((200, {"choices": []}), "reading the reply"), ((200, "x"), "reading")],
)
def test_a_request_that_fails_fails_the_self_test(
    prompts: Mapping[str, Sequence[Message]], answer: tuple[int, object], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        asked_by(lambda path, body: answer if "chat" in path else (404, {}), prompts)


def test_a_cache_that_stays_in_use_is_an_error_and_no_cold_start() -> None:
    with (
        small_server(lambda path, body: (200, {"success": False})) as url,
        Asking(url, "m").connect() as connection,
        pytest.raises(ModelError, match="the prefix cache stays in use"),
    ):
        assert connection.cold_by() == "reset"
        connection.reset(within_s=0.2)


@pytest.mark.parametrize("style", ["fence", "tool"])
def test_the_shared_case_of_a_seed_that_is_not_kept(
    tmp_path: Path, prompts: Mapping[str, Sequence[Message]], style: str
) -> None:
    with serve_shared("044-seed-not-kept", style, tmp_path) as served:
        found = self_test(Asking(served.url, "mock"), dict(itertools.islice(prompts.items(), 1)))
    assert "again" in found.broken
    assert (found.unit, found.cold_by) == ("character", None)


# --- comparing


IDS = st.lists(st.integers(0, 3), max_size=8).map(tuple)


def answer(ids: tuple[int, ...] | None, text: str = "") -> Answer:
    return Answer(text, ids, {}, "stop", None)


@settings(derandomize=True, deadline=None)
@given(IDS, IDS)
def test_the_first_difference_is_where_the_common_start_ends(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    place = first_difference(answer(one), answer(other), "token")
    assert place == first_difference(answer(other), answer(one), "token")
    assert (place is None) == (one == other)
    if place is not None:
        assert one[: place - 1] == other[: place - 1]
        assert one[place - 1 : place] != other[place - 1 : place]


def test_ids_for_some_replies_only_are_an_error() -> None:
    with pytest.raises(ModelError, match="token ids for some replies and not for others"):
        first_difference(answer((1,)), answer(None), "token")


# --- the table


def test_the_table_reads_from_what_the_manifest_holds(prompts: Mapping[str, Sequence[Message]]) -> None:
    found = asked_by(lambda path, body: completion("x") if "chat" in path else (404, {}), prompts)
    table = selftest_table(json.loads(json.dumps(found.facts())))
    shown = {form: render(table, form) for form in FORMATS}
    assert all("handover" in text for text in shown.values())
    assert "0/8 (0%)" in shown["text"]
    assert "hence not vouched for: warm" in shown["text"]
    assert "here 0.31" in shown["text"]


def test_the_bound_is_about_3_over_n() -> None:
    def bound(n: int) -> float:
        return SelfTest("m", "u", n, 1, 0.0, "", "token", None, None, None, ()).bound

    assert bound(1) == pytest.approx(0.95)
    assert 100 * bound(100) == pytest.approx(3, rel=0.02)


# --- the command


def forkroll(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "FORKROLL_CACHE": str(folder / "cache")}
    command = [str(FORKROLL), "selftest", "--prompts", "4", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_the_exit_code_is_the_verdict_on_all(tmp_path: Path) -> None:
    sticky = card_file(tmp_path, flags={"noise": "server_sticky", "set": "small.sigma=1.5"})
    noisy = card_file(tmp_path, "noisy", flags={"noise": "iid", "set": "small.sigma=1.5"})
    assert forkroll(tmp_path, str(sticky)).returncode == 0
    assert forkroll(tmp_path, str(sticky), "--restart").returncode == 1
    both = forkroll(tmp_path, str(sticky), str(noisy), "--json")
    assert both.returncode == 1
    tables = json.loads(both.stdout)
    assert [table["name"] for table in tables] == ["selftest1", "selftest2"]
    assert "does not repeat itself" in tables[1]["title"]


def test_an_address_is_asked_for_the_model_that_is_named(tmp_path: Path) -> None:
    card = simulated(tmp_path, "server_sticky")
    with serving([card], launch(tmp_path, [])):
        asked = forkroll(tmp_path, card.root_url)
        assert (asked.returncode, "small · repeats itself" in asked.stdout) == (0, True)
        refused = forkroll(tmp_path, card.root_url, "--model", "nobody")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "HTTP 404" in refused.stderr
        restarted = forkroll(tmp_path, card.root_url, "--restart")
        assert "is not ours to restart" in restarted.stderr


def test_a_studys_prompts_and_temperature_are_asked(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(
        "{name: s, seed: 1, tasks: {count: 2}, models: {a: {client: scripted, commands: [ls]}},"
        " directions: {up: {base: a, swap: a}}, forks: {rule: absolute, at: [1]}, sampling: {temperature: 0.5}}"
    )
    asked = forkroll(tmp_path, str(card_file(tmp_path)), "--study", str(study), "--json")
    (table,) = json.loads(asked.stdout)
    assert "2 prompts, replies of at most 64 tokens, temperature 0.5" in table["title"]


def test_no_server_at_an_address_is_said(tmp_path: Path) -> None:
    refused = forkroll(tmp_path, "http://127.0.0.1:9")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "no model server answers at http://127.0.0.1:9/v1" in refused.stderr
