"""Runs the sandbox contract over each back end: real shells, nothing patched."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, SandboxLimits
from tests.contracts.sandbox_contract import BEHAVIOURS, GAPS, World, canary, make_tree

MAKERS: dict[str, Callable[[SandboxLimits, Path], Any]] = {
    "namespace": lambda limits, scratch: NamespaceProvider(limits=limits, scratch=scratch),
    "namespace-copy": lambda limits, scratch: NamespaceProvider(limits=limits, scratch=scratch, overlay=False),
    "local": lambda limits, scratch: LocalProvider(limits=limits, scratch=scratch),
}
COPY_MATTERS = re.compile("file|image|folder|digest|diff|nothing|written|trace|persist")
COPY_GAPS = {name: why for name, why in GAPS["namespace"].items() if name != "start_folder_can_be_renamed"}
ALL_GAPS = {**GAPS, "namespace-copy": COPY_GAPS}


@pytest.fixture(scope="module", params=list(MAKERS))
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if request.param != "local" and (why := available()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(request.param)
    scratch = folder / "scratch"
    scratch.mkdir()
    make = MAKERS[request.param]
    head = make_tree(folder / "tree")
    image = Image("suite", folder / "tree", {"FROM_IMAGE": "of the image"})
    with make(SandboxLimits(), scratch) as provider, provider.start(image) as box:
        yield World(request.param, lambda limits: make(limits, scratch), provider, image, head, box, scratch)


@pytest.fixture
def world(base: World) -> Iterator[World]:
    with base.another() as fresh:
        yield fresh


@pytest.mark.parametrize("name", list(BEHAVIOURS))
def test_contract(world: World, name: str) -> None:
    wanted = BEHAVIOURS[name]
    if world.name == "namespace-copy" and not COPY_MATTERS.search(name):
        pytest.skip("the same code as namespace: only what touches files is run again")
    if wanted.unsafe and not world.provider.isolated:
        pytest.skip("would harm this machine: the back end does not isolate (a gap by design)")
    why = ALL_GAPS[world.name].get(name)
    if why is None:
        wanted.check(world)
        return
    try:
        wanted.check(world)
    except Exception:
        return
    pytest.fail(f"{world.name} keeps {name} now: take it off the list of gaps ({why})")


def test_every_gap_names_a_behaviour() -> None:
    for gaps in GAPS.values():
        assert gaps.keys() <= BEHAVIOURS.keys()


def test_the_suite_has_breadth() -> None:
    assert len(BEHAVIOURS) >= 60


def test_the_canary_refuses_what_is_no_sandbox(tmp_path: Path) -> None:
    """The guard of the unsafe behaviours has to be able to say no."""
    head = make_tree(tmp_path / "tree")
    image = Image("suite", tmp_path / "tree")
    with LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "s") as provider, provider.start(image) as box:
        world = World("local", lambda _: provider, provider, image, head, box, tmp_path)
        with pytest.raises(AssertionError):
            canary(world)


def test_back_ends_agree_on_digests_and_diffs(tmp_path: Path) -> None:
    if (why := available()) is not None:
        pytest.skip(why)
    head = make_tree(tmp_path / "tree")
    image, seen = Image("suite", tmp_path / "tree"), set()
    for name, make in MAKERS.items():
        with make(SandboxLimits(), tmp_path / name) as provider, provider.start(image) as box:
            first = box.digest()
            box.act("echo x >> mod.py; rm -rf pkg; mkdir new; ln -s mod.py new/link; chmod 755 notes.txt", timeout_s=5)
            seen.add((first, box.digest(), box.working_diff(head)))
    assert len(seen) == 1


def test_meters_count_what_was_done(tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    with LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "s") as provider:
        with provider.start(Image("suite", tmp_path / "tree")) as box:
            box.act("sleep 0.05", timeout_s=5)
            box.digest()
        counts = {name: value for name, value in provider.measure.items() if name.endswith(".n")}
        assert counts == {"prepare.n": 1, "start.n": 1, "act.n": 1, "digest.n": 1, "end.n": 1}
        assert provider.measure["act.wall"] >= 0.05 > provider.measure["act.cpu"]


def test_spawner_needs_little() -> None:
    """It runs with -I -S: only the standard library, and quickly."""
    import subprocess

    from harness.sandbox import spawner

    code = f"import runpy, sys; runpy.run_path({spawner.__file__!r}); print(len(sys.modules))"
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 120
