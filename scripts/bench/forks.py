"""What a fork costs: running a prefix again, and starting from a snapshot; beside `docker exec` and `unshare`."""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from timing import (
    Median,
    at_least,
    at_most,
    docker_exec,
    interleaved,
    median,
    mini_container,
    providers,
    repository,
    run,
    show,
    timed,
    verdict,
)

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.fork import re_execute
from harness.loop import rollout
from harness.model.protocol import Sampling
from harness.model.scripted import ScriptedClient
from harness.prompting import OwnScaffold
from harness.record import Ending, Outcome, Provenance, Task, Trajectory
from harness.routing import Always
from harness.sandbox.protocol import Image, SandboxProvider

TRIVIAL = ("true", "pwd", "echo x >> notes.txt", "cat notes.txt", "ls", "true")
PREFIX = 17
LENGTHS = (1, 10, 100)
FORKS = {"namespace": 30, "docker": 10}
"""Forks measured at each prefix length."""
REFILL_S = 2.0
"""Time in which the pool starts another container: it is warm at every fork, and at work in nobody's time."""
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "true")
_TASK = Task(instance_id="bench", repo="r", base_commit="HEAD", problem_statement="It breaks.")


def trivial(count: int) -> list[str]:
    return [TRIVIAL[number % len(TRIVIAL)] for number in range(count)]


class NoSnapshot(Exception):
    """This kind of sandbox takes none."""


def base_of(provider: SandboxProvider, image: Image, commands: list[str], snapshot: Path | None = None) -> Trajectory:
    """A recorded rollout of `commands`; with `snapshot`, an archive of the state at its end."""
    with provider.start(image) as box:
        start = box.digest()
        agents = {"a": ModelAgent(ScriptedClient(commands), OwnScaffold("tool_call"), Sampling())}
        done = rollout(_TASK, Always("a"), agents, box, limits=LimitsSection(calls=len(commands)), seed=1)
        if snapshot is not None and not box.snapshot(snapshot):
            raise NoSnapshot
    return Trajectory(
        id="bench",
        task_id="bench",
        agent="a",
        seed=1,
        sandbox=provider.name,
        start_digest=start,
        steps=done.steps,
        ending=Ending(spent=done.spent, stop=done.stop, patch=b"", outcome=Outcome(status="unscored")),
        provenance=Provenance(),
    )


def re_executing(found: Mapping[str, SandboxProvider], image: Image) -> None:
    """A prefix of trivial commands in a sandbox that is ready, every exit code, output and state compared."""
    with ExitStack() as stack:
        calls: dict[str, Callable[[], float]] = {}
        for name, provider in found.items():
            calls[f"{name}: re-execute, states compared"] = _re_execution(provider, image)
        if "docker" in found:
            peer = stack.enter_context(mini_container())
            each = trivial(PREFIX)
            calls["docker exec each"] = lambda: sum(docker_exec(str(peer.container_id), command) for command in each)
            calls["mini: DockerEnvironment.execute each"] = lambda: sum(
                timed(lambda command=command: peer.execute({"command": command}))  # type: ignore[misc]
                for command in each
            )
        seen = interleaved(calls, 15)
    show(f"a prefix of {PREFIX} trivial actions", seen)
    if "docker" in found:
        ours = seen["docker: re-execute, states compared"].ms
        at_least("docker exec each / docker re-execution", seen["docker exec each"].ms / ours, 12)
        print(f"         mini / ours: {seen['mini: DockerEnvironment.execute each'].ms / ours:.1f} times")


def _re_execution(provider: SandboxProvider, image: Image) -> Callable[[], float]:
    base = base_of(provider, image, trivial(PREFIX))

    def call() -> float:
        with provider.start(image) as box:
            _let_the_pool_refill(provider)
            start = time.perf_counter()
            check = re_execute(base, PREFIX + 1, box, 60.0)
            taken = time.perf_counter() - start
        assert check.first_mismatch is None, check
        return taken

    return call


def _let_the_pool_refill(provider: SandboxProvider) -> None:
    if provider.name == "docker":
        time.sleep(REFILL_S)


def by_snapshot(name: str, provider: SandboxProvider, image: Image, folder: Path) -> None:
    """From the order to fork until the runner answers, by length of the prefix that the snapshot stands for."""
    archives = {length: folder / f"{name}-{length}.tar" for length in LENGTHS}
    bases = {length: base_of(provider, image, _writing(length), path) for length, path in archives.items()}
    calls: dict[str, Callable[[], float]] = {
        f"{name}: fork after {length} actions": _fork(provider, image, archives[length], bases[length])
        for length in LENGTHS
    }
    if name == "namespace":
        calls["unshare ... true"] = lambda: timed(lambda: run(*UNSHARE))
    seen = interleaved(calls, FORKS[name])
    sizes = ", ".join(f"{path.stat().st_size // 1024}" for path in archives.values())
    show(f"fork by snapshot ({sizes} KB), runner ready", seen)
    _judge(name, seen)


def _writing(length: int) -> list[str]:
    """The same 130 KB changed by however many actions."""
    first = "seq 1 25000 > made.txt; rm part000/file00000.txt; chmod +x part000/file00001.txt"
    return [first, *(f"echo {number} > small.txt" for number in range(1, length))]


def _fork(provider: Any, image: Image, snapshot: Path, base: Trajectory) -> Callable[[], float]:
    def call() -> float:
        _let_the_pool_refill(provider)
        start = time.perf_counter()
        with provider.start(image, snapshot=snapshot) as box:
            taken = time.perf_counter() - start
            assert box.digest() == base.steps[-1].state_digest
        return taken

    return call


def _judge(name: str, seen: Mapping[str, Median]) -> None:
    forks = [value.ms for label, value in seen.items() if "fork after" in label]
    if name == "namespace":
        peer = seen["unshare ... true"].ms
        at_most("namespace: slowest of the medians (or 4 times unshare)", max(forks), max(15.0, 4 * peer))
        print(f"         ratio to unshare: {max(forks) / peer:.1f}")
    else:
        at_most("docker, warm pool: slowest of the medians", max(forks), 150)
    at_most(f"{name}: after {LENGTHS[-1]} actions / after {LENGTHS[0]}", forks[-1] / forks[0], 1.3, "times")


def snapshots(name: str, provider: SandboxProvider, image: Image, folder: Path) -> None:
    """Taking one after every step must be affordable."""
    taken = []
    with provider.start(image) as box:
        box.act(_writing(1)[0], timeout_s=60)
        for number in range(20):
            box.act(f"echo {number} > small.txt", timeout_s=60)
            into = folder / f"{name}-every-{number}.tar"
            taken.append(timed(lambda into=into: box.snapshot(into)))  # type: ignore[misc]
    print(f"  {name + ': snapshot of 130 KB after a step':<52}{median(taken)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        image = repository(place, 200)
        with providers(place / "scratch") as found:
            re_executing(found, image)
            for name, provider in found.items():
                try:
                    by_snapshot(name, provider, image, place)
                    snapshots(name, provider, image, place)
                except NoSnapshot:
                    print(f"not measured: {name}: fork by snapshot: its sandboxes take none")


if __name__ == "__main__":
    main()
    sys.exit(verdict())
