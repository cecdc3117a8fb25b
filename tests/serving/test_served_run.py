"""A study whose models are cards: servers come and go with the run, and a gate stands before the sweep."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.journal import RunFolder
from tests.serving.parts import FORKROLL, answers, card_file, free_port, small_server

LOUD = {"noise": "iid", "set": "small.sigma=1.5"}


def study_file(folder: Path, models: dict[str, str], **more: Any) -> Path:
    content = {
        "name": "s",
        "seed": 1,
        "tasks": {"set": "pocket", "count": 1},
        "sandbox": "namespace",
        "models": {name: {"client": "served", "card": card} for name, card in models.items()},
        "directions": {"up": {"base": "a", "swap": "b"}},
        "forks": {"rule": "absolute", "at": [2]},
        "replicates": 1,
        "limits": {"calls": 3},
        **more,
    }
    path = folder / "s.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def run(folder: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "FORKROLL_CACHE": str(folder / "cache")}
    command = [str(FORKROLL), "run", "s.yaml", *overrides]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def manifest(folder: Path) -> dict[str, Any]:
    return RunFolder(folder / "runs" / "s").manifest()


def test_servers_are_started_for_the_run_recorded_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    card = card_file(tmp_path, port=port)
    study_file(tmp_path, {"a": str(card), "b": str(card)})
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("card: ready at") == 1  # one card, one server
    assert not answers(port)
    facts = manifest(tmp_path)["sessions"][0]["models"]["a"]
    assert (facts["started"], facts["card"]["port"], facts["card"]["model"]) == (True, port, "small")
    records = RunFolder(tmp_path / "runs" / "s").records()
    steps = [step for record in (*records.bases.values(), *records.branches.values()) for step in record.steps]
    assert steps and {step.circumstances.server_epoch for step in steps} == {facts["epoch"]}


def test_a_restart_between_sessions_is_visible_in_the_records(tmp_path: Path) -> None:
    card = card_file(tmp_path)
    study_file(tmp_path, {"a": str(card), "b": str(card)})
    assert run(tmp_path, "limits.run.calls=1", "workers=1").returncode == 4
    assert run(tmp_path).returncode == 0
    sessions = manifest(tmp_path)["sessions"]
    epochs = [session["models"]["a"]["epoch"] for session in sessions]
    records = RunFolder(tmp_path / "runs" / "s").records()
    (base,) = records.bases.values()
    (branch, *_) = records.branches.values()
    assert base.steps[0].circumstances.server_epoch == epochs[0] != epochs[1]
    assert branch.steps[0].circumstances.server_epoch == epochs[1]


def test_a_changed_card_makes_another_study_and_a_moved_one_does_not(tmp_path: Path) -> None:
    card = card_file(tmp_path)
    study_file(tmp_path, {"a": str(card), "b": str(card)})
    assert run(tmp_path, "limits.run.calls=1", "workers=1").returncode == 4
    card_file(tmp_path, flags={"noise": "iid"})
    refused = run(tmp_path)
    assert refused.returncode == 2
    assert "the card of model a was changed since" in refused.stderr
    card_file(tmp_path)  # as at first, on another port
    assert run(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"server": "vllm", "flags": {}}, "parses no tool calls (`tool_parser`); set dialect=text"),
        ({"prot": 1}, "did you mean `port`?"),
    ],
)
def test_a_card_that_does_not_fit_is_found_before_anything_is_written(
    tmp_path: Path, content: dict[str, Any], says: str
) -> None:
    study_file(tmp_path, {"a": str(card_file(tmp_path, **content)), "b": "qwen3-14b-awq"})
    refused = run(tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert says in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_a_server_that_does_not_start_ends_the_run_with_nothing_written(tmp_path: Path) -> None:
    card = card_file(tmp_path, flags={"noise": "nonsense"})
    study_file(tmp_path, {"a": str(card), "b": str(card)})
    refused = run(tmp_path)
    assert refused.returncode == 2
    assert "card | " in refused.stderr and "no noise 'nonsense'" in refused.stderr
    assert not (tmp_path / "runs" / "s" / "study.yaml").exists()


def test_a_real_model_on_a_card_needs_a_sandbox_too(tmp_path: Path) -> None:
    study_file(tmp_path, {"a": "qwen3-4b-2507-fp8", "b": "qwen3-14b-awq"}, sandbox="local")
    refused = run(tmp_path)
    assert refused.returncode == 2
    assert "--allow-unsandboxed" in refused.stderr


def test_a_running_server_is_used_and_is_sent_what_card_and_study_say_and_its_start_known_by_metrics(
    tmp_path: Path,
) -> None:
    bodies: list[Mapping[str, Any]] = []

    def reply(path: str, body: Mapping[str, Any]) -> tuple[int, object]:
        if path == "/metrics":
            return 200, "process_start_time_seconds 1.79e+09\n"
        if path == "/v1/models":
            return 200, {"data": [{"id": "small", "max_model_len": 60_000}]}
        if path != "/v1/chat/completions":
            return 404, {}
        bodies.append(body)
        message = {"role": "assistant", "content": "```bash\nls\n```"}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "system_fingerprint": "same-for-ever"}

    with small_server(reply) as url:
        port = int(url.rpartition(":")[2].removesuffix("/v1"))
        card = card_file(tmp_path, port=port, chat_template_kwargs={"thinks": False}, extra_body={"a": 1, "b": 1})
        study_file(tmp_path, {"a": str(card)}, dialect="text", limits={"calls": 2})
        other = f"models.b={{client: openai, base_url: '{url}', model: small}}"
        done = run(tmp_path, "models.a.extra_body.b=2", other)
    assert done.returncode == 0, done.stderr
    assert "serves 'small' already" in done.stderr
    assert manifest(tmp_path)["sessions"][0]["models"]["a"]["started"] is False
    assert {body["chat_template_kwargs"]["thinks"] for body in bodies if "chat_template_kwargs" in body} == {False}
    assert {(body.get("a"), body.get("b")) for body in bodies} == {(1, 2), (None, None)}
    records = RunFolder(tmp_path / "runs" / "s").records()
    (base,) = records.bases.values()
    assert base.steps[0].circumstances.server_epoch == "card@2026-09-21T14:13:20.000+00:00"
    swaps = [branch for branch in records.branches.values() if branch.arm.name == "swap"]
    assert {branch.steps[0].circumstances.server_epoch for branch in swaps} == {"b@2026-09-21T14:13:20.000+00:00"}


# --- the gate


def gated(folder: Path, **flags: str) -> None:
    card = card_file(folder, flags=flags)
    gate = {"mode": "required", "prompts": 4, "tokens": 32}
    study_file(folder, {"a": str(card), "b": str(card)}, determinism=gate)


def test_required_runs_where_nothing_differs_and_records_what_was_found(tmp_path: Path) -> None:
    gated(tmp_path, noise="off")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 of 4 prompts differ under any condition that counts" in done.stderr
    assert done.stdout.startswith("determinism self-test · small · repeats itself · 4 prompts")
    assert "fork table" in done.stdout
    found = manifest(tmp_path)["sessions"][0]["determinism"]
    assert found["a"] == found["b"]
    assert (found["a"]["deterministic"], found["a"]["prompts"], found["a"]["untried"]) == (True, 4, [])


def test_required_refuses_where_something_differs_and_measure_goes_on(tmp_path: Path) -> None:
    gated(tmp_path, **LOUD)
    refused = run(tmp_path)
    assert refused.returncode == 1
    assert refused.stdout.startswith("determinism self-test · small · does not repeat itself")
    assert "fork table" not in refused.stdout
    assert "refused: determinism is required, and these models do not repeat themselves: a (seed)" in refused.stderr
    folder = RunFolder(tmp_path / "runs" / "s")
    assert folder.records().finished() == frozenset() and not list(folder.records_folder.iterdir())
    assert manifest(tmp_path)["sessions"][0]["determinism"]["a"]["broken"] == ["seed"]
    resumed = run(tmp_path, "determinism=measure")  # an operational key: it is the same run
    assert resumed.returncode == 0, resumed.stderr
    assert [session["determinism"]["a"]["broken"] for session in manifest(tmp_path)["sessions"]] == [["seed"]] * 2


def test_a_model_behind_no_server_is_said_to_be_untested(tmp_path: Path) -> None:
    path = study_file(tmp_path, {"a": str(card_file(tmp_path))}, determinism={"mode": "measure", "prompts": 2})
    content = json.loads(path.read_text())
    content["models"]["b"] = {"client": "scripted", "commands": ["ls", "pwd", "ls", "pwd", "ls"]}
    path.write_text(json.dumps(content))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model 'b' is behind no server" in done.stderr
    assert list(manifest(tmp_path)["sessions"][0]["determinism"]) == ["a"]
