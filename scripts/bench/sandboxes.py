"""What a sandbox costs: an action, a state digest, many sandboxes at once; ours beside `docker exec` and mini."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from timing import (
    CWD,
    act,
    at_least,
    at_most,
    docker_exec,
    interleaved,
    mini_container,
    providers,
    repository,
    run,
    show,
    timed,
    verdict,
)

from harness.errors import RolloutError
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider

ROUNDS = 60
AT_ONCE, ACTIONS, WAVES = 32, 20, 3
_MINI = "mini: DockerEnvironment.execute(true)"
_BARE = "for i in 1 2 3 4 5; do a=$EPOCHREALTIME; bash -c true; b=$EPOCHREALTIME; echo $((${b/./} - ${a/./})); done"
"""Microseconds of a bare `bash -c true`, each taken by the shell that starts it."""


def bare(box: Sandbox) -> float:
    """Seconds of a bare `bash -c true` inside."""
    seen = box.act(_BARE, timeout_s=60)
    return statistics.median(map(int, seen.output.split())) / 1e6


def per_action(found: Mapping[str, SandboxProvider], image: Image) -> None:
    with ExitStack() as stack:
        calls: dict[str, Callable[[], float]] = {}
        for name, provider in found.items():
            box = stack.enter_context(provider.start(image))
            calls[f"{name}: act('true')"] = lambda box=box: act(box, "true")  # type: ignore[misc]
            calls[f"{name}: bare `bash -c true` inside"] = lambda box=box: bare(box)  # type: ignore[misc]
        if "docker" in found:
            peer = stack.enter_context(mini_container())
            calls["docker exec C bash -c true"] = lambda: docker_exec(str(peer.container_id), "true")
            calls[_MINI] = lambda: timed(lambda: peer.execute({"command": "true"}))
        seen = interleaved(calls, ROUNDS)
    show("per action", seen)
    for name in found:
        ours, inside = seen[f"{name}: act('true')"], seen[f"{name}: bare `bash -c true` inside"]
        at_most(f"{name}: act less bare", ours.ms - inside.ms, 6)
    if "docker" in found:
        ours, inside = seen["docker: act('true')"], seen["docker: bare `bash -c true` inside"]
        by_client = seen["docker exec C bash -c true"].ms
        at_least("docker: docker exec / act less bare", by_client / (ours.ms - inside.ms), 20)
        whole = f"docker exec {by_client / ours.ms:.1f}, mini {seen[_MINI].ms / ours.ms:.1f} times act"
        less = f"docker exec {(by_client - inside.ms) / (ours.ms - inside.ms):.1f} times"
        print(f"         whole actions: {whole}; both less bare: {less}")


def state_digest(found: Mapping[str, SandboxProvider], image: Image) -> None:
    """After a step that touched one file of 5,000."""
    assert image.tree is not None
    plain = image.tree
    with ExitStack() as stack:
        calls: dict[str, Callable[[], float]] = {}
        for name, provider in found.items():
            box = stack.enter_context(provider.start(image))
            calls[f"{name}: {_method(box)}"] = _after_touching(box, box.digest)
            if name == "docker" and _method(box) != "inside":
                inside = _inside(stack.enter_context(provider.start(image)))
                calls["docker: inside"] = _after_touching(*inside)
        calls["git status --porcelain, on the host"] = lambda: _git_status(plain)
        seen = interleaved(calls, 30)
    show("state digest, one file of 5,000 touched", seen)
    for name, value in seen.items():
        if not name.startswith("git"):
            at_most(name, value.ms, 15 if name.endswith("overlay") else 60)


def _method(box: Any) -> str:
    return str(getattr(box, "digest_method", "overlay"))


def _after_touching(box: Sandbox, digest: Callable[[], str | None]) -> Callable[[], float]:
    def call() -> float:
        before = digest()
        act(box, "echo x >> part025/file02500.txt")
        taken = timed(digest)
        assert digest() != before
        return taken

    return call


def _inside(box: Any) -> tuple[Sandbox, Callable[[], str | None]]:
    from harness.sandbox.inside import InsideTree

    return box, InsideTree(box._shell.own, CWD).digest


def _git_status(tree: Path) -> float:
    touched = tree / "part025" / "file02500.txt"
    before = touched.read_text()
    touched.write_text(before + "x\n")
    try:
        return timed(lambda: run("git", "-C", tree, "status", "--porcelain"))
    finally:
        touched.write_text(before)


def at_once(name: str, provider: SandboxProvider, image: Image) -> None:
    """Waves of sandboxes, each running some actions; the driver's memory after each wave."""
    failures, walls, resident = [], [], [_resident_kb()]
    for _ in range(WAVES):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            start = time.perf_counter()
            failures += [
                why for why in pool.map(lambda number: _failure(provider, image, number), range(AT_ONCE)) if why
            ]
            walls.append(time.perf_counter() - start)
        resident.append(_resident_kb())
    told = " ".join(f"{value / 1024:.1f}" for value in resident)
    print(f"  {name}: wall {', '.join(f'{wall:.2f}' for wall in walls)} s; driver RSS before and after each: {told} MB")
    at_most(f"{name}: failures {sorted(set(failures))}", len(failures), 0, "")
    at_most(f"{name}: driver RSS, last wave less first", (resident[-1] - resident[1]) / 1024, 8, "MB")


def _failure(provider: SandboxProvider, image: Image, number: int) -> str | None:
    """What went wrong with one of the sandboxes; None when nothing did."""
    try:
        with provider.start(image) as box:
            for step in range(ACTIONS):
                told = box.act(f"echo {number}.{step} > own.txt; cat own.txt", timeout_s=60)
                if told.output != f"{number}.{step}\n".encode():
                    return f"a wrong answer: {told}"
    except RolloutError as error:
        return str(error)
    return None


def _resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        small, large = repository(Path(folder), 20), repository(Path(folder), 5000)
        with providers(Path(folder) / "scratch") as found:
            per_action(found, small)
            state_digest(found, large)
            print(f"{AT_ONCE} sandboxes at once, {ACTIONS} actions each, {WAVES} waves")
            for name, provider in found.items():
                at_once(name, provider, small)


if __name__ == "__main__":
    main()
    sys.exit(verdict())
