"""Runs the sandbox contract over each back end: real shells, nothing patched."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.sandbox import docker, namespace
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.engine import Engine
from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.protocol import Image, SandboxLimits
from tests.contracts.sandbox_contract import BEHAVIOURS, GAPS, INSIDE_GAPS, World, canary, make_tree

Make = Callable[[SandboxLimits, Path], Any]


@dataclass(frozen=True)
class BackEnd:
    """One parameter of the suite."""

    why_not: Callable[[], str | None]
    """None when it works here; else the reason to skip it."""
    make: Make
    make_base: Make | None = None
    """Makes the provider of most of the suite's sandboxes, where that is to be another one."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    only: re.Pattern[str] | None = None
    """What to run; None: all. The rest is the code of another back end."""


def _docker(pool: int, *, layers: bool = True) -> Make:
    options = DockerOptions(pool=pool, layers=layers)
    return lambda limits, scratch: DockerProvider(limits=limits, scratch=scratch, options=options)


TOUCHES_FILES = re.compile("file|image|folder|digest|diff|nothing|written|trace|persist|snapshot")
COPY_GAPS = {name: why for name, why in GAPS["namespace"].items() if name != "start_folder_can_be_renamed"}
BACK_ENDS = {
    "namespace": BackEnd(
        why_not=namespace.available,
        make=lambda limits, scratch: NamespaceProvider(limits=limits, scratch=scratch),
        gaps=GAPS["namespace"],
    ),
    "namespace-copy": BackEnd(
        why_not=namespace.available,
        make=lambda limits, scratch: NamespaceProvider(limits=limits, scratch=scratch, overlay=False),
        gaps=COPY_GAPS,
        only=TOUCHES_FILES,
    ),
    "docker": BackEnd(why_not=docker.available, make=_docker(pool=0), make_base=_docker(pool=2), gaps=GAPS["docker"]),
    "docker-inside": BackEnd(
        why_not=docker.available,
        make=_docker(pool=0, layers=False),
        make_base=_docker(pool=2, layers=False),
        gaps={**GAPS["docker"], **INSIDE_GAPS},
        only=re.compile("digest|snapshot|restore|disk"),
    ),
    "local": BackEnd(
        why_not=lambda: None,
        make=lambda limits, scratch: LocalProvider(limits=limits, scratch=scratch),
        gaps=GAPS["local"],
    ),
}
MAKERS = {name: back_end.make for name, back_end in BACK_ENDS.items()}


@contextmanager
def provider_of(make: Make, scratch: Path) -> Iterator[Any]:
    """A provider whose images go with it."""
    with make(SandboxLimits(), scratch) as provider:
        try:
            yield provider
        finally:
            images = provider.facts["images"].values() if isinstance(provider, DockerProvider) else ()
    if images:
        with closing(Engine()) as engine:
            for image in images:
                engine.remove_image(image["id"])


@pytest.fixture(scope="module", params=list(BACK_ENDS))
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    back_end = BACK_ENDS[request.param]
    if (why := back_end.why_not()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(request.param)
    scratch = folder / "scratch"
    scratch.mkdir()
    head = make_tree(folder / "tree")
    image = Image("suite", folder / "tree", {"FROM_IMAGE": "of the image"})
    with provider_of(back_end.make_base or back_end.make, scratch) as provider, provider.start(image) as box:
        yield World(request.param, lambda limits: back_end.make(limits, scratch), provider, image, head, box, scratch)


@pytest.fixture
def world(base: World) -> Iterator[World]:
    with base.another() as fresh:
        yield fresh


@pytest.mark.parametrize("name", list(BEHAVIOURS))
def test_contract(world: World, name: str) -> None:
    wanted, back_end = BEHAVIOURS[name], BACK_ENDS[world.name]
    if back_end.only is not None and not back_end.only.search(name):
        pytest.skip("the code of another back end: only what is its own is run")
    if wanted.unsafe and not world.provider.isolated:
        pytest.skip("would harm this machine: the back end does not isolate (a gap by design)")
    why = back_end.gaps.get(name)
    if why is None:
        wanted.check(world)
        return
    try:
        wanted.check(world)
    except Exception:
        return
    pytest.fail(f"{world.name} keeps {name} now: take it off the list of gaps ({why})")


def test_every_gap_names_a_behaviour() -> None:
    for back_end in BACK_ENDS.values():
        assert back_end.gaps.keys() <= BEHAVIOURS.keys()


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
    head = make_tree(tmp_path / "tree")
    image, seen = Image("suite", tmp_path / "tree"), set()
    for name, back_end in BACK_ENDS.items():
        if back_end.why_not() is not None:
            continue
        with provider_of(back_end.make, tmp_path / name) as provider, provider.start(image) as box:
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
