"""What the tests of model servers are made of: cards in files, programs in place of vLLM, processes looked for by id.

A stand-in for vLLM is a real program that is started as vLLM's interpreter would be; it says so to whoever asks whether
it has vLLM.
"""

import contextlib
import json
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.serving.card import ModelCard, load_card
from harness.serving.server import Launch

FORKROLL = Path(sys.executable).with_name("forkroll")
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def card_file(folder: Path, name: str = "card", **content: Any) -> Path:
    """A card in a file; by default the simulated `small`, without noise, on a free port."""
    made = {"server": "simulated", "model": "small", "port": free_port(), "flags": {"noise": "off"}} | content
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(made), encoding="utf-8")  # JSON is YAML
    return path


def made_card(folder: Path, name: str = "card", **content: Any) -> ModelCard:
    return load_card(str(card_file(folder, name, **content)))


def simulated(folder: Path, noise: str, name: str = "card", **flags: Any) -> ModelCard:
    """A simulated server whose noise, if any, is strong enough to show in a few prompts."""
    return made_card(folder, name, flags={"noise": noise, "latency-ms": 5, "set": "small.sigma=1.5", **flags})


def vllm_card(folder: Path, name: str = "card", **content: Any) -> ModelCard:
    """A card for a stand-in of vLLM."""
    return made_card(folder, name, **{"server": "vllm", "flags": {}, "tool_parser": "hermes", **content})


def stand_in(folder: Path, script: str) -> str:
    """A program that is started in vLLM's place; $PORT is where it is told to listen."""
    path = folder / "stand-in"
    path.write_text(
        "#!/usr/bin/env bash\n"
        'if [ "$1" = -c ]; then exit 0; fi\n'
        'while [ "$#" -gt 1 ]; do if [ "$1" = --port ]; then PORT=$2; fi; shift; done\n' + script
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SERVES = f"exec env PYTHONPATH={ROOT} {sys.executable} -m harness.model.simulated.server --models small --port $PORT\n"
"""A stand-in that serves `small`."""


def launch(folder: Path, said: list[str], python: str | None = None, **how: float) -> Launch:
    return Launch(folder / "cache", said.append, python, **how)


def eventually(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Whether `holds` comes to hold."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


def runs(pid: int) -> bool:
    """Whether a process of that id runs: not ended, and not waiting to be collected."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def answers(port: int) -> bool:
    """Whether somebody listens on that port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


Reply = Callable[[str, Mapping[str, Any]], tuple[int, object]]
"""Path and body of a request -> status, and an answer as text or as what becomes JSON."""


@contextlib.contextmanager
def small_server(reply: Reply) -> Iterator[str]:
    """A server of our own; its address with /v1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body leave in one packet: a second one would wait for the first's receipt

        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body: Mapping[str, Any]) -> None:
            status, content = reply(self.path, body)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
