"""Snapshots: what is captured comes back as it was, nothing else does, and the store keeps what it says."""

import io
import os
import shlex
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import SandboxError
from harness.sandbox.archive import DELETED, NotCaptured
from harness.sandbox.layers import OverlayLayer
from harness.sandbox.live import LiveSandbox
from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.snapshots import Snapshots, SnapshotStore

NAMES = (
    "a",
    "d",
    "e",
    "d/e",
    "d/e/a",
    "a.b/a",
    "ln",
    "new",
    "new/in",
    "__pycache__",
    "caf\u00e9",
    "/tmp/t",
    "/root/.x/y",
)
OUTSIDE = ("/tmp/t", "/root/.x/y", "/home/h")
ODD = tuple(os.fsdecode(name) for name in (b"latin\xe9", b"new\nline", b'q"', b" ", b"-x", b"tab\t", b"n" * 200))
PATHS = st.sampled_from(NAMES + ODD + OUTSIDE).map(lambda name: shlex.quote(_anchored(name)))


def _anchored(name: str) -> str:
    return name if name.startswith("/") else f"./{name}"


EDITS = st.one_of(
    st.builds(lambda path, text: f"[ -p {path} ] || printf {text} > {path}", PATHS, st.sampled_from(["x", "yy", "''"])),
    st.builds(lambda path, text: f"[ -p {path} ] || printf {text} >> {path}", PATHS, st.sampled_from("xy")),
    st.builds(lambda path, mode: f"chmod {mode} {path}", PATHS, st.sampled_from(["755", "000", "4711", "1777", "640"])),
    st.builds(lambda path: f"rm -rf {path}", PATHS),
    st.builds(lambda path: f"mkdir -p {path}", PATHS),
    st.builds(lambda path: f"rm -rf {path}; mkdir -p {path}; echo z > {path}/z", PATHS),
    st.builds(lambda path, target: f"ln -sfn {target} {path}", PATHS, PATHS),
    st.builds(lambda path, target: f"ln -f {path} {target}", PATHS, PATHS),
    st.builds(lambda path, target: f"mv -T {path} {target}", PATHS, PATHS),
    st.builds(lambda path, target: f"cp -a -T {path} {target}", PATHS, PATHS),
    st.builds(lambda path: f"rm -rf {path}; mkfifo {path}", PATHS),
    st.builds(lambda path: f"touch -h -d '1969-07-20 20:17:40.123456789' {path}", PATHS),
    st.sampled_from(["git add -A", "git commit -qm m", "git checkout -q --detach", "rm -rf .git", "rm -rf /home /srv"]),
)

LISTING = r"""
cd /; mounts=(-path ./proc)
while read -r _ _ _ _ at _; do [ $at = / ] || mounts+=(-o -path .$at); done </proc/self/mountinfo
find . -mindepth 1 \( "${mounts[@]}" \) -prune -o -printf '%p %y %m %T@ %l ' \
  \( -type d -printf '\n' -o -printf '%s %n\n' \) | LC_ALL=C sort
find testbed tmp root/.x home dev/shm -type f -exec sha256sum {} + | LC_ALL=C sort
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    tree = tmp_path_factory.mktemp("image") / "tree"
    tree.mkdir()
    script = (
        "git init -q -b main; git config user.email a@b.c; git config user.name n; umask 027;"
        "mkdir -p d/e/a a.b e; for f in a d/a d/b d/e/a/b a.b/a e/f; do echo $f > $f; done;"
        "ln -s d ln; chmod 750 d; git add -A; git commit -qm base; touch -d 2020-02-02T02:02:02.5 d d/e e/f"
    )
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)
    return Image("snapshots", tree)


@pytest.fixture(scope="module", params=["overlay", "copy"])
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProvider]:
    if (why := available()) is not None:
        pytest.skip(why)
    scratch, overlay = tmp_path_factory.mktemp("scratch"), request.param == "overlay"
    with NamespaceProvider(limits=SandboxLimits(), scratch=scratch, overlay=overlay) as made:
        yield made


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProvider]:
    if (why := available()) is not None:
        pytest.skip(why)
    with NamespaceProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch")) as made:
        yield made


def look(box: Sandbox) -> tuple[str | None, bytes]:
    return box.digest(), box.act(LISTING, timeout_s=20).output


def run(box: Sandbox, command: str) -> str:
    return box.act(command, timeout_s=20).output.decode("utf-8", "replace")


# --- what comes back


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(first=st.lists(EDITS, max_size=8), second=st.lists(EDITS, max_size=4))
def test_whatever_was_done_comes_back_and_can_be_captured_again(
    provider: NamespaceProvider, image: Image, tmp_path: Path, first: list[str], second: list[str]
) -> None:
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    for path in (one, two):
        path.unlink(missing_ok=True)
    with provider.start(image) as box:
        box.act("\n".join(f"{{ {edit}; }}" for edit in first), timeout_s=20)
        if not captured(box, one):
            return
        before = look(box)
    with provider.start(image, snapshot=one) as box:
        assert look(box) == before
        box.act("\n".join(f"{{ {edit}; }}" for edit in second), timeout_s=20)
        if not captured(box, two):
            return
        before = look(box)
    with provider.start(image, snapshot=two) as box:
        assert look(box) == before


def captured(box: Sandbox, into: Path) -> bool:
    """True; but an ordinary user's private copy may hold what is closed to its owner, and then there is no archive."""
    done = box.snapshot(into)
    assert done or os.geteuid() != 0
    return done


def test_a_restored_state_is_captured_to_the_byte(overlay: NamespaceProvider, image: Image, tmp_path: Path) -> None:
    with overlay.start(image) as box:
        run(box, "echo x >> a; rm -rf d; mkdir d; echo y > d/y; rm e/f; ln a hard; mkfifo p; git add -A; echo > /tmp/t")
        assert box.snapshot(tmp_path / "one.tar")
    with overlay.start(image, snapshot=tmp_path / "one.tar") as box:
        assert box.snapshot(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_overlay_and_copy_restore_each_other_s_snapshots(
    overlay: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    edits = "echo x >> a; rm -rf d; echo file > d; mkdir new; chmod 700 e; rm ln; mkdir ln; echo t > /tmp/t; rm -r a.b"
    with NamespaceProvider(limits=SandboxLimits(), scratch=tmp_path, overlay=False) as copy:
        for giver, taker in ((overlay, copy), (copy, overlay)):
            archive = tmp_path / f"{giver is copy}.tar"
            with giver.start(image) as box:
                run(box, edits)
                assert box.snapshot(archive)
                digest = box.digest()
            with taker.start(image, snapshot=archive) as box:
                assert box.digest() == digest
                assert run(box, "cat d /tmp/t; ls a.b 2>/dev/null; stat -c %a e") == "file\nt\n700\n"


def test_every_path_that_an_action_may_write_is_captured(
    overlay: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    with overlay.start(image) as box:
        # Every writable mount point is tried; the driver's own and the kernel's are not the actions' business.
        places = run(box, "find / -xdev -type d -writable 2>/dev/null; awk '{print $5}' /proc/self/mountinfo").split()
        for place in dict.fromkeys(places):
            if not place.startswith(("/proc", "/dev/pts", "/opt/forkroll", "/testbed/.git")):
                run(box, f"echo {place} > {place}/.mark 2>/dev/null")
        written = run(box, "for p in " + " ".join(dict.fromkeys(places)) + "; do cat $p/.mark 2>/dev/null; done")
        assert {"/", "/tmp", "/var/tmp", "/dev/shm", "/root", "/testbed", "/home", "/run"} <= set(written.split())
        assert box.snapshot(tmp_path / "all.tar")
    with overlay.start(image, snapshot=tmp_path / "all.tar") as box:
        again = run(box, "for p in " + " ".join(dict.fromkeys(places)) + "; do cat $p/.mark 2>/dev/null; done")
    assert again == written


def test_git_sees_no_difference(provider: NamespaceProvider, image: Image, tmp_path: Path) -> None:
    look_around = "git status --porcelain=v2; git log --oneline; git stash list; git diff --cached"
    with provider.start(image) as box:
        run(box, "echo 1 >> a; git stash -q; echo 2 >> d/a; git add -A; echo 3 > u; git -c user.name=n commit -qam m")
        assert box.snapshot(tmp_path / "git.tar")
        seen, diff = run(box, look_around), box.working_diff("HEAD")
    with provider.start(image, snapshot=tmp_path / "git.tar") as box:
        assert (run(box, look_around), box.working_diff("HEAD")) == (seen, diff)


def test_restored_sandboxes_do_not_see_each_other(provider: NamespaceProvider, image: Image, tmp_path: Path) -> None:
    archive = tmp_path / "one.tar"
    with provider.start(image) as box:
        run(box, "echo common > shared; rm a")
        assert box.snapshot(archive)
    content = archive.read_bytes()
    with provider.start(image, snapshot=archive) as one, provider.start(image, snapshot=archive) as other:
        run(one, "echo mine >> shared; echo back > a; rm -rf d")
        assert run(other, "cat shared; ls") == "common\na.b\nd\ne\nln\nshared\n"
        run(other, "rm shared")
        assert run(one, "cat shared a") == "common\nmine\nback\n"
    assert archive.read_bytes() == content
    with provider.start(image) as fresh:
        assert run(fresh, "cat a; ls") == "a\na\na.b\nd\ne\nln\n"


def test_live_processes_are_not_in_it(overlay: NamespaceProvider, image: Image, tmp_path: Path) -> None:
    with overlay.start(image) as box:
        run(box, "sleep 100 >/dev/null 2>&1 & echo $! > pid")
        assert box.processes() == ("sleep",)
        assert box.snapshot(tmp_path / "one.tar")
    with overlay.start(image, snapshot=tmp_path / "one.tar") as box:
        assert box.processes() == ()
        assert run(box, "test -s pid && echo there") == "there\n"


def test_a_snapshot_under_a_writer_is_whole_or_refused(
    overlay: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    with overlay.start(image) as box:
        run(box, "(while :; do echo x >> f; rm -rf g; mkdir g; ln -s /etc g/h; mv g k; rm -rf k; : > f; done) &")
        taken = [path for path in (tmp_path / f"{n}.tar" for n in range(40)) if box.snapshot(path)]
    assert sorted(tmp_path.iterdir()) == sorted(taken)
    for path in taken[:8]:
        with overlay.start(image, snapshot=path) as box:
            assert box.digest() is not None
            assert "passwd" not in run(box, "ls g/h/ k/h/ 2>/dev/null | grep -v . ; find . -name passwd")


def test_a_folder_that_turns_into_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("of the machine")
    upper = tmp_path / "upper"
    (upper / "x").mkdir(parents=True)
    (tmp_path / "lower").mkdir()
    found = OverlayLayer(upper, tmp_path / "lower").entries()
    assert next(found).path == b"x"
    (upper / "x").rmdir()
    (upper / "x").symlink_to(tmp_path / "outside")
    with pytest.raises(NotCaptured):
        next(found)


# --- what cannot be captured


@pytest.mark.parametrize(
    "state",
    [
        "python3 -c \"import os\nfor _ in range(2500):\n    os.mkdir('deep'); os.chdir('deep')\"",
        "truncate -s 400M a; truncate -s 400M b",
    ],
)
def test_a_state_that_cannot_be_captured_is_refused_and_leaves_nothing(
    overlay: NamespaceProvider, image: Image, tmp_path: Path, state: str
) -> None:
    with overlay.start(image) as box:
        run(box, state)
        assert not box.snapshot(tmp_path / "one.tar")
        assert list(tmp_path.iterdir()) == []
        assert run(box, "echo next") == "next\n"


def test_a_local_sandbox_says_that_it_cannot(image: Image, tmp_path: Path) -> None:
    with LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "s") as local:
        with local.start(image) as box:
            assert not box.snapshot(tmp_path / "one.tar")
            assert box.change_mark() is None
        with pytest.raises(SandboxError, match=r"x\.tar.*local"), local.start(image, snapshot=tmp_path / "x.tar"):
            pass


def test_what_is_closed_to_its_owner_is_captured_from_inside(image: Image, tmp_path: Path) -> None:
    """An ordinary user may not read what the sandbox's root may."""
    done = as_ordinary_user(_CLOSED, str(image.tree), str(tmp_path))
    if "cannot:" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert (done.stdout, done.stderr) == ("1000 True\nin closed\n0\n0\nsecret\n", "")


_CLOSED = """
import os, sys
from pathlib import Path
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, SandboxLimits
if why := available():
    sys.exit(print("cannot:", why))
place = Path(sys.argv[2])
image = Image("closed", Path(sys.argv[1]))
with NamespaceProvider(limits=SandboxLimits(), scratch=place / "scratch") as provider:
    with provider.start(image) as box:
        box.act("mkdir c; echo in closed > c/f; chmod 000 c; echo secret > s; chmod 000 s; rm a", timeout_s=5)
        print(os.geteuid(), box.snapshot(place / "one.tar"))
    with provider.start(image, snapshot=place / "one.tar") as box:
        print(box.act("cat c/f; stat -c %a c s; cat s; ls a 2>&-", timeout_s=5).output.decode(), end="")
"""


def as_ordinary_user(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `code` as a user without privileges: within a user namespace of its own, as nobody in particular there."""
    become = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*become, sys.executable, "-c", code, *arguments],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


# --- archives that are damaged or foreign


def make_archive(path: Path, *members: tuple[str, bytes, str], deleted: bytes = b"", first: str = "") -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, held in ((first or DELETED.decode(), tarfile.REGTYPE, deleted.decode()), *members):
            head = tarfile.TarInfo(name)
            head.type, head.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                head.size = len(held)
            else:
                head.linkname = held
            tar.addfile(head, io.BytesIO(held.encode()) if kind == tarfile.REGTYPE else None)
    return path


FOREIGN: dict[str, tuple[bytes, list[tuple[str, bytes, str]]]] = {
    "a path out of the root": (b"", [("../../x", tarfile.REGTYPE, "x")]),
    "an absolute path": (b"", [("/x", tarfile.REGTYPE, "x")]),
    "a deletion out of the root": (b"testbed/../../x\0", []),
    "through a symlink": (b"", [("tmp/l", tarfile.SYMTYPE, "/etc"), ("tmp/l/x", tarfile.REGTYPE, "x")]),
    "a folder that is a symlink": (b"", [("tmp/l", tarfile.SYMTYPE, "/etc"), ("tmp/l", tarfile.DIRTYPE, "")]),
    "a file in a file": (b"", [("tmp/f", tarfile.REGTYPE, "x"), ("tmp/f/g", tarfile.REGTYPE, "x")]),
    "a hard link to nothing": (b"", [("tmp/h", tarfile.LNKTYPE, "tmp/none")]),
    "a hard link out of the root": (b"", [("tmp/h", tarfile.LNKTYPE, "../../etc/passwd")]),
    "a device": (b"", [("tmp/d", tarfile.CHRTYPE, "")]),
    "a file in a folder that is sealed": (b"", [("usr/lib/x", tarfile.REGTYPE, "x")]),
    "a deletion of what is sealed": (b"usr/bin\0", []),
    "a deletion above what is sealed": (b"opt\0", []),
    "a member below the driver's own": (b"", [("opt/forkroll/runner.bash", tarfile.REGTYPE, "x")]),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_archive_is_an_error_that_names_it(
    provider: NamespaceProvider, image: Image, tmp_path: Path, what: str
) -> None:
    deleted, members = FOREIGN[what]
    archive = make_archive(tmp_path / "foreign.tar", *members, deleted=deleted)
    with pytest.raises(SandboxError, match=r"foreign\.tar"), provider.start(image, snapshot=archive):
        pass
    assert not (tmp_path / "x").exists() and not Path("/etc/x").exists() and not Path("/x").exists()
    with provider.start(image) as box:
        assert run(box, "cat a") == "a\n"


def test_folders_at_what_is_sealed_are_passed_over(overlay: NamespaceProvider, image: Image, tmp_path: Path) -> None:
    members = [("usr", tarfile.DIRTYPE, ""), ("usr/local", tarfile.DIRTYPE, ""), ("testbed/x", tarfile.REGTYPE, "x")]
    archive = make_archive(tmp_path / "one.tar", *members, deleted=b"testbed/not-there\0testbed/d\0")
    with overlay.start(image, snapshot=archive) as box:
        assert run(box, "cat x; ls; stat -c %a .") == "xa\na.b\ne\nln\nx\n755\n"


def test_parents_that_an_archive_leaves_out_are_the_image_s(
    provider: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    archive = make_archive(tmp_path / "one.tar", ("testbed/d/e/new", tarfile.REGTYPE, "x"))
    with provider.start(image, snapshot=archive) as box:
        assert (
            run(box, "stat -c %a d; cat d/b d/e/new; stat -c %y d | cut -c 1-21")
            == "750\nd/b\nx2020-02-02 02:02:02.5\n"
        )


@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "cut at a block", "header", "other tar", "none", "tail"])
def test_a_damaged_archive_is_an_error_that_names_it(
    overlay: NamespaceProvider, image: Image, tmp_path: Path, damage: str
) -> None:
    archive = tmp_path / "damaged.tar"
    with overlay.start(image) as box:
        run(box, "for n in 1 2 3 4 5 6 7 8; do seq 1000 > new$n; done")
        assert box.snapshot(archive)
    content = archive.read_bytes()
    middle = content.index(b"testbed/new5")
    broken = {
        "empty": b"",
        "noise": os.urandom(20_000),
        "cut": content[: middle + 700],
        "cut at a block": content[:middle],
        "header": content[:middle] + b"X" + content[middle + 1 :],
        "tail": content + b"more",
        "none": None,
        "other tar": None,
    }[damage]
    archive.unlink()
    if damage == "other tar":
        make_archive(archive, first="something")
    elif broken is not None:
        archive.write_bytes(broken)
    with pytest.raises(SandboxError, match=r"damaged\.tar"), overlay.start(image, snapshot=archive):
        pass


# --- marks


CHANGES = (
    "echo x >> a",
    "chmod 600 a",
    "touch a",
    "printf y | dd of=a conv=notrunc 2>/dev/null",
    "rm a",
    "mkdir a",
    "ln -s x d/s",
    "echo > /tmp/t",
    "rm -rf d",
    "mv e/f e/g",
    "chmod 700 e",
)


def test_a_mark_changes_with_every_change_and_with_nothing_else(provider: NamespaceProvider, image: Image) -> None:
    with provider.start(image) as box:
        marks = [box.change_mark()]
        for change in CHANGES:
            run(box, f"{change}; true")
            marks.append(box.change_mark())
            run(box, "cat a ln/* >/dev/null; git log -1; git --no-optional-locks status; ls -lR; true")
            box.digest()
            box.working_diff("HEAD")
            assert box.change_mark() == marks[-1], change
    assert None not in marks
    assert len(set(marks)) == len(marks)


def test_quick_changes_of_one_size_have_different_marks(provider: NamespaceProvider, image: Image) -> None:
    with provider.start(image) as box:
        marks = set()
        for number in range(100):
            box.write_file("quick", b"%03d" % number)
            run(box, "touch -d 2020-01-01 quick")
            marks.add(box.change_mark())
    assert len(marks) == 100


# --- the store


class Counting:
    """A sandbox's snapshots, counted."""

    def __init__(self, box: LiveSandbox) -> None:
        self._box = box
        self.taken = 0

    def change_mark(self) -> str | None:
        return self._box.change_mark()

    def snapshot(self, into: Path) -> bool:
        self.taken += 1
        return self._box.snapshot(into)


def test_a_step_that_changed_nothing_takes_no_snapshot_and_no_disk(
    overlay: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    store = SnapshotStore(tmp_path, 1 << 30)
    with overlay.start(image) as box:
        assert isinstance(box, LiveSandbox)
        counting, snapshots = Counting(box), Snapshots(store)
        addresses = []
        for command in ("echo x > f", "ls", "cat f", "echo y > f", "true"):
            run(box, command)
            addresses.append(snapshots.take(counting))  # type: ignore[arg-type]
    assert counting.taken == 2
    assert [addresses[0]] * 3 + [addresses[3]] * 2 == addresses
    assert len(list(tmp_path.iterdir())) == 2


def test_a_snapshot_that_was_evicted_meanwhile_is_taken_again(
    overlay: NamespaceProvider, image: Image, tmp_path: Path
) -> None:
    store = SnapshotStore(tmp_path, 1 << 30)
    with overlay.start(image) as box:
        snapshots = Snapshots(store)
        run(box, "echo x > f")
        first = snapshots.take(box)
        assert first is not None
        (tmp_path / f"{first}.tar").unlink()
        assert store.get(first) is None
        assert snapshots.take(box) == first
        assert store.get(first) is not None


def put(store: SnapshotStore, content: bytes) -> str:
    with store.free_path() as path:
        path.write_bytes(content)
        return store.put(path)


def test_equal_content_is_kept_once(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "blobs", 1000)
    assert put(store, b"x" * 100) == put(store, b"x" * 100)
    assert store.used == 100
    assert [stat.S_ISREG(path.stat().st_mode) for path in (tmp_path / "blobs").iterdir()] == [True]


@given(
    actions=st.lists(st.tuples(st.sampled_from(["put", "get", "restart"]), st.integers(0, 7)), max_size=40),
    budget=st.integers(0, 40),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_store_is_a_least_recently_used_cache(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], budget: int
) -> None:
    folder = tmp_path_factory.mktemp("blobs")
    store, model = SnapshotStore(folder, budget), {}
    for action, number in actions:
        content = bytes([number]) * (2 * number + 1)
        address = hashlib_of(content)
        if action == "restart":
            store = SnapshotStore(folder, budget)
        elif action == "put":
            assert put(store, content) == address
            if len(content) <= budget:
                model.pop(address, None)
                model[address] = len(content)
        else:
            assert (store.get(address) is not None) == (address in model)
            if address in model:
                model[address] = model.pop(address)
        while sum(model.values()) > budget:
            del model[next(iter(model))]
        assert {path.stem for path in folder.iterdir()} == set(model)
        assert store.used == sum(model.values()) <= budget


def hashlib_of(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def test_what_is_borrowed_does_not_go(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 100)
    old = put(store, b"a" * 60)
    with store.borrow(old) as path:
        put(store, b"b" * 60)
        assert path is not None and path.read_bytes() == b"a" * 60
        assert store.used == 60
    assert store.has(old)


def test_the_order_of_use_outlives_a_session(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 100)
    one, two = put(store, b"a" * 40), put(store, b"b" * 40)
    assert store.get(one) is not None
    store = SnapshotStore(tmp_path, 100)
    put(store, b"c" * 40)
    assert store.has(one) and not store.has(two)


def test_touching_decides_what_goes(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 100)
    one, two = put(store, b"a" * 40), put(store, b"b" * 40)
    store.touch([one, "unknown"])
    put(store, b"c" * 40)
    assert store.has(one) and not store.has(two)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"y" * 100), lambda path: path.unlink()])
def test_a_corrupt_blob_is_lost(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    store = SnapshotStore(tmp_path, 1000)
    address = put(store, b"x" * 100)
    damage(tmp_path / f"{address}.tar")
    with store.borrow(address) as path:
        assert path is None
    assert store.used == 0
    assert put(store, b"x" * 100) == address
    assert store.get(address) is not None


def test_an_archive_beyond_the_budget_displaces_nothing(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 100)
    small = put(store, b"a" * 60)
    large = put(store, b"b" * 101)
    assert store.has(small) and store.get(large) is None
    assert len(list(tmp_path.iterdir())) == 1


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    store, failures = SnapshotStore(tmp_path, 300), []

    def work(seed: int) -> None:
        try:
            for number in range(60):
                address = put(store, bytes([(seed * number) % 7]) * 90)
                with store.borrow(address) as path:
                    if path is not None:
                        assert hashlib_of(path.read_bytes()) == address
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.used <= 300
