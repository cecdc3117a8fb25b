"""What a person tries after the quickstart: the bundled tasks with two models behind servers of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.simulated.process import SimulatedServer
from harness.sandbox.namespace import available

FORKROLL = Path(sys.executable).with_name("forkroll")


def forkroll(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "FORKROLL_CACHE": str(cwd / "cache")}
    return subprocess.run(
        [str(FORKROLL), *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_two_servers_by_key_and_value(tmp_path: Path) -> None:
    if (why_not := available()) is not None:
        pytest.skip(why_not)
    with SimulatedServer(["--models", "small"]) as one, SimulatedServer(["--models", "large"]) as other:
        overrides = [
            *(f"models.a.base_url={one.base_url}", "models.a.model=small"),
            *(f"models.b.base_url={other.base_url}", "models.b.model=large"),
        ]
        plan = forkroll(tmp_path, "run", "any-two-models", *overrides, "--dry-run")
        assert plan.returncode == 0, plan.stderr
        assert "4 bases, at most 8 forks, at most 32 branches" in plan.stdout
        assert not (tmp_path / "runs").exists()
        made = forkroll(tmp_path, "run", "any-two-models", *overrides, "tasks.count=1")
    assert made.returncode == 0, made.stderr
    assert "fork table · any-two-models · 1 tasks, 1 bases, 2 forks, 8 branches" in made.stdout


def test_a_server_that_is_not_there_is_named_before_anything_is_written(tmp_path: Path) -> None:
    made = forkroll(tmp_path, "run", "any-two-models", "models.a.base_url=http://127.0.0.1:9/v1", "--allow-unsandboxed")
    assert made.returncode == 2
    assert made.stderr.startswith("forkroll: model 'a': no answer from http://127.0.0.1:9/v1")
    assert not (tmp_path / "runs").exists()
