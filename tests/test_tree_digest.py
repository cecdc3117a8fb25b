"""The state digest: both ways of taking it agree, and it changes exactly when the state does."""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sandbox import tree as tree_module
from harness.sandbox.live import LiveProvider, LiveSandbox
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.tree import ImageEntries, OverlayTree, ScannedTree, head_commit

NAMES = ("a", "b", "a.b", "a0", "d", "e", "x.pyc", "__pycache__", "caf\u00e9")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
EDITS = st.one_of(
    st.builds(lambda path, text: f"printf %s {text} > {path}", PATHS, st.sampled_from("xyz")),
    st.builds(lambda path, mode: f"chmod {mode} {path}", PATHS, st.sampled_from(["755", "644", "600", "700"])),
    st.builds(lambda path: f"rm -rf {path}", PATHS),
    st.builds(lambda path: f"mkdir -p {path}", PATHS),
    st.builds(lambda path, target: f"ln -sfn {target} {path}", PATHS, PATHS),
    st.builds(lambda path, target: f"mv -T {path} {target}", PATHS, PATHS),
    st.builds(lambda path, target: f"cp -a -T {path} {target}", PATHS, PATHS),
    st.sampled_from(["git add -A", "git commit -qm m", "git checkout -q --detach", "git stash -u", "rm -rf .git"]),
    st.just("rm -rf .git; echo gitdir: x > .git"),
)


def make_tree(tree: Path) -> None:
    tree.mkdir()
    script = (
        "git init -q -b main; git config user.email a@b.c; git config user.name n;"
        "mkdir -p d/e/a a.b a0/d; for f in a b d/a d/b d/e/a/b a.b/a a0/d/e; do echo $f > $f; done;"
        "ln -s a caf\u00e9; mkdir -p d/a0; git add -A; git commit -qm base"
    )
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProvider]:
    if (why := available()) is not None:
        pytest.skip(why)
    with NamespaceProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch")) as provider:
        yield provider


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    tree = tmp_path_factory.mktemp("image") / "tree"
    make_tree(tree)
    return Image("digest", tree)


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.lists(EDITS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_both_ways_agree_whatever_was_edited(provider: LiveProvider, image: Image, rounds: list[list[str]]) -> None:
    with provider.start(image) as box:
        assert isinstance(box, LiveSandbox)
        scanned = mounted_tree(box)
        for edits in rounds:
            box.act("; ".join(f"{{ {edit}; }}" for edit in edits), timeout_s=20)
            seen = box.digest()
            if seen is None and os.geteuid() != 0:
                return  # a folder that its owner may not enter, and we are no more than its owner
            assert seen is not None
            assert {seen} == set(scanned())


def mounted_tree(box: LiveSandbox) -> Callable[[], list[str | None]]:
    """Digests of the mounted tree, as the sandbox sees it: root looks in from outside, others from inside."""
    mounted = Path(f"/proc/{box.pid}/root/testbed")
    if os.geteuid() == 0:
        remembering = ScannedTree(mounted)
        return lambda: [ScannedTree(mounted).digest(), remembering.digest()]
    box.write_file("/tmp/tree.py", Path(tree_module.__file__).read_bytes())
    code = "import tree, pathlib; print(tree.ScannedTree(pathlib.Path('/testbed')).digest())"
    return lambda: [box.act(f'cd /tmp; python3 -S -c "{code}"', timeout_s=10).output.decode().strip()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path / "tree")
    return tmp_path / "tree"


def sh(tree: Path, script: str) -> None:
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)


CHANGES = (
    "echo x >> a",
    "chmod 755 a",
    "chmod 700 d",
    "rm a",
    "rm -r d/e",
    "echo new > new",
    "mkdir new",
    "ln -s nowhere new",
    "ln -sfn b caf\u00e9",
    "mv a c",
    "rm caf\u00e9; cp a caf\u00e9",
    "mkfifo new",
    "git commit -q --allow-empty -m m",
    "rm -rf .git",
)


def test_each_change_changes_it(tree: Path) -> None:
    seen = [ScannedTree(tree).digest()]
    for change in CHANGES:
        copy = tree.parent / "copy"
        subprocess.run(["rm", "-rf", copy], check=True)
        subprocess.run(["cp", "-a", tree, copy], check=True)
        sh(copy, change)
        seen.append(ScannedTree(copy).digest())
    assert None not in seen
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    "change",
    [
        "touch -d 2001-01-01 a",
        "mkdir __pycache__ d/.pytest_cache; echo x > __pycache__/y; echo x > d/z.pyc",
        "git add -A; git config x.y z; git gc -q; git branch other",
        "git checkout -q --detach",
        "git pack-refs --all",
        "mv a c; mv c a",
        "git init -q d/.git",
    ],
)
def test_what_does_not_count(tree: Path, change: str) -> None:
    scanned = ScannedTree(tree)
    before = scanned.digest()
    sh(tree, change)
    assert scanned.digest() == ScannedTree(tree).digest() == before


@given(order=st.permutations(["a", "b", "d/a", "d/b"]))
@settings(max_examples=10, deadline=None)
def test_order_of_work_does_not_matter(tmp_path_factory: pytest.TempPathFactory, order: list[str]) -> None:
    root = tmp_path_factory.mktemp("order")
    for path in order:
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(path)
    for place in [root, *root.rglob("*")]:
        place.chmod(0o755)
    # Pinned: digests of runs of different days and versions are compared.
    assert ScannedTree(root).digest() == "79210c061afbefd703b9b3502f88b2af909f640fff783c97ce5c51a208c00975"


def test_a_name_that_continues_another_is_not_below_it(tree: Path) -> None:
    entries = ImageEntries(tree)
    inner = sum(entries.get(path) or 0 for path in (b"d/a", b"d/b", b"d/e", b"d/e/a", b"d/e/a/b", b"d/a0"))
    assert entries.below(b"d") == inner
    assert entries.below(b"a") == 0
    assert entries.below(b"nowhere") == 0


def test_an_empty_upper_layer_is_the_image(tree: Path, tmp_path: Path) -> None:
    expected = ScannedTree(tree).digest()
    assert OverlayTree(ImageEntries(tree), tmp_path / "none").digest() == expected
    (tmp_path / "upper").mkdir()
    assert OverlayTree(ImageEntries(tree), tmp_path / "upper").digest() == expected


@pytest.mark.parametrize(
    "head",
    ["ref: refs/heads/../../../../etc/passwd", "ref: refs/heads/main\n", "junk", "", "ref: HEAD", "ref: refs/heads/x"],
)
def test_head_is_read_with_care(tree: Path, head: str) -> None:
    (tree / ".git" / "HEAD").write_text(head)
    named = (tree / ".git" / "refs" / "heads" / "main").read_text().strip() if "main" in head else None
    assert head_commit(tree) == named
    assert ScannedTree(tree).digest() is not None


def test_head_through_pack_and_chain(tree: Path) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tree, text=True).strip()
    sh(tree, "git pack-refs --all; git symbolic-ref refs/heads/alias refs/heads/main")
    assert not (tree / ".git" / "refs" / "heads" / "main").exists()
    sh(tree, "git symbolic-ref HEAD refs/heads/alias")
    assert head_commit(tree) == commit


def test_traps_neither_block_nor_lead_outside(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    sh(tree, "rm .git/HEAD; mkfifo .git/HEAD fifo; rm a; ln -s ../outside a; ln -s .. up; ln -s loop loop")
    first = ScannedTree(tree).digest()
    (tmp_path / "outside").write_text("changed")
    assert first is not None
    assert ScannedTree(tree).digest() == first
    sh(tree, "rm -rf .git; ln -s ../outside .git")
    assert head_commit(tree) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_has_no_digest(tree: Path) -> None:
    sh(tree, "chmod 000 a")
    assert ScannedTree(tree).digest() is None


def test_a_change_within_one_tick_is_seen(tree: Path) -> None:
    scanned, seen = ScannedTree(tree), set()
    for number in range(200):
        (tree / "a").write_text(f"{number:04}")
        seen.add(scanned.digest())
    assert len(seen) == 200


def test_odd_names(tree: Path) -> None:
    for name in (b"latin\xe9", b"new\nline", b"tab\t", b'quote"', b" ", b"-x"):
        before = ScannedTree(tree).digest()
        sh(tree, f"echo x > ./{shlex.quote(os.fsdecode(name))}")
        assert ScannedTree(tree).digest() not in (None, before)
