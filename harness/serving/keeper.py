"""Keeps one server for a driver and leaves nothing of it behind, however the driver ends.

Run as `python -I -S keeper.py GRACE COMMAND...`. Standard input is a pipe whose other end the driver alone holds; its
end means stop. Standard output gets one line, the server's process id. The exit status is the server's own: 128 plus
the signal where a signal ended it.

- The server leads a process group of its own: Ctrl-C in a terminal is the driver's business.
- Stopping is TERM for the group, GRACE seconds, then KILL for the group and for every process that left it: orphans
  become children of the keeper (PR_SET_CHILD_SUBREAPER), so none gets out of sight.
- When the keeper itself is killed, the server's first process dies with it (PR_SET_PDEATHSIG); its own children are
  then its business.
- It imports the standard library only, and no thread is ever started: a fork in it is safe.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_POLL_S = 0.05


def main(argv: Sequence[str]) -> int:
    """Start the command, wait for its end or for ours; the exit status."""
    grace, command = float(argv[0]), list(argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the pipe alone says when to stop
    _LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = start(command)
    os.write(1, f"{server}\n".encode())
    status = wait(server)
    if status is None:
        status = stop(server, grace)
    end_all()
    return status


def start(command: Sequence[str]) -> int:
    """The server's process id, which is its group's too."""
    keeper = os.getpid()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # it may have done so itself, or be gone
            os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        _LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def wait(server: int) -> int | None:
    """The server's exit status; None when the driver says stop, or is gone."""
    while True:
        status = reap(server)
        if status is not None:
            return status
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable and not os.read(0, 4096):
            return None


def stop(server: int, grace: float) -> int:
    """TERM, then KILL; the server's exit status."""
    signal_group(server, signal.SIGTERM)
    deadline = time.monotonic() + grace
    status = None
    while time.monotonic() < deadline and (status is None or children()):
        found = reap(server)
        status = found if status is None else status
        time.sleep(_POLL_S)
    signal_group(server, signal.SIGKILL)
    return 128 + signal.SIGKILL if status is None else status


def reap(server: int) -> int | None:
    """Collect every child that has ended; the server's exit status when it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == server:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def end_all() -> None:
    """Kill what is left, generation by generation: the children of a killed process become ours."""
    while left := children():
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def children() -> list[int]:
    """Process ids of our children."""
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        return [int(word) for word in listed.read().split()]


def signal_group(server: int, number: int) -> None:
    """Signal the server's whole process group, as far as it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
