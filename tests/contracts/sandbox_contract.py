"""What every sandbox must do, as one function a behaviour; a back end is one more parameter of the suite.

A behaviour fails by raising. What a back end is known not to keep stands in `GAPS` with the reason: the suite
demands that it fails there, so that a gap that was closed does not stay listed. `unsafe` behaviours would harm the
machine if the back end did not isolate: they run only in a sandbox that `canary` has proved to be one, and count
as a gap elsewhere without being tried.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harness.errors import SandboxError
from harness.record import Exit, Observation
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits, SandboxProvider

ROOT = Path(__file__).parents[2]


class Closable(SandboxProvider, Protocol):
    """A provider as the suite uses it."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class World:
    """One back end, one fresh sandbox, and how to have more."""

    name: str
    make: Callable[[SandboxLimits], AbstractContextManager[Closable]]
    """A provider of its own, closed at the end."""
    provider: Closable
    image: Image
    head: str
    box: Sandbox
    scratch: Path
    """Where the back end keeps its folders."""

    def run(self, command: str, timeout_s: float = 10.0) -> Observation:
        return self.box.act(command, timeout_s=timeout_s)

    def text(self, command: str, timeout_s: float = 10.0) -> str:
        return self.run(command, timeout_s).output.decode()

    @property
    def outside(self) -> str:
        """A folder of the sandbox outside the working tree."""
        return "/tmp" if self.provider.isolated else self.text("printf %s $TMPDIR")

    @contextlib.contextmanager
    def another(self, limits: SandboxLimits | None = None) -> Iterator["World"]:
        """A second sandbox; with `limits`, of a provider of its own."""
        with contextlib.ExitStack() as stack:
            provider = self.provider if limits is None else stack.enter_context(self.make(limits))
            box = stack.enter_context(provider.start(self.image))
            yield replace(self, provider=provider, box=box)


@dataclass(frozen=True)
class Behaviour:
    check: Callable[[World], None]
    unsafe: bool


BEHAVIOURS: dict[str, Behaviour] = {}

_NOT_ISOLATED = "commands run on this machine, as this user"
_NO_SNAPSHOTS = "what a command writes is not caught, and files may name the working folder"
GAPS: dict[str, dict[str, str]] = {
    "namespace": {
        "total_disk_is_limited": "the cap is on one file (RLIMIT_FSIZE); overlay has no quota",
        "start_folder_can_be_renamed": "overlay in a user namespace has no redirect_dir: EXDEV, as in Docker",
    },
    "docker": {
        "total_disk_is_limited": "the writable layer is watched: what is written between two looks is not prevented",
        "start_folder_can_be_renamed": "overlay2 without redirect_dir: EXDEV",
        "python_is_the_driver_s_interpreter": "it is the image's",
        "programs_cannot_be_written": "they are the container's own copy",
    },
    "local": {
        "total_disk_is_limited": "the cap is on one file (RLIMIT_FSIZE)",
        "writing_outside_leaves_no_trace": _NOT_ISOLATED,
        "host_files_are_invisible": _NOT_ISOLATED,
        "no_network": _NOT_ISOLATED,
        "process_tables_are_apart": _NOT_ISOLATED,
        "paths_and_host_name_are_the_same_in_each": "the working folder lies in a temporary folder",
        "survives_the_killing_of_its_parent": "the runner is a process like any other",
        "a_snapshot_brings_every_file_back": _NO_SNAPSHOTS,
        "a_snapshot_can_be_taken_of_what_was_restored": _NO_SNAPSHOTS,
        "restored_sandboxes_share_no_file": _NO_SNAPSHOTS,
        "a_snapshot_costs_its_changes_and_not_its_steps": _NO_SNAPSHOTS,
        "a_damaged_snapshot_is_a_sandbox_error": _NO_SNAPSHOTS,
    },
}
INSIDE_GAPS = {
    "total_disk_is_limited": "the cap is on one file (RLIMIT_FSIZE): what is written is not seen",
    "a_snapshot_brings_every_file_back": "the engine tells names as text: with one that is not UTF-8 it is refused",
}
"""Of containers whose layers are closed to the driver, besides."""


def behaviour(check: Callable[[World], None]) -> Callable[[World], None]:
    BEHAVIOURS[check.__name__] = Behaviour(check, unsafe=False)
    return check


def unsafe(check: Callable[[World], None]) -> Callable[[World], None]:
    BEHAVIOURS[check.__name__] = Behaviour(check, unsafe=True)
    return check


def make_tree(tree: Path) -> str:
    """The start tree of the suite; its commit."""
    tree.mkdir()
    script = r"""
    git init -q -b main; git config user.email a@b.c; git config user.name n
    printf 'def f():\n    return 1\n' > mod.py; printf 'one\ntwo\n' > notes.txt; printf '#!/bin/sh\necho run\n' > run.sh
    mkdir -p pkg/deep; printf 'x = 1\n' > pkg/deep/a.py; printf 'y = 1\n' > pkg/b.py; ln -s notes.txt link
    printf '\0\1\2\3' > old.bin; printf '\0gone' > gone.bin; printf '*.log\n' > .gitignore
    printf 'v1\n' > "$(printf 'caf\303\251.py')"; printf 'v1\n' > "$(printf 'latin\351.txt')"
    printf 'v1\n' > 'with space.txt'; printf 'v1\n' > "$(printf 'tab\tname.txt')"
    git add -A; git commit -qm base
    """
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tree, text=True).strip()


def canary(world: World) -> None:
    """Prove, harmlessly, that the sandbox is one: private PIDs with PID 1 ours, a root of its own, a process limit."""
    marker = world.scratch / f"canary-{secrets.token_hex(8)}"
    marker.write_text("host")
    try:
        seen = world.text(
            f"echo $PPID; readlink /proc/self/ns/pid; stat -c %d:%i /; tr '\\0' ' ' </proc/1/cmdline; echo; ulimit -u;"
            f"test -e {marker} && echo visible || echo hidden"
        ).splitlines()
    finally:
        marker.unlink()
    root = os.stat("/")
    assert seen[0] == "1"
    assert seen[1] != os.readlink("/proc/self/ns/pid")
    assert seen[2] != f"{root.st_dev}:{root.st_ino}"
    assert "runner.bash" in seen[3]
    assert seen[5] == "hidden"
    limit = int(seen[4])
    assert limit <= 512
    made = int(world.text(_FORK.format(tries=limit + 20, end="for pid in made: os.kill(pid, 9)")).split()[-1])
    assert made < limit, f"{made} processes under a limit of {limit}"


_FORK = """python3 -S - <<'P'
import os, time
made = []
for _ in range({tries}):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(30); os._exit(0)
    made.append(pid)
{end}
print("made", len(made))
P"""


def alive(marker: str) -> list[int]:
    """Processes of this machine with `marker` in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found


def gone(marker: str, within_s: float = 5.0) -> bool:
    return eventually(lambda: not alive(marker), within_s)


def eventually(test: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def sleeper(seconds: int = 600) -> tuple[str, str]:
    """A command that sleeps, and the marker to find it by."""
    marker = f"marker{secrets.token_hex(8)}"
    return f"(exec -a {marker} sleep {seconds})", marker


# --- the shell


@behaviour
def each_action_is_a_fresh_shell(world: World) -> None:
    world.run("FOO=1; export BAR=2; cd /tmp; alias x=y; set -e; f() { :; }; umask 077; trap 'echo bye' EXIT")
    assert world.text('echo "[$FOO$BAR]"; type f x 2>/dev/null; umask; pwd') == f"[]\n0022\n{world.text('pwd')}"


@behaviour
def files_persist(world: World) -> None:
    folder = f"{world.outside}/w"
    world.run(f"echo kept > new.txt; mkdir -p {folder}")
    assert world.text(f"cat new.txt; test -d {folder} && echo there") == "kept\nthere\n"


@behaviour
def the_environment_is_exactly_the_configured_one(world: World) -> None:
    names = {line.split("=", 1)[0] for line in world.text("env").splitlines()}
    expected = {
        *("PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PAGER", "GIT_PAGER"),
        *("GIT_EDITOR", "TERM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"),
        *("PWD", "SHLVL", "_", "FROM_IMAGE"),
    }
    assert names - {"TMPDIR"} == expected
    assert world.text("echo $FROM_IMAGE") == "of the image\n"


@behaviour
def python_is_the_driver_s_interpreter(world: World) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}\n"
    for name in ("python", "python3"):
        assert world.text(f"{name} -c 'import platform, json, ssl; print(platform.python_version())'") == version


@behaviour
def signals_are_at_their_defaults(world: World) -> None:
    seen = dict(line.split(":\t") for line in world.text("grep ^Sig[BI] /proc/self/status").splitlines())
    assert seen == {"SigBlk": "0" * 16, "SigIgn": "0" * 16}


@behaviour
def exit_codes_are_true(world: World) -> None:
    cases = {"true": 0, "false": 1, "exit 3": 3, "nosuchcommand": 127, "/etc/passwd": 126, "exit 255": 255, "": 0}
    for command, code in cases.items():
        seen = world.run(command)
        assert (seen.exit_code, seen.ended, seen.signal) == (code, Exit.EXITED, None), command


@behaviour
def death_by_a_signal_is_told_apart(world: World) -> None:
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP, signal.SIGUSR2):
        seen = world.run(f"echo before; kill -{int(number)} $$; echo after")
        assert (seen.exit_code, seen.ended, seen.signal) == (None, Exit.SIGNAL, int(number))
        assert seen.output == b"before\n"
        assert world.run(f"exit {128 + number}").exit_code == 128 + number


@behaviour
def signals_that_bash_keeps_silent_about_are_plain_codes(world: World) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        assert world.run(f"kill -{int(number)} $$; sleep 1").exit_code == 128 + number


@behaviour
def a_command_killed_within_the_action_is_its_exit_code(world: World) -> None:
    assert world.run("sh -c 'kill -9 $$'; echo code $?").output.endswith(b"code 137\n")


@behaviour
def actions_on_the_shell_itself_do_no_harm(world: World) -> None:
    cases = {
        "exit 3": 3,
        "A=(); false": 1,
        "set -e; false; echo unreachable": 1,
        "exec sleep 0": 0,
        "exec >/dev/null 2>&1; echo unseen": 0,
        "exec 1>&- 2>&-; echo unseen": 1,
        "trap 'echo bye' EXIT; exit 7": 7,
        "PS1='$ '; PROMPT_COMMAND='echo hi'; true": 0,
        "set -o posix; shopt -s extdebug; set -n": 0,
        "kill -0 $$; disown -a; wait": 0,
        "exec 0</dev/zero; exec 3>&1 4</dev/null; true": 0,
    }
    for command, code in cases.items():
        assert world.run(command).exit_code == code, command
        assert world.text("echo next") == "next\n"


@behaviour
def a_syntax_error_is_bash_s_own_message(world: World) -> None:
    seen = world.run('if true; then echo "unterminated')
    assert seen.exit_code == 2
    assert seen.output.startswith(b"bash: ") and b"unexpected EOF" in seen.output
    assert world.text("echo next") == "next\n"


@behaviour
def an_action_may_begin_with_a_dash(world: World) -> None:
    assert world.run("-x").exit_code == 127
    assert world.run("--version").exit_code == 127


@behaviour
def a_deleted_working_folder_is_reported(world: World) -> None:
    assert world.run('rm -rf "$PWD"').exit_code == 0
    seen = world.run("echo next")
    assert b"is gone" in seen.output
    assert (seen.exit_code, seen.output.endswith(b"next\n")) == (0, True)


@behaviour
def stdin_is_empty(world: World) -> None:
    cases = {
        "cat": "",
        'read -r x; echo "got:[$x]"': "got:[]\n",
        "python3 -": "",
        "printf 'a\\nb\\n' | cat": "a\nb\n",
        "cat <<'X'\nheredoc\nX": "heredoc\n",
        "readlink /proc/self/fd/0": "/dev/null\n",
        "tty": "not a tty\n",
    }
    for command, output in cases.items():
        started = time.monotonic()
        assert world.text(command) == output, command
        assert time.monotonic() - started < 5
    assert world.run("python3 -c \"input('password: ')\"").exit_code == 1


@behaviour
def pagers_and_editors_do_not_open(world: World) -> None:
    identity = "-c user.name=n -c user.email=a@b.c"
    for command in (
        "git log",
        "git diff HEAD",
        f"git {identity} -c core.editor=vi commit --allow-empty",
        "less notes.txt",
    ):
        assert world.run(command, 5).ended is Exit.EXITED, command


# --- output


@behaviour
def stdout_and_stderr_are_merged_in_order(world: World) -> None:
    line = "for i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo err$i >&2; done"
    assert world.text(line) == "".join(f"out{i}\nerr{i}\n" for i in range(1, 10))


@behaviour
def bytes_come_back_as_they_are(world: World) -> None:
    every = bytes(range(256)) * 3
    world.box.write_file("every.bin", every)
    seen = world.run("cat every.bin")
    assert (seen.output, seen.size, seen.cut_at) == (every, 768, None)
    assert seen.sha256 == hashlib.sha256(every).hexdigest()
    raw = world.run(r"printf '\rfetch %4d\033[32m%s\033[0m' 1 '#'; printf 'x\r\nlast'").output
    assert raw == b"\rfetch    1\x1b[32m#\x1b[0mx\r\nlast"


@behaviour
def an_action_s_bytes_arrive_as_they_are(world: World) -> None:
    text = "caf\u00e9 \u2603 \U0001f600 \\n \\0 'q' \" $HOME `x` \r\n\ttab  \x01\x7f\n\n"
    for padding in ("", "x" * 2000, "x" * 140_000):
        action = f"cat <<'END_OF_IT'\n{text}{padding}\nEND_OF_IT"
        seen = world.run(action)
        assert seen.sha256 == hashlib.sha256(f"{text}{padding}\n".encode()).hexdigest()


@behaviour
def a_lone_surrogate_is_replaced(world: World) -> None:
    assert world.run("printf '%s' 'a\ud83db'").output == "a\ufffdb".encode()


@behaviour
def nul_fails_its_action_alone(world: World) -> None:
    seen = world.run("echo a\0b")
    assert (seen.ended, seen.exit_code) == (Exit.NOT_RUN, None)
    assert b"NUL" in seen.output
    assert world.text("echo next") == "next\n"


@behaviour
def actions_of_any_size_run(world: World) -> None:
    for size in (131_071, 131_072, 300_000):
        head, tail = "cat > big.txt <<'EOF_BIG'\n", "\nEOF_BIG\nwc -c < big.txt"
        body = ("0123456789abcde\n" * (size // 16))[: size - len(head) - len(tail)]
        seen = world.run(head + body + tail)
        assert (seen.exit_code, seen.output.split()) == (0, [str(len(body) + 1).encode()]), size


@behaviour
def long_output_keeps_head_tail_size_and_digest(world: World) -> None:
    with world.another(SandboxLimits(output_bytes=1000)) as other:
        whole = b"".join(b"%d\n" % i for i in range(1, 20_001))
        seen = other.run("seq 1 20000")
        assert seen.output == whole[:500] + whole[-500:]
        assert (seen.size, seen.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
        assert seen.cut_at == 500
        for size, cut in ((999, None), (1000, None), (1001, 500)):
            seen = other.run(f"head -c {size} /dev/zero")
            assert (seen.cut_at, len(seen.output), seen.size) == (cut, min(size, 1000), size)


@behaviour
def endless_output_leaves_the_driver_s_memory_flat(world: World) -> None:
    run = _driver(world, "endless")
    told, _ = run.communicate(timeout=30)
    ended, megabytes, size = told.split()
    assert ended == "time_limit"
    assert int(megabytes) < 300
    assert int(size) > 50_000_000


# --- time limit and background processes


@behaviour
def the_time_limit_keeps_partial_output(world: World) -> None:
    started = time.monotonic()
    seen = world.run("echo 'test_a PASSED'; printf 'test_b '; sleep 3600", 0.4)
    assert 0.3 < time.monotonic() - started < 3
    assert (seen.output, seen.ended, seen.exit_code) == (b"test_a PASSED\ntest_b ", Exit.TIME_LIMIT, None)
    assert world.text("echo next") == "next\n"


@behaviour
def the_time_limit_ends_every_process_of_the_step(world: World) -> None:
    ways = (
        "{} & wait",
        "setsid {} & sleep 60",
        "(setsid {} &) ; sleep 60",
        "nohup setsid {} >/dev/null 2>&1 & sleep 60",
        "trap '' TERM INT HUP; {} & while :; do sleep 60; done",
        "set -m; {} & disown -a; sleep 60",
    )
    for way in ways:
        _, marker = sleeper()
        command = f"bash -c 'exec -a {marker} sleep 600'"
        assert world.run(way.format(command), 0.3).ended is Exit.TIME_LIMIT
        assert gone(marker, 1.0), way
    assert world.text("echo next") == "next\n"


@behaviour
def a_step_that_forks_all_the_time_is_ended(world: World) -> None:
    _, marker = sleeper()
    seen = world.run(f"while :; do bash -c 'exec -a {marker} sleep 0.05' & sleep 0.01; done", 0.5)
    assert seen.ended is Exit.TIME_LIMIT
    assert gone(marker, 1.0)


@behaviour
def the_same_holds_beside_an_earlier_background_process(world: World) -> None:
    early, marker = sleeper()
    world.run(f"{early} >/dev/null 2>&1 &")
    _, late = sleeper()
    loop = f"while :; do setsid bash -c 'exec -a {late} sleep 5' & sleep 0.02; done"
    assert world.run(loop, 0.5).ended is Exit.TIME_LIMIT
    assert gone(late, 1.0)
    assert alive(marker)


@behaviour
def earlier_background_processes_survive_the_time_limit(world: World) -> None:
    early, marker = sleeper()
    world.run(f"{early} >/dev/null 2>&1 & while :; do date > tick; sleep 0.05; done >/dev/null 2>&1 &")
    assert world.run("sleep 60", 0.3).ended is Exit.TIME_LIMIT
    assert alive(marker)
    assert world.text("rm tick; sleep 0.4; test -e tick && echo ticking") == "ticking\n"


@behaviour
def any_time_limit_will_do(world: World) -> None:
    for limit in (0.0, 0.0005, 0.001, 0.002, 0.003, 0.005) * 3:
        assert world.run("sleep 20", limit).ended is Exit.TIME_LIMIT
    assert world.text("echo next") == "next\n"


@behaviour
def a_background_process_does_not_hold_the_step(world: World) -> None:
    started = time.monotonic()
    seen = world.run("sleep 30 & echo at once")
    assert time.monotonic() - started < 2
    assert (seen.exit_code, seen.output) == (0, b"at once\n")


@behaviour
def background_output_reaches_no_later_observation(world: World) -> None:
    world.run("(for i in $(seq 40); do echo late; echo late >&2; sleep 0.01; done; echo $? > done.txt) &")
    for _ in range(10):
        assert world.text("echo mine; sleep 0.02") == "mine\n"
    assert eventually(lambda: world.run("cat done.txt").output == b"0\n")


@behaviour
def a_background_process_is_not_blocked_by_its_output(world: World) -> None:
    world.run("(head -c 1000000 /dev/zero; echo $? > done.txt) &")
    assert eventually(lambda: world.run("cat done.txt").output == b"0\n", 10)


@behaviour
def an_endless_background_writer_slows_nothing(world: World) -> None:
    world.run("yes &")
    started = time.monotonic()
    for _ in range(20):
        assert world.text("echo mine") == "mine\n"
    assert time.monotonic() - started < 4


@behaviour
def a_server_in_the_background_serves_later_steps(world: World) -> None:
    world.run("python3 -m http.server 8731 --bind 127.0.0.1 >/dev/null 2>&1 &")
    fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8731/notes.txt').read())\""
    assert eventually(lambda: world.run(fetch).output == b"b'one\\ntwo\\n'\n", 10)


# --- lost and damaged


@behaviour
def a_runner_killed_from_outside_is_a_sandbox_error(world: World) -> None:
    with world.another() as other:
        other.run("echo one")
        os.kill(other.box.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        for _ in range(2):
            _raises_sandbox_error(lambda: other.run("echo two"))
        _raises_sandbox_error(lambda: other.box.working_diff(other.head))


@behaviour
def a_runner_killed_in_mid_step_is_a_sandbox_error(world: World) -> None:
    with world.another() as other:
        pid = other.box.pid  # type: ignore[attr-defined]
        with subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -9 {pid}"]):
            _raises_sandbox_error(lambda: other.run("sleep 20"))


def _raises_sandbox_error(call: Callable[[], object]) -> None:
    try:
        answer = call()
    except SandboxError:
        return
    raise AssertionError(f"an answer, not a SandboxError: {answer!r}")


@behaviour
def survives_the_killing_of_its_parent(world: World) -> None:
    with world.another() as other:
        other.run("kill -9 $PPID; kill -STOP $PPID; kill $PPID")
        assert other.text("echo next") == "next\n"


@behaviour
def a_time_limit_signal_from_inside_is_no_lie(world: World) -> None:
    seen = world.run("kill -USR1 $PPID; sleep 5; echo done")
    assert (seen.ended, seen.signal) == (Exit.SIGNAL, signal.SIGKILL)
    assert world.text("echo next") == "next\n"


@behaviour
def false_reports_are_not_believed(world: World) -> None:
    seen = world.run(
        "for f in /proc/$PPID/fd/*; do echo '1 0 0 1' > $f; done 2>/dev/null; sleep 0.1; echo end; exit 4", 5
    )
    assert (seen.exit_code, seen.output) == (4, b"end\n")
    # The step knows its own name: it is that of the FIFO which takes its output.
    own = 'name=$(basename "$(readlink /proc/self/fd/1)"); for f in /proc/$PPID/fd/*; do'
    for seal in ("", ".", ".0000000000000000"):
        told = f"printf '\\n%s{seal} 0 0 1 =\\n' \"$name\" > $f"
        assert world.run(f"{{ {own} {told}; done; }} 2>/dev/null; sleep 0.1; exit 4", 5).exit_code == 4


@behaviour
def a_flood_of_false_reports_does_no_harm(world: World) -> None:
    assert world.run("timeout 1 yes > /proc/$PPID/fd/1; exit 3", 5).exit_code is not None
    world.run("for f in 1 2 3; do timeout 1 yes > /proc/$PPID/fd/1 & done 2>/dev/null")
    for _ in range(5):
        assert world.text("echo mine") == "mine\n"
    assert world.run("yes > /proc/$PPID/fd/1; sleep 30", 0.5).ended is Exit.TIME_LIMIT
    assert world.text("echo next") == "next\n"


# --- limits


@behaviour
def memory_is_limited(world: World) -> None:
    with world.another(SandboxLimits(memory_bytes=200 * 1024**2)) as other:
        seen = other.run("python3 -c \"b = bytearray(600 * 1024**2); print('had it')\"")
        assert b"had it" not in seen.output
        assert other.text("echo next") == "next\n"


@behaviour
def a_file_is_limited(world: World) -> None:
    with world.another(SandboxLimits(disk_bytes=1024**2)) as other:
        assert other.run("head -c 3000000 /dev/zero > big; echo $?").output.endswith(b"153\n")
        assert int(other.text("stat -c %s big")) <= 1024**2


@behaviour
def total_disk_is_limited(world: World) -> None:
    with world.another(SandboxLimits(disk_bytes=1024**2)) as other:
        other.run("for i in 1 2 3 4; do head -c 900000 /dev/zero > big$i; done")
        assert int(other.text("cat big? | wc -c")) <= 2 * 1024**2


@unsafe
def a_process_flood_is_bounded(world: World) -> None:
    with world.another(SandboxLimits(processes=64)) as other:
        canary(other)
        seen = other.run(_FORK.format(tries=20_000, end=""))
        assert 0 < int(seen.output.split()[-1]) < 64
        # What the flood left behind fills the limit: the next action is told so, and nothing is lost.
        assert b"fork" in other.run("ls | cat | cat | cat | cat | cat | cat | cat", 1).output
        assert world.text("echo sibling") == "sibling\n"
        assert other.box.working_diff(other.head) == b""


@unsafe
def a_fork_bomb_ends_with_its_step(world: World) -> None:
    with world.another(SandboxLimits(processes=64)) as other:
        canary(other)
        assert other.run(":(){ :|:& };:; sleep 30", 1.0).ended is Exit.TIME_LIMIT
        assert other.text("echo next; ls | wc -l", 5).startswith("next\n")


# --- isolation


@behaviour
def writing_outside_leaves_no_trace(world: World) -> None:
    name = f"forkroll-trace-{secrets.token_hex(8)}"
    outside = world.scratch / name
    world.run(f"mkdir -p {outside.parent}; echo x > {outside}; echo x > /tmp/{name}")
    left = [path for path in (outside, Path("/tmp") / name) if path.exists()]
    for path in left:
        path.unlink()
    assert not left


@behaviour
def host_files_are_invisible(world: World) -> None:
    secret = world.scratch / f"secret-{secrets.token_hex(4)}"
    secret.write_text("of the host")
    for place in (secret, Path(__file__), Path("/proc/1/root") / secret.relative_to("/")):
        assert world.run(f"cat {place}").exit_code != 0
    assert world.text("ls -A /home /mnt /run /srv | grep -v :$ | tr -d '\\n'") == ""


@behaviour
def no_network(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = world.run(f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2)\"")
        assert seen.exit_code != 0
    interfaces = world.text("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n'")
    assert interfaces == "lo"


@behaviour
def process_tables_are_apart(world: World) -> None:
    early, marker = sleeper()
    world.run(f"{early} >/dev/null 2>&1 &")
    with world.another() as other:
        assert other.run(f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^{marker[:-1]}'").output == b"0\n"


@behaviour
def paths_and_host_name_are_the_same_in_each(world: World) -> None:
    command = "pwd; hostname; echo ~ $PATH; python3 -c 'import sys; print(sys.executable)'"
    with world.another() as other:
        assert world.text(command) == other.text(command)


@unsafe
def programs_cannot_be_written(world: World) -> None:
    canary(world)
    places = ["/usr", "/etc", "/opt/forkroll", "/opt/forkroll/git", os.path.realpath(sys.base_prefix)]
    for place in places:
        for attempt in (
            f"touch {place}/x",
            f"mount -o remount,rw,bind {place} && touch {place}/x",
            f"umount {place} && touch {place}/x && false",
            f"unshare -Urm sh -c 'mount -o remount,rw,bind {place}; umount {place}; touch {place}/x'",
        ):
            assert world.run(attempt).exit_code != 0, attempt
    assert world.run("echo 1 > /proc/sys/kernel/sysrq || echo b > /proc/sysrq-trigger").exit_code != 0
    assert world.run("cat /etc/shadow").exit_code != 0


@unsafe
def killing_everything_kills_the_step_only(world: World) -> None:
    canary(world)
    early, marker = sleeper()
    # The caller of kill is spared, and PID 1 cannot be killed from inside.
    seen = world.run(f'{early} & [ "$PPID" = 1 ] && kill -9 -1; echo survived')
    assert seen.output == b"survived\n"
    assert gone(marker)
    assert world.text("echo next") == "next\n"


@unsafe
def removing_everything_harms_the_sandbox_only(world: World) -> None:
    with world.another() as other:
        canary(other)
        other.run('[ "$PPID" = 1 ] && rm -rf --no-preserve-root / 2>/dev/null', 30)
        assert b"is gone" in other.run("ls").output
        assert os.path.exists("/usr/bin/env")
    with world.another() as fresh:
        assert fresh.text("cat mod.py") == (world.image.tree / "mod.py").read_text()


@behaviour
def sandboxes_do_not_see_each_other_s_files(world: World) -> None:
    with world.another() as other:
        world.run("echo mine > shared.txt; rm notes.txt")
        assert other.run("cat shared.txt").exit_code == 1
        assert other.text("cat notes.txt") == "one\ntwo\n"


@behaviour
def the_image_is_never_written(world: World) -> None:
    listing = ["find", str(world.image.tree), "-printf", "%p %i %s %m %T@ %C@ %l\n"]
    before = subprocess.check_output(listing)
    with world.another() as other:
        other.run("echo x >> mod.py; chmod 600 notes.txt; rm -rf pkg; git add -A; git gc -q; ln -sf x link")
        other.box.digest()
        other.box.working_diff(other.head)
    assert subprocess.check_output(listing) == before


@behaviour
def start_folder_can_be_renamed(world: World) -> None:
    assert world.run("python3 -c \"import os; os.rename('pkg', 'renamed')\"").exit_code == 0


# --- files


@behaviour
def files_are_read_and_written_as_bytes(world: World) -> None:
    every = bytes(range(256)) * 5000
    for path in ("a/b c/d'e", "-dash", "caf\u00e9", f"{world.outside}/deep/x", os.fsdecode(b"latin\xe9")):
        world.box.write_file(path, every)
        assert world.box.read_file(path) == every
    world.box.write_file("a/b c/d'e", b"")
    assert world.box.read_file("a/b c/d'e") == b""
    assert world.text("stat -c %a -- -dash") == "644\n"


@behaviour
def writing_keeps_a_file_s_mode_and_follows_links(world: World) -> None:
    world.run("chmod 755 run.sh")
    world.box.write_file("run.sh", b"#!/bin/sh\n")
    world.box.write_file("link", b"through")
    assert world.text("stat -c %a run.sh; cat notes.txt") == "755\nthrough"


@behaviour
def absolute_links_are_resolved_inside(world: World) -> None:
    world.run(f"echo inside > {world.outside}/target; ln -s {world.outside}/target out")
    assert world.box.read_file("out") == b"inside\n"


@behaviour
def a_missing_file_is_an_os_error(world: World) -> None:
    for call in (lambda: world.box.read_file("nowhere"), lambda: world.box.write_file("mod.py/x", b"")):
        try:
            call()
        except OSError:
            continue
        raise AssertionError("no OSError")


# --- digest


@behaviour
def equal_edits_give_equal_digests(world: World) -> None:
    edits = (
        "echo x >> mod.py",
        "chmod +x run.sh",
        "ln -sfn mod.py link",
        "rm pkg/b.py",
        "mkdir empty",
        "printf new > untracked",
        "rm -rf pkg && mkdir -p pkg/deep && echo z > pkg/deep/a.py",
        "rm -rf pkg && echo file > pkg",
        "git -c user.name=n -c user.email=e commit -q --allow-empty -m m --date=2020-01-01T00:00Z",
        "git checkout -q --detach",
        "chmod 700 empty",
    )
    fixed = "export GIT_COMMITTER_DATE=2020-01-01T00:00Z; "
    seen = [world.box.digest()]
    with world.another() as other:
        assert other.box.digest() == seen[0]
        for edit in edits:
            for box in (world, other):
                assert box.run(fixed + edit).exit_code == 0, edit
            seen.append(world.box.digest())
            assert other.box.digest() == seen[-1] is not None, edit
            if not edit.startswith("git checkout"):
                assert seen[-1] not in seen[:-1], edit


@behaviour
def what_does_not_count_leaves_the_digest(world: World) -> None:
    before = world.box.digest()
    assert before is not None
    world.run("mkdir -p pkg/__pycache__ .pytest_cache; echo x > pkg/__pycache__/a; echo x > a.pyc; touch mod.py")
    world.run("git add -A -f; git config x.y z; echo outside > ../x")
    assert world.box.digest() == before


@behaviour
def an_undone_edit_gives_the_old_digest(world: World) -> None:
    before = world.box.digest()
    world.run("cp -a mod.py ../kept; echo x >> mod.py; rm -r pkg; chmod 600 notes.txt")
    assert world.box.digest() != before
    world.run("cat ../kept > mod.py; git checkout -q -- pkg; chmod 644 notes.txt")
    assert world.box.digest() == before


@behaviour
def quick_edits_of_equal_size_are_seen(world: World) -> None:
    seen = set()
    for letter in "abcdefgh":
        world.run(f"printf {letter} > quick; touch -d 2020-01-01 quick")
        seen.add(world.box.digest())
    assert len(seen) == 8


@behaviour
def a_bottomless_tree_has_no_digest_and_does_no_harm(world: World) -> None:
    with world.another() as other:
        script = "import os\nfor _ in range(2500):\n    os.mkdir('deep'); os.chdir('deep')"
        assert other.run(f'python3 -c "{script}"').exit_code == 0
        assert other.box.digest() is None
        assert other.text("echo next") == "next\n"


# --- working diff


_CHANGES = r"""
printf 'def f():\n    return 2\n' > mod.py; printf '\0\1\2\3\4\377' > old.bin; rm gone.bin
printf '\211PNG\r\n\032\n\0\0' > plot.png; mkdir -p __pycache__; printf '\0pyc' > __pycache__/mod.cpython-311.pyc
printf 'v2\n' > "$(printf 'caf\303\251.py')"; printf 'v2\n' > "$(printf 'latin\351.txt')"
printf 'v2\n' > 'with space.txt'; printf 'v2\n' > "$(printf 'tab\tname.txt')"
printf 'q' > "$(printf 'new"quote\nline')"
chmod +x run.sh; mv pkg/b.py new_name.py; ln -sfn mod.py link; ln -s nowhere dangling; : > empty_new
printf 'x\n' > "$(printf 'nouveau_\342\230\203.py')"; rm -rf pkg/deep; echo 'now a file' > pkg/deep
mkdir -p 'a b/c'; printf 'no newline' > 'a b/c/ b'; printf 'crlf\r\n' > crlf.txt; rm notes.txt; mkdir notes.txt
echo in > notes.txt/in; echo ignored > x.log; mkfifo pipe
"""


@behaviour
def the_working_diff_gives_the_same_tree(world: World) -> None:
    assert world.box.working_diff(world.head) == b""
    world.run(_CHANGES)
    patch = world.box.working_diff(world.head)
    assert b"GIT binary patch" in patch
    world.run("rm -rf __pycache__ pipe; rm x.log")
    assert _digest_with(world, patch) == world.box.digest()


def _digest_with(world: World, patch: bytes) -> str | None:
    with world.another() as fresh:
        fresh.box.write_file(f"{fresh.outside}/the.patch", patch)
        seen = fresh.run(f"git apply {fresh.outside}/the.patch")
        assert seen.exit_code == 0, seen.output
        return fresh.box.digest()


@behaviour
def the_working_diff_needs_nothing_of_the_agent_s_git(world: World) -> None:
    world.run("echo x >> mod.py; echo new > new.py")
    expected = world.box.working_diff(world.head)
    world.run(
        "git config diff.noprefix true; git config --global color.ui always; git config diff.external false;"
        "git config --global core.quotePath false; printf '*.py diff=x\n' > .git/info/attributes;"
        "git config diff.x.textconv cat"
    )
    assert world.box.working_diff(world.head) == expected
    for damage in (
        "git add -A",
        "echo > .git/index; echo > .git/HEAD",
        "rm -rf .git/objects",
        "rm -rf .git",
        "echo > .git",
    ):
        world.run(damage)
        assert world.box.working_diff(world.head) == expected, damage
    assert world.box.working_diff("HEAD") == expected


@behaviour
def the_working_diff_touches_nothing(world: World) -> None:
    world.run("echo x >> mod.py; git add mod.py; echo y >> mod.py; echo new > new.py")
    look = "git status --porcelain=v2; sha256sum .git/index; find .git -type f | wc -l; ls -A | wc -l"
    before = world.text(look)
    world.box.working_diff(world.head)
    assert world.text(look) == before


@behaviour
def the_working_diff_comes_whole(world: World) -> None:
    with world.another(SandboxLimits(output_bytes=1000)) as other:
        other.run("seq 1 50000 > long.txt; head -c 300000 /dev/urandom > random.bin")
        assert _digest_with(other, other.box.working_diff(other.head)) == other.box.digest()


@behaviour
def the_working_diff_is_against_the_commit_named(world: World) -> None:
    world.run("echo x >> mod.py; git -c user.name=n -c user.email=e commit -qam later; echo y >> mod.py")
    assert world.box.working_diff(world.head).count(b"\n+") == 3  # the header and two lines


@behaviour
def the_working_diff_survives_odd_repositories_inside(world: World) -> None:
    world.run("git init -q inner; echo x >> mod.py; echo z > zz.py; echo a > aa.py")
    patch = world.box.working_diff(world.head)
    assert all(name in patch for name in (b"mod.py", b"zz.py", b"aa.py"))


@behaviour
def a_diff_that_cannot_be_taken_is_a_sandbox_error(world: World) -> None:
    _raises_sandbox_error(lambda: world.box.working_diff("0" * 40))
    assert world.text("echo next") == "next\n"


# --- endings


def _driver(world: World, what: str) -> subprocess.Popen[str]:
    """A driver of its own, to be watched or killed."""
    code = "import sys; from tests.contracts.sandbox_contract import drive; drive(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, world.name, str(world.image.tree), str(world.scratch), what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def drive(name: str, tree: str, scratch: str, what: str) -> None:
    """What the driver of `_driver` does: "endless" tells its memory; else `what` is a marker, run until killed."""
    import resource

    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have had it ignored
    from tests.contracts.test_sandboxes import MAKERS

    with MAKERS[name](SandboxLimits(), Path(scratch)) as provider, provider.start(Image("driven", Path(tree))) as box:
        if what == "endless":
            seen = box.act("tr '\\0' 'z' < /dev/zero", timeout_s=1.0)
            print(seen.ended, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, seen.size)
            return
        box.act(f"setsid bash -c 'exec -a {what} sleep 600' >/dev/null 2>&1 &", timeout_s=5)
        print("ready", flush=True)
        box.act(f"bash -c 'exec -a {what} sleep 600'", timeout_s=60)


@behaviour
def nothing_is_left_when_the_driver_is_killed(world: World) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        _one_driver_killed(world, number)


def _one_driver_killed(world: World, number: int) -> None:
    before = _left(world)
    _, marker = sleeper()
    with _driver(world, marker) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        assert eventually(lambda: len(alive(marker)) >= 3)  # its argument, and two sleepers
        driver.send_signal(number)
        driver.wait(10)
    assert gone(marker), number
    assert eventually(lambda: _left(world, driver.pid) <= before), _left(world, driver.pid) - before


def _left(world: World, pid: int | None = None) -> set[str]:
    """Folders, control groups and mounts of the driver `pid`: this process if None."""
    left = {str(path) for path in world.scratch.iterdir()}
    for path, _, _ in os.walk("/sys/fs/cgroup"):
        if os.path.basename(path).startswith(f"forkroll-{pid or os.getpid()}-"):
            left.add(path)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return left | {line for line in mounts if str(world.scratch) in line}


@behaviour
def nothing_is_left_of_an_ended_sandbox(world: World) -> None:
    _, marker = sleeper()
    groups, roots = _left(world), set(world.scratch.iterdir())
    with world.make(SandboxLimits()) as provider:
        with provider.start(world.image):
            pass  # what all of them share is made once
        (root,) = set(world.scratch.iterdir()) - roots
        before = set(root.iterdir())
        with provider.start(world.image) as box:
            script = (
                f"mkdir -p x/y && chmod 000 x; for i in 1 2 3; do setsid bash -c 'exec -a {marker} sleep 600' & done"
            )
            box.act(script, timeout_s=10)
            assert eventually(lambda: len(alive(marker)) == 3)
        assert not alive(marker)
        assert set(root.iterdir()) <= before
    assert _left(world) <= groups


@behaviour
def nothing_is_left_of_a_closed_provider(world: World) -> None:
    before = _left(world)
    with world.make(SandboxLimits()) as provider:
        with provider.start(world.image) as box:
            box.act("echo x > y; sleep 600 &", timeout_s=5)
        assert _left(world) > before
    assert _left(world) <= before


@behaviour
def many_sandboxes_run_at_once(world: World) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> str:
        with world.another() as other:
            other.run(f"echo {number} > own.txt; sleep 0.05")
            return other.text("cat own.txt")

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(32))) == [f"{number}\n" for number in range(32)]


@behaviour
def a_sandbox_that_cannot_start_is_a_sandbox_error(world: World) -> None:
    missing = Image("missing", world.scratch / "nowhere")

    def start() -> None:
        with world.provider.start(missing):
            pass

    _raises_sandbox_error(start)
    assert shutil.which("bash")


# --- the process table, snapshots, the way in


@behaviour
def processes_that_live_on_are_told_by_name(world: World) -> None:
    assert world.box.processes() == ()
    world.run("true & wait; (true &); ls | cat; sleep 0.01")
    assert world.box.processes() == ()
    started = f'"{world.outside}/started"'  # killed by these ids alone: `local` sees every process of the machine
    own_group = f"setsid bash -c 'echo -$$ >>\"$1\"; sleep 600; :' bash {started}"
    world.run(f"sleep 600 & echo $! >>{started}; setsid sleep 600 & echo $! >>{started}; ({own_group} &); exit 3")
    assert eventually(lambda: world.box.processes() == ("bash", "sleep", "sleep", "sleep"))
    world.run(f"kill -- $(cat {started})")
    assert eventually(lambda: world.box.processes() == ())


@behaviour
def odd_names_of_processes_are_told_in_one_way(world: World) -> None:
    for name, shown in (("a b", "a?b"), ("x) S 1", "x)?S?1"), ("new\\nline", "new?line"), ("caf\\303\\251", "caf??")):
        copy = f"\"{world.outside}/$(printf '{name}')\""
        world.run(f"cp $(type -P sleep) {copy} && {{ {copy} 600 >/dev/null 2>&1 & }}")
        assert shown in (world.box.processes() or ()), name


@behaviour
def what_a_thread_started_is_told_as_well(world: World) -> None:
    code = (
        "import subprocess as s, threading as t, time\n"
        "def go(): s.Popen(['sleep', '600']); time.sleep(600)\n"
        "t.Thread(target=go).start()"
    )
    world.run(f'python3 -S -c "{code}" >/dev/null 2>&1 &')
    assert eventually(lambda: "sleep" in (world.box.processes() or ()))


@behaviour
def the_time_limit_leaves_no_process_to_tell(world: World) -> None:
    assert world.run("sleep 600 & setsid sleep 600 & sleep 600", 0.3).ended is Exit.TIME_LIMIT
    assert world.box.processes() == ()


_WRITTEN = r"""
printf 'def f():\n    return 2\n' > mod.py; chmod 750 run.sh; rm gone.bin; rm -rf pkg; mkdir -p pkg/new empty
echo z > pkg/new/z; ln -sfn nowhere link; rm notes.txt; mkdir notes.txt; echo in > notes.txt/in
printf 'v2\n' > "$(printf 'latin\351.txt')"; printf x > "$(printf 'new\nline')"; ln mod.py hard; mkfifo pipe
mkdir closed; echo c > closed/c; chmod 500 closed; touch -d 2001-02-03T04:05:06.789 old.bin; git add -A
"""
_LOOK = r"""
find . -path ./.git -prune -o -printf '%p %y %m %l ' \( -type d -printf '\n' -o -printf '%s %n %T@\n' \) | LC_ALL=C sort
git status --porcelain=v2; cat mod.py hard pkg/new/z notes.txt/in closed/c
"""


@behaviour
def a_snapshot_brings_every_file_back(world: World) -> None:
    archive = world.scratch.parent / f"{secrets.token_hex(8)}.tar"
    world.run(f"{_WRITTEN} echo outside > {world.outside}/t; mkdir -p ~/d; echo home > ~/d/h")
    assert world.box.snapshot(archive)
    look = f"{_LOOK} cat {world.outside}/t ~/d/h"
    digest, seen, diff = world.box.digest(), world.run(look).output, world.box.working_diff(world.head)
    with world.provider.start(world.image, snapshot=archive) as box:
        assert box.digest() == digest is not None
        assert box.act(look, timeout_s=10).output == seen
        assert box.working_diff(world.head) == diff
        assert box.processes() == ()


@behaviour
def a_snapshot_can_be_taken_of_what_was_restored(world: World) -> None:
    one, two = (world.scratch.parent / f"{secrets.token_hex(8)}.tar" for _ in range(2))
    world.run("echo one > one; rm -rf pkg; echo gone > two")
    assert world.box.snapshot(one)
    with world.provider.start(world.image, snapshot=one) as box:
        box.act("rm one; mkdir pkg; echo three > pkg/three; echo two >> two", timeout_s=10)
        digest = box.digest()
        assert box.snapshot(two)
    with world.provider.start(world.image, snapshot=two) as box:
        assert box.digest() == digest is not None
        assert box.act("cat two pkg/*; ls pkg; test -e one", timeout_s=10).output == b"gone\ntwo\nthree\nthree\n"


@behaviour
def restored_sandboxes_share_no_file(world: World) -> None:
    archive = world.scratch.parent / f"{secrets.token_hex(8)}.tar"
    world.run("echo common > shared; rm notes.txt")
    assert world.box.snapshot(archive)
    content = archive.read_bytes()
    with (
        world.provider.start(world.image, snapshot=archive) as one,
        world.provider.start(world.image, snapshot=archive) as two,
    ):
        one.act("echo mine >> shared; echo back > notes.txt", timeout_s=10)
        assert two.act("cat shared; cat notes.txt", timeout_s=10).output.startswith(b"common\ncat: ")
    assert archive.read_bytes() == content
    with world.another() as fresh:
        assert fresh.text("cat notes.txt; ls shared 2>/dev/null") == "one\ntwo\n"


@behaviour
def a_snapshot_costs_its_changes_and_not_its_steps(world: World) -> None:
    archives = [world.scratch.parent / f"{secrets.token_hex(8)}.tar" for _ in range(2)]
    world.run("echo x > f")
    assert world.box.snapshot(archives[0])
    for number in range(20):
        world.run(f"echo {number} > g; rm g")
    world.run("echo y > f")
    assert world.box.snapshot(archives[1])
    assert abs(archives[0].stat().st_size - archives[1].stat().st_size) <= 2 * 10_240


@behaviour
def a_damaged_snapshot_is_a_sandbox_error(world: World) -> None:
    archive = world.scratch.parent / f"{secrets.token_hex(8)}.tar"
    world.run("for n in 1 2 3 4; do seq 2000 > big$n; done")
    assert world.box.snapshot(archive)
    whole = archive.read_bytes()
    for content in (b"", os.urandom(4096), whole[: len(whole) // 2]):
        archive.write_bytes(content)

        def start() -> None:
            with world.provider.start(world.image, snapshot=archive):
                pass

        _raises_sandbox_error(start)
    archive.write_bytes(whole)
    with world.provider.start(world.image, snapshot=archive) as box:
        assert box.act("cat big3 | wc -l", timeout_s=10).output == b"2000\n"


@behaviour
def equal_marks_are_equal_snapshots(world: World) -> None:
    """Where a sandbox can name its state cheaply at all."""
    if world.box.change_mark() is None:
        return
    seen = []
    for edit in ("true", "echo x > f", "echo y > f", "chmod 600 f", "rm f", f"echo > {world.outside}/f"):
        world.run(edit)
        seen.append(world.box.change_mark())
        world.run("cat mod.py; ls")
        assert world.box.change_mark() == seen[-1]
    assert len(set(seen)) == len(seen)


@behaviour
def a_person_s_shell_is_in_the_sandbox(world: World) -> None:
    import pty

    world.run("echo of the sandbox > own.txt; sleep 600 >/dev/null 2>&1 &")
    ours, theirs = pty.openpty()
    ask = "pwd; cat own.txt; echo $FROM_IMAGE $PATH; exit 7\n"
    with subprocess.Popen(
        world.box.shell_argv(), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as shell:
        os.close(theirs)
        os.write(ours, ask.encode())
        told = b""
        with contextlib.suppress(OSError):  # EIO: the other end was closed
            while chunk := os.read(ours, 65536):
                told += chunk
        assert shell.wait(10) == 7
    os.close(ours)
    for line in (world.text("pwd"), "of the sandbox\n", world.text("echo $FROM_IMAGE $PATH")):
        assert line.strip().encode() in told, (line, told)
    assert world.box.processes() == ("sleep",)
    assert world.text("echo next") == "next\n"
