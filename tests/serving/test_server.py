"""Servers as real processes: they come up, are found, fail with their last words, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from harness.errors import ConfigError
from harness.serving.address import Address
from harness.serving.server import RunningServer, serving
from tests.serving.parts import (
    FORKROLL,
    SERVES,
    answers,
    card_file,
    eventually,
    free_port,
    launch,
    made_card,
    runs,
    small_server,
    stand_in,
    vllm_card,
)

LINGERS = """
trap '' TERM
setsid sleep 600 & echo $! >"$FOLDER/orphan"
sleep 600 & echo $! >"$FOLDER/child"
echo $$ >"$FOLDER/server"
"""
"""A stand-in that ignores TERM and has children in its process group and out of it."""
WAITS = "while :; do sleep 0.1; done\n"


def pid_of(server: RunningServer) -> int:
    assert server.kept is not None
    return server.kept.pid


# --- up and down


def test_a_server_is_healthy_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    card, said = made_card(tmp_path), list[str]()
    with serving([card], launch(tmp_path, said)) as (server,):
        assert Address(card.root_url).served() == ["small"]
        assert server.started and server.exit_status() is None
        assert runs(pid_of(server))
    assert not runs(pid_of(server)) and not answers(card.port)
    assert said[0].startswith("card: starting, at most 900 s · log ")
    assert f"card: ready at http://127.0.0.1:{card.port}/v1" in said[-1]


def test_what_is_recorded_says_how_to_start_it_again_and_keeps_secrets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    monkeypatch.setenv("HF_HUB_TOKEN", "sesame")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    card = made_card(tmp_path, env={"TORCH_SHOW": "1"})
    with serving([card], launch(tmp_path, [])) as (server,):
        facts = server.facts
    assert facts["started"] is True
    assert facts["command"][1:3] == ["-m", "harness.model.simulated.server"]
    assert facts["environment"]["TORCH_SHOW"] == "1"
    assert facts["environment"]["VLLM_LOGGING_LEVEL"] == "INFO"
    assert "sesame" not in repr(facts)
    assert facts["card_digest"] == card.digest
    assert facts["epoch"] == server.epoch


def test_versions_are_those_of_the_servers_own_interpreter(tmp_path: Path) -> None:
    python = stand_in(tmp_path, SERVES).replace("stand-in", "with-versions")
    Path(python).write_text(
        Path(python).with_name("stand-in").read_text().replace("then exit 0;", 'then echo \'{"vllm": "0.0"}\'; exit 0;')
    )
    Path(python).chmod(0o755)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    card = vllm_card(tmp_path, model=str(folder), served_name="small")
    with serving([card], launch(tmp_path, [], python)) as (server,):
        assert server.facts["versions"] == {"vllm": "0.0"}
        first = server.facts["revision"]
    (folder / "config.json").write_text("{ }")
    with serving([card], launch(tmp_path, [], python)) as (server,):
        assert server.facts["revision"] != first
    assert str(first).startswith("sha256:")


def test_each_start_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    card, epochs = made_card(tmp_path), set()
    for _ in range(2):
        with serving([card], launch(tmp_path, [])) as (server,):
            epochs.add(server.epoch)
    assert len(epochs) == 2


def test_an_epoch_is_the_start_time_that_the_servers_metrics_give(tmp_path: Path) -> None:
    def reply(path: str, body: object) -> tuple[int, object]:
        if path == "/metrics":
            return 200, "# HELP x\nprocess_start_time_seconds 1.79e+09\n"
        return 200, {"data": [{"id": "small"}]}

    with small_server(reply) as url:
        card = made_card(tmp_path, port=httpx.URL(url).port)
        with serving([card], launch(tmp_path, [])) as (server,):
            assert server.epoch == "card@2026-09-21T14:13:20.000+00:00"


# --- what is there already


def test_a_running_server_is_used_said_to_be_and_not_stopped(tmp_path: Path) -> None:
    card, said = made_card(tmp_path), list[str]()
    with serving([card], launch(tmp_path, [])) as (first,):
        with serving([card], launch(tmp_path, said)) as (second,):
            assert (second.started, second.facts["started"]) == (False, False)
            assert second.exit_status() is None
        assert answers(card.port) and runs(pid_of(first))
    assert said == [f"card: {card.root_url} serves 'small' already; it is used as it is, flags unseen"]


def test_another_model_at_the_address_is_named(tmp_path: Path) -> None:
    card = made_card(tmp_path)
    other = card.model_copy(update={"model": "large"})
    with (
        serving([card], launch(tmp_path, [])),
        pytest.raises(ConfigError, match="serves small, not 'large'"),
        serving([other], launch(tmp_path, [])),
    ):
        pass


def test_a_port_taken_by_something_else_is_found_before_anything_starts(tmp_path: Path) -> None:
    with small_server(lambda path, body: (404, {})) as url:
        card = made_card(tmp_path, port=httpx.URL(url).port)
        with (
            pytest.raises(ConfigError, match=rf"port {card.port} is taken by something that is no model server"),
            serving([card], launch(tmp_path, [])),
        ):
            pass
    assert not (tmp_path / "cache" / "servers").exists()


# --- failures


def test_a_command_that_ends_at_once_is_shown_with_its_last_words(tmp_path: Path) -> None:
    said: list[str] = []
    python = stand_in(tmp_path, "echo first; echo no such device >&2; exit 3\n")
    with (
        pytest.raises(ConfigError, match="ended with exit status 3 before it was ready") as caught,
        serving([vllm_card(tmp_path)], launch(tmp_path, said, python)),
    ):
        pass
    assert said[-2:] == ["card | first", "card | no such device"]
    assert "\n" not in str(caught.value)


def test_a_server_that_is_never_healthy_is_given_up_and_ended(tmp_path: Path) -> None:
    said: list[str] = []
    python = stand_in(tmp_path, f"echo $$ >{tmp_path}/server; echo loading weights; {WAITS}")
    card = vllm_card(tmp_path, start_seconds=1)
    with (
        pytest.raises(ConfigError, match="not ready after 1 s"),
        serving([card], launch(tmp_path, said, python, progress_seconds=0.3)),
    ):
        pass
    assert any("not ready after" in line and "of 1 · loading weights" in line for line in said)
    assert not runs(int((tmp_path / "server").read_text()))


def test_a_second_server_that_fails_takes_the_first_down_too(tmp_path: Path) -> None:
    first, second = made_card(tmp_path, "first"), vllm_card(tmp_path, "second")
    python = stand_in(tmp_path, "exit 1\n")
    with pytest.raises(ConfigError, match="second"), serving([first, second], launch(tmp_path, [], python)):
        pass
    assert not answers(first.port)


def test_an_interpreter_without_vllm_is_named_with_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"has no vLLM; .*--python or FORKROLL_VLLM_PYTHON"),
        serving([vllm_card(tmp_path)], launch(tmp_path, [], sys.executable)),
    ):
        pass


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="/no/such/python cannot be run"),
        serving([vllm_card(tmp_path)], launch(tmp_path, [], "/no/such/python")),
    ):
        pass


# --- nothing is left behind


def left_by(folder: Path) -> list[int]:
    return [int((folder / name).read_text()) for name in ("server", "child", "orphan")]


def lingering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOLDER", str(folder))
    return stand_in(folder, LINGERS + SERVES.removeprefix("exec "))


def test_what_ignores_term_or_left_the_group_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, card = lingering(tmp_path, monkeypatch), vllm_card(tmp_path, served_name="small")
    with serving([card], launch(tmp_path, [], python, grace_seconds=0.3)):
        assert all(runs(pid) for pid in left_by(tmp_path))
    assert not any(runs(pid) for pid in left_by(tmp_path))
    assert not answers(card.port)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    python, port = lingering(tmp_path, monkeypatch), free_port()
    card = card_file(tmp_path, server="vllm", flags={}, served_name="small", port=port)
    command = [str(FORKROLL), "serve", str(card), "--python", python, "--grace", "0.3"]
    env = {**os.environ, "FORKROLL_CACHE": str(tmp_path / "cache")}
    driver = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    assert any("ready at" in line for line in driver.stderr)
    pids = left_by(tmp_path)
    assert all(runs(pid) for pid in pids)
    driver.send_signal(number)
    driver.communicate(timeout=30)
    assert driver.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    assert eventually(lambda: not any(runs(pid) for pid in pids)), [pid for pid in pids if runs(pid)]


def test_the_server_dies_with_its_keeper(tmp_path: Path) -> None:
    card = made_card(tmp_path)
    with ExitStack() as stack:
        (server,) = stack.enter_context(serving([card], launch(tmp_path, [])))
        parent = int(Path(f"/proc/{pid_of(server)}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert eventually(lambda: not runs(pid_of(server)))
        assert eventually(lambda: server.exit_status() == -signal.SIGKILL)


# --- the command


def test_serve_says_when_a_server_ends_by_itself(tmp_path: Path) -> None:
    card = card_file(tmp_path)
    env = {**os.environ, "FORKROLL_CACHE": str(tmp_path / "cache")}
    driver = subprocess.Popen([str(FORKROLL), "serve", str(card)], env=env, stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    assert any("ready at" in line for line in driver.stderr)
    server = server_below(driver.pid)
    os.kill(server, signal.SIGTERM)
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 4
    assert "card: the server ended, exit status 0; its log:" in errors


def server_below(driver: int) -> int:
    """The server's process id: the keeper's only child, which is the driver's."""
    (keeper,) = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    (server,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return int(server)


def test_show_prints_the_command_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(FORKROLL), "serve", "--show", "qwen3-4b-2507-fp8", "--python", "/env/python"],
        env={**os.environ, "FORKROLL_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "/env/python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-4B-Instruct-2507-FP8" in done.stdout
    assert list(tmp_path.iterdir()) == []
