"""What the tests of reported bugs are made of: inputs, a served model, a whole run, a look at a tree.

Inputs come twice: ours stand in the tests; the shared ones lie outside the project and are read where they are.
Everything here is real: a server on the loopback, the command line as a process, sandboxes.
"""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.journal import Records, RunFolder
from harness.sandbox.engine import Engine
from harness.sandbox.protocol import Sandbox
from tests.contracts.sandbox_contract import eventually

ROOT = Path(__file__).parents[2]
FORKROLL = Path(sys.executable).with_name("forkroll")
MODEL = "mock"
SURROGATE = re.compile("[\ud800-\udfff]")


def shared_case(name: str) -> Path:
    """The folder of a shared case; the test is skipped where there are none."""
    data = os.environ.get("FORKROLL_DATA")
    cases = (Path(data).parent if data else ROOT.parent / "shared") / "bugs" / "cases"
    if not (cases / name).is_dir():
        pytest.skip(f"no shared case {name} beside the development data; set FORKROLL_DATA")
    return cases / name


def shared_lines(name: str) -> list[str]:
    """The lines of a shared case's actions.txt."""
    return (shared_case(name) / "actions.txt").read_text(encoding="utf-8").splitlines()


# --- a served model


@dataclass(frozen=True)
class Served:
    """A model behind HTTP."""

    url: str
    requests: Callable[[], list[dict[str, Any]]]
    """Bodies of the completions asked for so far."""


@contextlib.contextmanager
def serve(answers: Sequence[Mapping[str, Any]]) -> Iterator[Served]:
    """A server of our own that gives the answers in order, the last one for ever."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer({"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(answers[min(len(asked), len(answers)) - 1])

        def answer(self, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()  # escapes whatever is not ASCII, half a surrogate pair too
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield Served(f"http://127.0.0.1:{server.server_address[1]}/v1", lambda: list(asked))
        server.shutdown()


def completion(message: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A completion that holds `message`."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {"model": MODEL, "choices": [{**choice, **more.pop("choice", {})}], "usage": usage, **more}


def tool_call(command: str) -> dict[str, Any]:
    """A message that calls `bash` with `command`."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def fence(command: str) -> dict[str, Any]:
    """A message with `command` in a fenced block."""
    return {"content": f"A note.\n\n```bash\n{command}\n```\n"}


@contextlib.contextmanager
def serve_shared(name: str, style: str, folder: Path, *options: str) -> Iterator[Served]:
    """The shared mock server with the script of a shared case, as a process of its own."""
    script, log = shared_case(name) / "script.json", folder / "requests.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mock = shared_case("000-mock") / "mock_openai.py"
    command = [sys.executable, mock, script, "--port", str(port), "--style", style, "--log", log, *options]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: _listens(port), 10), "the shared mock server did not start"
            yield Served(f"http://127.0.0.1:{port}/v1", lambda: _logged(log))
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _logged(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line)["body"] for line in lines]


def strings(value: Any) -> Iterator[str]:
    """Every string in parsed JSON, and those in the JSON that a tool call's arguments hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(json.loads(item) if key == "arguments" else item)


# --- a whole run


@dataclass(frozen=True)
class Run:
    """One study run by the command line in a folder of its own."""

    folder: Path

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "case"

    def start(self, *overrides: str) -> "subprocess.Popen[str]":
        """The command line at work."""
        env = {**os.environ, "FORKROLL_CACHE": str(self.folder / "cache")}
        command = [str(FORKROLL), "run", "case.yaml", *overrides]
        return subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def finish(self, *overrides: str) -> int:
        """Run to the end; the exit code, which pytest shows beside what was printed."""
        process = self.start(*overrides)
        told, _ = process.communicate(timeout=120)
        print(told)
        return process.returncode

    def tell(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """Another command on the run's folder."""
        env = {**os.environ, "FORKROLL_CACHE": str(self.folder / "cache")}
        argv = [str(FORKROLL), command, str(self.run_folder), *arguments]
        return subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, timeout=60)

    def records(self) -> Records:
        return RunFolder(self.run_folder).records()


def make_run(folder: Path, model: Mapping[str, Any], **more: Any) -> Run:
    """A study of one bundled task with `model` on both sides, forked at step 2."""
    content = {
        "name": "case",
        "seed": 1,
        "tasks": {"set": "pocket", "count": 1},
        "sandbox": "namespace",
        "models": {"a": dict(model), "b": dict(model)},
        "directions": {"up": {"base": "a", "swap": "b"}},
        "forks": {"rule": "absolute", "at": [2]},
        "arms": ["control"],
        "replicates": 1,
        "workers": 1,
        "retries": 0,
        **more,
    }
    (folder / "case.yaml").write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return Run(folder)


def served_model(served: Served) -> dict[str, Any]:
    """The study's entry of a served model."""
    return {"client": "openai", "base_url": served.url, "model": MODEL}


# --- processes


def kill_sandbox_of(driver: int, running: str, within_s: float = 20.0) -> None:
    """Kill, from outside, the first process of the sandbox in which `driver`'s action `running` is at work.

    The action is looked for among the driver's descendants only, so that nothing else can be hit.
    """
    deadline = time.monotonic() + within_s
    while (runner := _runner_above(driver, running.encode())) is None:
        assert time.monotonic() < deadline, f"no action {running!r} is running"
        time.sleep(0.02)
    os.kill(runner, signal.SIGKILL)


def remove_containers_of(driver: int) -> int:
    """Remove, by the engine, every container that the process `driver` has started; their number."""
    engine = Engine()
    try:
        owned = engine.labelled([f"forkroll.pid={driver}"])
        for container in owned:
            engine.remove(container.id)
    finally:
        engine.close()
    return len(owned)


def _runner_above(driver: int, running: bytes) -> int | None:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if running not in _cmdline(pid):
                continue
            above = list(_ancestors(pid))
            runners = [parent for parent in above if b"runner.bash" in _cmdline(parent)]
            if driver in above and runners:
                return runners[0]
    return None


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


# --- trees


_LIST = r"""python3 -S - <<'P'
import base64, hashlib, os, stat
for folder, folders, files in os.walk(b'.'):
    folders[:] = [name for name in folders if name not in (b'.git', b'__pycache__')]
    for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
        place = os.path.join(folder, name)
        info = os.lstat(place)
        if name == b'.git' or not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            continue
        link = stat.S_ISLNK(info.st_mode)
        held = os.readlink(place) if link else open(place, 'rb').read()
        mode = 'link' if link else 'x' if info.st_mode & 0o100 else '-'
        print(base64.b64encode(place[2:]).decode(), mode, hashlib.sha256(held).hexdigest())
P"""

Listing = Mapping[bytes, tuple[str, str]]
"""Path -> (kind and the permission that git keeps, digest of what it holds). Files and links, caches left out."""


def listing(sandbox: Sandbox) -> Listing:
    """Every file of the working tree."""
    seen = sandbox.act(_LIST, timeout_s=30)
    assert (seen.exit_code, seen.cut_at) == (0, None), seen.output
    rows = [line.split() for line in seen.output.decode().splitlines()]
    return {base64.b64decode(path): (mode, digest) for path, mode, digest in rows}


def changed(before: Listing, after: Listing) -> set[bytes]:
    """The paths whose entries differ."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def names_in(patch: bytes, tree: Path | None) -> set[bytes]:
    """The paths that git itself reads from a patch against `tree`."""
    assert tree is not None
    told = subprocess.run(
        ["git", "apply", "--numstat", "-z", "-"], cwd=tree, input=patch, capture_output=True, check=True
    )
    return {entry.split(b"\t", 2)[2] for entry in told.stdout.split(b"\0") if entry}
