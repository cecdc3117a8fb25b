"""Clean-up removes what dead drivers left and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.clean import clean, owner_lives
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import Image, SandboxLimits

DRIVER = """
import sys, time
from pathlib import Path
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import Image, SandboxLimits
provider = LocalProvider(limits=SandboxLimits(), scratch=Path(sys.argv[1]))
with provider.start(Image(name="tree", tree=Path(sys.argv[2]))) as sandbox:
    sandbox.act("echo x > f", timeout_s=5)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    (made / "a.txt").write_text("a\n")
    return made


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def killed_with_its_spawner(scratch: Path, tree: Path) -> int:
    """A driver that was killed together with the process that would have cleaned up after it; its pid."""
    command = [sys.executable, "-c", DRIVER, str(scratch), str(tree)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    (spawner,) = children(driver.pid)
    for pid in (spawner, driver.pid):
        os.kill(pid, signal.SIGKILL)
    driver.communicate()
    return driver.pid


def test_what_a_dead_driver_left_goes(tmp_path: Path, tree: Path) -> None:
    scratch = tmp_path / "run" / "sandboxes"
    pid = killed_with_its_spawner(scratch, tree)
    (left,) = scratch.iterdir()
    assert str(pid) in left.name
    reaped = clean([tmp_path / "run"], only=tmp_path / "run")
    assert [(found.kind, found.name) for found in reaped] == [("folder", str(left))]
    assert list(scratch.iterdir()) == []
    assert clean([tmp_path / "run"], only=tmp_path / "run") == []


def test_what_a_living_driver_uses_stays(tmp_path: Path, tree: Path) -> None:
    scratch = tmp_path / "run" / "sandboxes"
    provider = LocalProvider(limits=SandboxLimits(), scratch=scratch)
    with provider.start(Image(name="tree", tree=tree)) as sandbox:
        assert clean([tmp_path / "run"]) == []
        assert sandbox.act("cat a.txt", timeout_s=5).output == b"a\n"
    provider.close()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    scratch = tmp_path / "run" / "sandboxes"
    kept = [
        scratch / name for name in ("notes", "forkroll-", "forkroll-local-notanumber-x", "xforkroll-local-999999999-a")
    ]
    for folder in kept:
        folder.mkdir(parents=True)
    (scratch / "forkroll-local-999999999-file").write_text("a file, not a folder of ours\n")
    assert clean([tmp_path / "run"], only=tmp_path / "run") == []
    assert all(folder.is_dir() for folder in kept)


def test_an_id_that_went_to_a_younger_process_is_a_dead_owner() -> None:
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        assert owner_lives(sleeper.pid, time.time())
        assert not owner_lives(sleeper.pid, time.time() - 3600)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert not owner_lives(sleeper.pid, time.time())
