"""Servers as cards say: started one after the other, awaited, stopped with nothing left behind.

- One after the other, because vLLM measures free GPU memory while it starts and a neighbour's start would disturb it.
- Each is kept by a process of its own (see `keeper`) that ends with this one, however this one ends.
- What already listens at a card's address and serves its name is used as it is, and not stopped: `started` is False
  then, and its flags are not known to be the card's.
- A server that dies later is not started again: the run's calls fail, which is recorded, and a resumed run starts it.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.serving.address import Address
from harness.serving.card import ModelCard, check_together
from harness.serving.command import PYTHON_VARIABLE, VLLM_MODULE, Command, command_of
from harness.serving.epoch import epoch_by_metrics
from harness.serving.facts import server_facts

Say = Callable[[str], None]

_KEEPER = Path(__file__).with_name("keeper.py")
_POLL_S = 0.05
_TAIL_LINES = 20


@dataclass(frozen=True)
class Launch:
    """How and where servers are started."""

    cache: Path
    """Logs go into its folder `servers`; {cache} in a card's `model` is this."""
    say: Say
    python: str | None = None
    """Interpreter that has vLLM; None: see `command.vllm_python`."""
    progress_seconds: float = 15.0
    """Between two lines that say that a server is being waited for."""
    grace_seconds: float = 30.0
    """From TERM to KILL when a server is stopped."""


@dataclass(frozen=True)
class RunningServer:
    """A server that is healthy and serves its card's name."""

    card: ModelCard
    epoch: str
    """Names this start of the server: see `epoch`."""
    started: bool
    """False: it was there before."""
    facts: Mapping[str, Any]
    log: Path | None = None
    """None when it was not started by us."""
    kept: "KeptProcess | None" = field(default=None, repr=False)

    def exit_status(self) -> int | None:
        """None while it runs, or when it is not ours to watch."""
        return None if self.kept is None else self.kept.poll()


@contextmanager
def serving(cards: Sequence[ModelCard], launch: Launch) -> Iterator[list[RunningServer]]:
    """The cards' servers, healthy, in the order given; those that were started here are stopped at the end."""
    check_together(cards)
    with ExitStack() as stack:
        yield [stack.enter_context(_one(card, launch)) for card in cards]


@contextmanager
def _one(card: ModelCard, launch: Launch) -> Iterator[RunningServer]:
    address = Address(card.root_url)
    if _is_served(card, address):
        launch.say(f"{card.name}: {card.root_url} serves {card.served!r} already; it is used as it is, flags unseen")
        yield _already_there(card, address)
        return
    command = command_of(card, cache=launch.cache, python=launch.python)
    _require_program(card, command)
    log = _new_log(card, launch.cache)
    launch.say(f"{card.name}: starting, at most {card.start_seconds:g} s · log {log}")
    with KeptProcess(command, log, launch.grace_seconds) as kept:
        clock = time.monotonic()
        _await(card, address, kept, log, launch)
        seconds = time.monotonic() - clock
        launch.say(f"{card.name}: ready at {card.base_url} after {seconds:.0f} s")
        yield _started(card, command, address, launch, kept, log, seconds)


def _is_served(card: ModelCard, address: Address) -> bool:
    """Whether the card's model is served at its address; an error when something else is there."""
    served = address.served()
    if served is None:
        if _is_taken(card):
            raise ConfigError(f"card {card.name}: port {card.port} is taken by something that is no model server")
        return False
    if card.served in served:
        return True
    raise ConfigError(f"card {card.name}: {card.root_url} serves {', '.join(served)}, not {card.served!r}")


def _is_taken(card: ModelCard) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((card.host, card.port))
        except OSError:
            return True
    return False


def _require_program(card: ModelCard, command: Command) -> None:
    """Find out at once, not from a log, that there is no vLLM."""
    if card.server != "vllm":
        return
    python = command.argv[0]
    probe = f"import importlib.util as u, sys; sys.exit(0 if u.find_spec({VLLM_MODULE.partition('.')[0]!r}) else 3)"
    try:
        found = subprocess.run([python, "-c", probe], capture_output=True, timeout=60, check=False).returncode
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"card {card.name}: {python} cannot be run: {error}") from None
    if found == 3:
        raise ConfigError(
            f"card {card.name}: {python} has no vLLM; name an interpreter that has with --python or {PYTHON_VARIABLE}"
        )


def _new_log(card: ModelCard, cache: Path) -> Path:
    folder = cache / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{card.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"


def _await(card: ModelCard, address: Address, kept: "KeptProcess", log: Path, launch: Launch) -> None:
    """Return when the server is healthy; an error, after the end of its log was shown, when it will not be."""
    start = said = time.monotonic()
    while not (address.healthy() and card.served in (address.served() or [])):
        now = time.monotonic()
        status = kept.poll()
        if status is not None:
            _show_tail(card, log, launch.say)
            raise ConfigError(
                f"card {card.name}: the server ended with exit status {status} before it was ready: {log}"
            )
        if now - start > card.start_seconds:
            _show_tail(card, log, launch.say)
            raise ConfigError(f"card {card.name}: the server is not ready after {card.start_seconds:g} s: {log}")
        if now - said > launch.progress_seconds:
            said = now
            launch.say(
                f"{card.name}: not ready after {now - start:.0f} s of {card.start_seconds:g} · {_last_line(log)}"
            )
        time.sleep(_POLL_S)


def _show_tail(card: ModelCard, log: Path, say: Say) -> None:
    for line in _tail(log) or ["(it wrote nothing)"]:
        say(f"{card.name} | {line}")


def _tail(log: Path) -> list[str]:
    with contextlib.suppress(OSError), log.open("rb") as content:
        content.seek(max(log.stat().st_size - 16_384, 0))
        return content.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    return []


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _tail(log) if line.strip()]
    return lines[-1][:160] if lines else "it has written nothing yet"


def _already_there(card: ModelCard, address: Address) -> RunningServer:
    epoch = _epoch(card, None)
    facts = {
        "card": card.model_dump(mode="json"),
        "card_digest": card.digest,
        "started": False,
        "server_version": address.version(),
        "epoch": epoch,
    }
    return RunningServer(card, epoch, started=False, facts=facts)


def _started(
    card: ModelCard,
    command: Command,
    address: Address,
    launch: Launch,
    kept: "KeptProcess",
    log: Path,
    seconds: float,
) -> RunningServer:
    epoch = _epoch(card, kept)
    facts = {
        **server_facts(card, command, launch.cache),
        "started": True,
        "server_version": address.version(),
        "epoch": epoch,
        "start_seconds": round(seconds, 1),
        "log": log.name,
    }
    return RunningServer(card, epoch, started=True, facts=facts, log=log, kept=kept)


def _epoch(card: ModelCard, kept: "KeptProcess | None") -> str:
    """Names this start of the card's server: see `epoch`."""
    by_us = "unknown" if kept is None else f"{kept.started_at}#{kept.pid}"
    return epoch_by_metrics(card.name, card.root_url) or f"{card.name}@{by_us}"


class KeptProcess:
    """A command at work, from `with` to the end of it, its output in a log. See `keeper` for how it ends."""

    def __init__(self, command: Command, log: Path, grace_seconds: float) -> None:
        self._command, self._log, self._grace = command, log, grace_seconds
        self._keeper: subprocess.Popen[bytes] | None = None
        self.started_at = ""
        self.pid = 0
        """Of the command's first process, which leads a process group."""

    def __enter__(self) -> "KeptProcess":
        argv = [sys.executable, "-I", "-S", str(_KEEPER), f"{self._grace:g}", *self._command.argv]
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._command.env},
                start_new_session=True,  # Ctrl-C is the driver's business
            )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline() or 0)
        return self

    def __exit__(self, *error: object) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        assert keeper.stdin is not None and keeper.stdout is not None
        keeper.stdin.close()  # which is what the keeper waits for
        keeper.stdout.close()
        keeper.wait()

    def poll(self) -> int | None:
        """The command's exit status; None while it runs."""
        return None if self._keeper is None else self._keeper.poll()
