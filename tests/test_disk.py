"""The disk limit: on the sum of what a sandbox wrote, whatever the number of files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.record import Exit
from harness.sandbox.disk import bytes_in
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits

MEBIBYTE = 1024 * 1024
WHY_NOT = available()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no namespaces here: {WHY_NOT}")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(b"x" * 4 * MEBIBYTE)  # of the image: not counted
    limits = SandboxLimits(disk_bytes=16 * MEBIBYTE)
    with (
        NamespaceProvider(limits=limits, scratch=tmp_path / "scratch") as provider,
        provider.start(Image(name="tree", tree=tree)) as started,
    ):
        yield started


WRITE = "for i in $(seq {count}); do head -c 1048576 /dev/zero > f{name}$i; done; echo wrote"


def test_a_step_that_leaves_too_much_is_ended_by_the_disk_limit_and_the_sandbox_goes_on(sandbox: Sandbox) -> None:
    assert sandbox.act(WRITE.format(count=8, name="a"), timeout_s=20).ended is Exit.EXITED
    over = sandbox.act(WRITE.format(count=12, name="b"), timeout_s=20)
    assert (over.ended, over.exit_code) == (Exit.DISK_LIMIT, None)
    assert sandbox.act("ls | wc -l", timeout_s=5).exit_code == 0
    assert sandbox.act("rm -f f*; echo free", timeout_s=5).output == b"free\n"
    assert sandbox.act(WRITE.format(count=8, name="c"), timeout_s=20).output == b"wrote\n"


def test_a_step_that_writes_for_ever_is_ended_while_it_runs(sandbox: Sandbox) -> None:
    endless = "echo start; i=0; while :; do i=$((i+1)); head -c 1048576 /dev/zero > f$i; sleep 0.02; done"
    seen = sandbox.act(endless, timeout_s=30)
    assert (seen.ended, seen.output) == (Exit.DISK_LIMIT, b"start\n")
    assert sandbox.act("echo next", timeout_s=5).output == b"next\n"
    assert int(sandbox.act("du -sm . | cut -f1", timeout_s=5).output) < 200


def test_what_is_written_outside_the_working_tree_counts_too(sandbox: Sandbox) -> None:
    assert sandbox.act("cd /tmp; " + WRITE.format(count=20, name="t"), timeout_s=20).ended is Exit.DISK_LIMIT


def test_what_the_image_holds_does_not_count(sandbox: Sandbox) -> None:
    assert sandbox.act("cat big | wc -c", timeout_s=5).output == b"4194304\n"


def test_bytes_are_those_on_disk(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "f").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(10**9)
    (tmp_path / "link").symlink_to("/usr")
    assert 100_000 <= bytes_in(tmp_path) < 200_000
    assert bytes_in(tmp_path / "none") == 0
