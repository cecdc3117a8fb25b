"""What the sandbox benchmarks share: interleaved medians, limits held against them, the back ends that answer."""

import contextlib
import logging
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits

CWD = "/testbed"


@dataclass(frozen=True)
class Median:
    """The median of some times."""

    ms: float
    n: int

    def __str__(self) -> str:
        return f"{self.ms:>9.2f} ms  n={self.n}"


def median(seconds: list[float]) -> Median:
    return Median(statistics.median(seconds) * 1e3, len(seconds))


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Median]:
    """Each call tells seconds; one of each a round, so that all meet the same neighbours. The first round is lost."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            seconds = call()
            if number:
                seen[name].append(seconds)
    return {name: median(values) for name, values in seen.items()}


def show(title: str, rows: Mapping[str, Median]) -> None:
    print(title)
    for name, value in rows.items():
        print(f"  {name:<52}{value}")


def at_most(what: str, value: float, limit: float, unit: str = "ms") -> None:
    _held(what, f"{value:.2f} {unit}", f"at most {limit:g} {unit}", value <= limit)


def at_least(what: str, value: float, limit: float) -> None:
    _held(what, f"{value:.1f} times", f"at least {limit:g}", value >= limit)


_missed: list[str] = []


def verdict() -> int:
    """Exit code: 1 when a limit was missed."""
    return int(bool(_missed))


def _held(what: str, value: str, limit: str, kept: bool) -> None:
    _missed.extend([what] * (not kept))
    print(f"  {'kept  ' if kept else 'MISSED'} {what}: {value} (limit: {limit})")


def run(*command: str | os.PathLike[str]) -> str:
    """Run a command of this machine; what it printed."""
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def repository(folder: Path, files: int) -> Image:
    """A start tree of `files` small files in folders of a hundred, committed."""
    tree = folder / f"tree-{files}"
    for number in range(files):
        path = tree / f"part{number // 100:03d}" / f"file{number:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 100)
    git = ("git", "-C", tree, "-c", "user.name=bench", "-c", "user.email=bench@example.invalid")
    run(*git, "init", "--quiet")
    run(*git, "add", "--all")
    run(*git, "commit", "--quiet", "--message=start")
    return Image(f"bench-{files}", tree)


@contextlib.contextmanager
def providers(scratch: Path, *, pool: int = 2) -> Iterator[dict[str, Any]]:
    """The isolating back ends by name; of one that cannot be measured, the reason is printed."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Any] = {}
        if (why := available()) is None:
            provider = NamespaceProvider(limits=SandboxLimits(), scratch=scratch)
            found["namespace"] = stack.enter_context(provider)
        else:
            print(f"not measured: namespace: {why}")
        if (why := _no_docker()) is None:
            found["docker"] = stack.enter_context(_docker(scratch, pool))
        else:
            print(f"not measured: docker: {why}")
        yield found


def _no_docker() -> str | None:
    try:
        from harness.sandbox.docker import available as docker_available
    except ImportError as error:
        return str(error)
    return docker_available()


def _docker(scratch: Path, pool: int) -> Any:
    from harness.sandbox.docker import DockerOptions, DockerProvider

    return DockerProvider(limits=SandboxLimits(), scratch=scratch, options=DockerOptions(pool=pool))


def engine_url() -> str:
    """Of the engine that answers."""
    from harness.sandbox.engine import Engine

    engine = Engine()
    try:
        return engine.url
    finally:
        engine.close()


@contextlib.contextmanager
def mini_container() -> Iterator[Any]:
    """mini-swe-agent's DockerEnvironment on our base image, its container removed at once afterwards."""
    from minisweagent.environments.docker import DockerEnvironment

    from harness.sandbox.images import BASE_IMAGE

    os.environ["DOCKER_HOST"] = engine_url()  # for the command-line client
    arguments = ["--rm", "--network", "none", "--label", "forkroll-bench"]
    peer = DockerEnvironment(image=BASE_IMAGE, run_args=arguments, logger=logging.getLogger("peer"))
    try:
        yield peer
    finally:
        run("docker", "rm", "--force", str(peer.container_id))
        peer.container_id = None  # its own clean-up would wait ten seconds for a container that is gone


def docker_exec(container: str, command: str) -> float:
    """Seconds of one action by the command-line client."""
    return timed(lambda: run("docker", "exec", container, "bash", "-c", command))


def act(box: Sandbox, command: str) -> float:
    """Seconds of one action; it must succeed."""
    start = time.perf_counter()
    seen = box.act(command, timeout_s=60)
    taken = time.perf_counter() - start
    assert seen.exit_code == 0, seen.output
    return taken
