"""Faults that people met in tools of this kind, each tried here: kinds A to E and H of the shared collection.

A kind is tried with inputs of our own and with the shared ones where these lie beside the checkout. The numbers in
the names are the collection's. What is tested is what a user would see: the record, the next request, the screen.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from analysis.patches import files
from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.journal import Journal, RunFolder
from harness.loop import Continuation, rollout
from harness.model.openai import OpenAIClient
from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.model.scripted import ScriptedClient
from harness.prompting import SHOWN_CHARACTERS, SUBMIT_WORD, OwnScaffold
from harness.record import Exit, Observation, Provenance, Stop, Task, Trajectory, clean_text
from harness.routing import Always
from harness.sandbox.docker import available as docker_available
from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, SandboxLimits
from harness.tasks.pocket import pocket_tasks
from tests.bug_cases.parts import (
    MODEL,
    SURROGATE,
    Served,
    changed,
    completion,
    fence,
    kill_sandbox_of,
    listing,
    make_run,
    names_in,
    remove_containers_of,
    serve,
    serve_shared,
    served_model,
    shared_case,
    shared_lines,
    strings,
    tool_call,
)
from tests.contracts.sandbox_contract import World, canary, eventually, make_tree
from tests.made import make_ending

SUBMIT = f"echo {SUBMIT_WORD}"
ORIGINS = ("ours", "shared")
TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement="It breaks.")
BACK_ENDS: Mapping[str, Callable[..., Any]] = {"namespace": NamespaceProvider, "local": LocalProvider}

whole_run = pytest.mark.skipif(available() is not None, reason=f"no namespace sandboxes: {available()}")
"""A model behind HTTP is refused without a sandbox, so these need namespaces."""


@contextlib.contextmanager
def world_of(kind: str, folder: Path, tree: Path, head: str) -> Iterator[World]:
    """A provider of its own with one sandbox; the test is skipped where there can be none."""
    if kind == "namespace" and (why := available()) is not None:
        pytest.skip(why)
    scratch = folder / f"scratch-{kind}"
    scratch.mkdir()

    def make(limits: SandboxLimits) -> Any:
        return BACK_ENDS[kind](limits=limits, scratch=scratch)

    image = Image(f"case-{head}", tree)
    with make(SandboxLimits()) as provider, provider.start(image) as box:
        yield World(kind, make, provider, image, head, box, scratch)


@pytest.fixture(scope="module")
def base_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """One provider a back end, shared by the tests, each of which takes a sandbox of its own."""
    folder = tmp_path_factory.mktemp("start")
    head = make_tree(folder / "tree")
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(world_of(kind, folder, folder / "tree", head)))


@pytest.fixture(params=list(BACK_ENDS))
def world(request: pytest.FixtureRequest, base_of: Callable[[str], World]) -> Iterator[World]:
    with base_of(request.param).another() as fresh:
        yield fresh


@pytest.fixture
def isolated(base_of: Callable[[str], World]) -> Iterator[World]:
    with base_of("namespace").another() as fresh:
        yield fresh


class Listening:
    """A client that keeps what it was asked."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self.asked: list[list[Message]] = []

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        self.asked.append(list(messages))
        return self._client.complete(messages, tools=tools, sampling=sampling, seed=seed)

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        return Scored(None, None, None, "not asked for here")


def roll(client: ModelClient, world: World, calls: int, action_seconds: float = 5.0) -> Continuation:
    limits = LimitsSection(calls=calls, action_seconds=action_seconds)
    agents = {"a": ModelAgent(client, OwnScaffold("tool_call"), Sampling())}
    return rollout(TASK, Always("a"), agents, world.box, limits=limits, seed=1)


def kept(done: Continuation, folder: Path) -> tuple[Trajectory, bytes]:
    """The rollout as its record reads back from disk, and its canonical export."""
    place = RunFolder(folder / "run")
    record = Trajectory(
        id="t:a",
        task_id="t",
        agent="a",
        seed=1,
        sandbox="s",
        start_digest=None,
        steps=done.steps,
        ending=make_ending(None),
        provenance=Provenance(),
    )
    with Journal(place) as journal:
        with journal.steps_of(record.id) as log:
            for step in done.steps:
                log(step)
        journal.append(record)
    return place.records().bases["t:a"], place.export().read_bytes()


# --- A 002: half a surrogate pair in a model's text

LONE = "half of a pair \ud835 and \udc00"


@pytest.fixture(params=ORIGINS)
def surrogates(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A model whose first reply holds lone surrogates."""
    if request.param == "shared":
        with serve_shared("002-lone-surrogate", "fence", tmp_path) as served:
            yield served
        return
    first = {"content": f"{LONE}\n\n```bash\nprintf 'pair %s\\n' ok\n```\n"}
    with serve([completion(first), completion(fence("printf 'done\\n'"))]) as served:
        yield served


@whole_run
@pytest.mark.parametrize("dialect", ["text", "tool_call"])
def test_002_a_lone_surrogate_stops_neither_run_nor_readers(surrogates: Served, dialect: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, served_model(surrogates), dialect=dialect, limits={"calls": 3}, arms=["control", "swap"])
    assert run.finish() == 0
    (base,) = run.records().bases.values()
    assert "half of a pair \ufffd and \ufffd" in base.steps[0].reply.text
    assert (base.steps[0].reply.format_error is None) == (dialect == "text")
    assert not any(SURROGATE.search(text) for text in strings(surrogates.requests()))
    assert any("\ufffd" in text for text in strings(surrogates.requests()))
    for command, arguments in {
        "show": [base.id, "1"],
        "status": [],
        "tables": ["--format", "json"],
        "export": [],
    }.items():
        told = run.tell(command, *arguments)
        assert told.returncode == 0, told.stderr
        assert command != "show" or "half of a pair \ufffd and \ufffd" in told.stdout.decode("utf-8")
    exported = (run.run_folder / "export" / "canonical.jsonl").read_text(encoding="utf-8")
    assert "half of a pair \ufffd and \ufffd" in exported
    assert not re.search(r"\\ud[89a-f]", exported, re.IGNORECASE)


def _call(**changes: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "echo"}'}}
    return {"tool_calls": [{**call, **changes}]}


def _arguments(text: str) -> dict[str, Any]:
    return _call(function={"name": "bash", "arguments": text})


HALF = "\ud835"
PLACES = {
    "text": completion({"content": HALF}),
    "reasoning": completion({"content": "x", "reasoning_content": HALF}),
    "command": completion(_arguments(json.dumps({"command": f"echo {HALF}"}, ensure_ascii=False))),
    "escape in arguments": completion(_arguments(json.dumps({"command": f"echo {HALF}"}))),
    "broken arguments": completion(_arguments(f'{{"command": "{HALF}')),
    "tool": completion(_call(function={"name": HALF, "arguments": "{}"})),
    "call id": completion(_call(id=HALF)),
    "model": completion(tool_call("true"), model=HALF),
    "finish reason": completion(tool_call("true"), choice={"finish_reason": HALF}),
    "fingerprint": completion(tool_call("true"), system_fingerprint=HALF),
}
"""Every place of a completion that ends in a record or in the next request."""
_DIES = PydanticSerializationError


@pytest.mark.parametrize("place", list(PLACES))
def test_002_the_same_rule_holds_wherever_text_enters(place: str, isolated: World, tmp_path: Path) -> None:
    with serve([PLACES[place], completion(tool_call("echo next"))]) as served:
        with contextlib.closing(OpenAIClient(served.url, MODEL)) as client:
            record, exported = kept(roll(client, isolated, calls=3), tmp_path)
        assert len(record.steps) == 3
        assert not re.search(rb"\\u[dD][89a-fA-F]", exported)
        assert "\ufffd" in exported.decode("utf-8") or place == "fingerprint"
        for text in strings([request["messages"] for request in served.requests()]):
            assert not SURROGATE.search(text), text


# --- A 004: progress bars, colours, carriage returns

PROGRESS = r"""
for i in $(seq 1 300); do printf '\rfetch %4d/300 \033[32m%s\033[0m' "$i" '####'; done; printf '\n'
printf '\033[2K\033[1A\033[31merror:\033[0m one real line\r\n'; printf 'test_%0300d PASSED\n' 7
printf '\033]0;title\007\033]8;;http://example.invalid\033\\link\033]8;;\033\\ end\n'; tty
printf 'last line without newline'
"""


def _progress(origin: str) -> str:
    return PROGRESS if origin == "ours" else (shared_case("004-cr-ansi") / "action.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("origin", ORIGINS)
def test_004_raw_output_is_kept_and_the_model_reads_it_uncleaned(origin: str, world: World, tmp_path: Path) -> None:
    action = _progress(origin)
    raw = subprocess.run(["bash", "-c", action], stdin=subprocess.DEVNULL, capture_output=True).stdout
    client = Listening(ScriptedClient([action, SUBMIT]))
    record, _ = kept(roll(client, world, calls=2), tmp_path)
    (seen,) = record.steps[0].observations
    told = str(client.asked[1][-1]["content"])
    assert raw.count(b"\r\n") == 1 and not raw.endswith(b"\n")
    assert seen.sha256 == hashlib.sha256(raw).hexdigest()
    assert seen.size == len(raw)
    if seen.cut_at is None:
        assert seen.output == raw
    else:
        assert raw.startswith(seen.output[: seen.cut_at]) and raw.endswith(seen.output[seen.cut_at :])
    assert told.endswith("last line without newline")
    assert len(told) < SHOWN_CHARACTERS + 500
    assert "error:\x1b[0m one real line\r\n" in told


# --- B 006: endless output, B 008: what a time limit leaves behind

ENDLESS = {
    "one line": "tr '\\0' 'z' < /dev/zero",
    "lines": "yes 'a line of ordinary length'",
    "binary on stderr": "cat /dev/urandom >&2",
}


@whole_run
def _peak_kilobytes(process: "subprocess.Popen[str]") -> int:
    """The most memory that `process` has had, sampled until it ends. What `wait4` tells would hold our own as well:
    a child's high-water mark begins with that of the process that forked it."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))])
        time.sleep(0.02)
    return peak


@pytest.mark.parametrize("origin", ORIGINS)
def test_006_endless_output_leaves_memory_flat_and_requests_small(origin: str, tmp_path: Path) -> None:
    action = ENDLESS["one line"]
    if origin == "shared":
        action = (shared_case("006-endless-line") / "action.sh").read_text(encoding="utf-8")
    with serve([completion(tool_call(action)), completion(tool_call(SUBMIT))]) as served:
        run = make_run(tmp_path, served_model(served), limits={"calls": 3, "action_seconds": 0.6})
        with run.start() as driver:
            peak = _peak_kilobytes(driver)
            told = driver.stdout.read() if driver.stdout else ""
        assert driver.returncode == 0, told
        assert 0 < peak < 300 * 1024
        assert max(len(json.dumps(request["messages"])) for request in served.requests()) < SHOWN_CHARACTERS + 5000
    (base,) = run.records().bases.values()
    (seen,) = base.steps[0].observations
    assert (seen.ended, seen.exit_code) == (Exit.TIME_LIMIT, None)
    assert len(seen.output) <= 64 * 1024 < 10_000_000 < seen.size
    (branch,) = run.records().branches.values()
    assert (branch.prefix.exit_codes_equal, branch.prefix.outputs_equal) == (1, 0)  # said, and gone on with


@pytest.mark.parametrize("kind", list(ENDLESS))
def test_006_every_endless_stream_is_bounded_and_the_next_step_is_well(kind: str, world: World) -> None:
    for _ in range(2):
        seen = world.run(ENDLESS[kind], 0.4)
        assert seen.ended is Exit.TIME_LIMIT
        assert len(seen.output) <= 64 * 1024 < seen.size
        assert world.text("echo next") == "next\n"


PARTIAL = {
    "text": (r"echo 'collected 3 items'; echo 'test_a PASSED'; printf 'test_b '; sleep 3600", "test_a PASSED\ntest_b "),
    "half a character": (r"printf 'caf\303'; sleep 3600", "caf\ufffd"),
    "NUL": (r"printf 'a\0b'; exec sleep 3600", "a\0b"),
    "stderr": (r"echo one; echo two >&2; sleep 3600", "one\ntwo\n"),
    "ignores TERM": (r"trap '' TERM INT HUP; echo kept; while :; do sleep 60; done", "kept\n"),
    "another session": (r"setsid -w bash -c 'echo kept; sleep 3600'", "kept\n"),
    "nothing": ("sleep 3600", ""),
    "much": (r"seq 1 100000; printf end; sleep 3600", "\n99999\n100000\nend"),
}


@pytest.mark.parametrize("kind", [*PARTIAL, "shared"])
def test_008_what_was_printed_before_the_limit_reaches_the_model(kind: str, world: World, tmp_path: Path) -> None:
    if kind == "shared":
        action, ends = (shared_case("008-partial-output") / "action.sh").read_text(encoding="utf-8"), "PASSED\ntest_b "
    else:
        action, ends = PARTIAL[kind]
    client = Listening(ScriptedClient([action, "echo next", SUBMIT]))
    record, _ = kept(roll(client, world, calls=3, action_seconds=0.8), tmp_path)
    (seen,) = record.steps[0].observations
    assert (seen.ended, seen.exit_code, seen.signal) == (Exit.TIME_LIMIT, None, None)
    assert client.asked[1][-1]["content"].endswith("output:\n" + ends if kind == "nothing" else ends)
    assert "time limit" in client.asked[1][-1]["content"].splitlines()[0]
    assert record.steps[1].observations[0].output == b"next\n"


# --- C 010: commands that wait for input

_IDENTITY = "git -c user.name=n -c user.email=a@b.c"
WAITING = (
    "cat",
    'read -r x; echo "got:[$x]"',
    "select x in a b; do echo $x; done",
    "python3 -",
    "python3",
    "bash",
    "bash -i",
    "python3 -c \"input('password: ')\"",
    'python3 -W ignore -c "import getpass; getpass.getpass()"',
    "read -r x < /dev/tty; echo $?",
    "exec < /dev/tty",
    f"{_IDENTITY} -c core.editor=vi commit --allow-empty",
    f"{_IDENTITY} commit --allow-empty --amend",
    f"{_IDENTITY} rebase -i --root",
    f"{_IDENTITY} -c core.pager=less log",
    "git add -p; git clean -i",
    "less /etc/passwd; more /etc/passwd; man ls",
    "su nobody -c true < /dev/null; sudo -k true",
    "ssh -o StrictHostKeyChecking=ask nobody@127.0.0.1 true",
    "rm -i mod.py; cp -i mod.py notes.txt",
    "dd bs=1 count=1",
    "wc -l; sort; xargs echo",
)
FED = {
    "printf 'a\\nb\\n' | cat": "a\nb\n",
    "cat <<'X'\nheredoc still works\nX": "heredoc still works\n",
    "cat <<< here": "here\n",
    "cat < notes.txt": "one\ntwo\n",
    'while read -r x; do echo "[$x]"; done < notes.txt': "[one]\n[two]\n",
    "{ echo 1; echo 2; } | { read -r a; read -r b; echo $b$a; }": "21\n",
    "coproc cat; echo x >&${COPROC[1]}; read -r y <&${COPROC[0]}; echo $y": "x\n",
}


def _quick(world: World, action: str) -> Observation:
    seen = world.run(action, 5)
    assert seen.ended is Exit.EXITED, (action, seen.output)
    return seen


def test_010_nothing_waits_for_input(world: World) -> None:
    for action in WAITING:
        _quick(world, action)
    assert world.text("echo next") == "next\n"


def test_010_what_an_action_feeds_itself_arrives(world: World) -> None:
    for action, output in FED.items():
        assert _quick(world, action).output.decode() == output, action


def test_010_the_shared_actions_end_at_once(world: World) -> None:
    *lines, first, middle, last = shared_lines("010-reads-stdin")
    for action in (*lines, f"{first}\n{middle}\n{last}"):
        seen = _quick(world, action)
    assert seen.output == b"heredoc still works\n"
    assert world.text(lines[1]) == "got:[]\n"
    assert world.text("printf 'a\\nb\\n' | cat") == "a\nb\n"


# --- D 012: actions of any size


def _action_of(size: int, folder: Path, origin: str) -> str:
    if origin == "shared":
        make = shared_case("012-e2big") / "make_action.py"
        return subprocess.run([sys.executable, make, str(size)], capture_output=True, text=True, check=True).stdout
    head, tail = "cat > big.txt <<'EOF_BIG'\n", "\nEOF_BIG\nwc -c big.txt"
    return head + ("0123456789abcd\u00e9\n" * (size // 17 + 1))[: size - len(head) - len(tail)] + tail


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("size", [131_070, 131_071, 131_072, 300_000, 2_000_000])
def test_012_a_long_action_runs_live_and_keeps_its_record(size: int, origin: str, world: World, tmp_path: Path) -> None:
    action = _action_of(size, tmp_path, origin)
    body = action.partition("<<'EOF_BIG'\n")[2].rpartition("EOF_BIG\n")[0]
    answers = [completion(tool_call(action)), completion(tool_call(SUBMIT))]
    with serve(answers) as served, contextlib.closing(OpenAIClient(served.url, MODEL)) as client:
        done = roll(client, world, calls=2)
    record, _ = kept(done, tmp_path)
    assert record.steps[0].reply.actions[0].command == action
    assert record.steps[0].observations[0].output == f"{len(body.encode())} big.txt\n".encode()
    assert world.box.read_file("big.txt") == body.encode()
    assert done.stop is Stop.SUBMITTED


def test_012_what_no_shell_can_take_fails_as_its_own_observation(world: World) -> None:
    long = "x" * 140_000
    cases = {
        f"true {long}": (0, b""),  # a builtin: no exec, no limit
        f"/bin/true {long}": (126, b"Argument list too long"),
        f"X={long}; export X; /bin/true": (126, b"Argument list too long"),
        f"{long}": (127, b"File name too long"),
        f"echo 'unfinished {long}": (2, b"unexpected EOF"),
        f"exit 3 # {long}": (3, b""),
        f"kill -9 $$ # {long}": (None, b""),
    }
    for action, (code, says) in cases.items():
        seen = world.run(action)
        assert seen.exit_code == code, (action[:40], seen)
        assert says in seen.output or says.replace(b"File name too long", b"not found") in seen.output, seen.output
        assert world.text("echo next") == "next\n"
    assert world.run(f"echo {long}\0").ended is Exit.NOT_RUN


# --- D 014: actions on the shell itself

SHELL: Mapping[str, tuple[int | None, str | None]] = {
    "exit 3": (3, ""),
    "false": (1, ""),
    "A=(); false": (1, ""),
    "set -e; false; echo unreachable": (1, ""),
    "kill -9 $$": (None, ""),
    "exec sleep 0": (0, ""),
    "cd /tmp && export FOO=1": (0, ""),
    "trap 'echo bye' EXIT; exit 7": (7, "bye\n"),
    "PS1='$ '; PROMPT_COMMAND='echo hi'; true": (0, ""),
    'if true; then echo "unterminated': (2, None),
    "exec 3>&1 >/dev/null; exec bash -c 'echo seen >&3'": (0, "seen\n"),
    "alias echo=false; unset PATH; hash -r; enable -n echo; true": (0, ""),
    "set -o posix; set -u; echo $NONE; true": (127, None),
    "function echo { builtin echo mine; }; export -f echo; echo": (0, "mine\n"),
    "ulimit -n 3; umask 777; true": (0, ""),
    "readonly SHELLOPTS; set -n; echo unread": (0, ""),
    "}": (2, None),
    "a='": (2, None),
    "cat <<X": (0, None),
    "suspend; logout; bg; fg": (1, None),
}
"""Action -> exit code (None: a signal) and output (None: bash's own message)."""


def test_014_an_action_on_the_shell_harms_no_later_one(world: World) -> None:
    place = world.text("pwd")
    for action, (code, output) in SHELL.items():
        seen = world.run(action, 5)
        assert seen.ended is (Exit.SIGNAL if code is None else Exit.EXITED), (action, seen)
        assert seen.exit_code == code, (action, seen)
        assert output is None or seen.output.decode() == output, (action, seen.output)
        assert b"forkroll" not in seen.output
        assert world.text('echo "next [$FOO] $(umask)"; pwd') == f"next [] 0022\n{place}", action


def test_014_the_shared_actions_each_followed_by_another(isolated: World) -> None:
    lines = shared_lines("014-shell-state")
    codes = [3, 1, 1, 1, None, 0, 0, 0, 7, 0, 0, 2]
    for line, code in zip(lines, codes, strict=True):
        with isolated.another() as other:
            seen = other.run(line, 5)
            assert seen.exit_code == code, (line, seen)
            after = other.run("echo next", 5)
            if "rm -rf" in line:
                assert b"is gone" in after.output  # reported; see the next test
            else:
                assert (after.exit_code, after.output) == (0, b"next\n"), line
            if line.startswith("pwd"):
                assert seen.output.decode() == f"{isolated.text('pwd')}FOO=\n"


GONE = ('rm -rf "$PWD"', 'mkdir -p /tmp/w && cd /tmp/w && rm -rf "$OLDPWD" && rmdir /tmp/w; pwd', 'mv "$PWD" ../aside')
"""Ways to lose the working folder."""


@pytest.mark.parametrize("action", GONE)
def test_014_a_lost_working_folder_can_be_put_back(action: str, isolated: World) -> None:
    place = isolated.text('printf %s "$PWD"')
    isolated.run(action)
    isolated.run(f"mkdir -p {place}; echo back > {place}/new.txt")
    assert isolated.text("cat new.txt") == "back\n"


@pytest.mark.parametrize("action", GONE)
def test_014_a_lost_working_folder_is_an_outcome_not_a_failure(action: str, isolated: World) -> None:
    before = set(listing(isolated.box))
    done = roll(ScriptedClient([action, "echo next", SUBMIT]), isolated, calls=2)
    assert b"is gone" in done.steps[1].observations[0].output
    assert names_in(isolated.box.working_diff(isolated.head), isolated.image.tree) == before


@whole_run
def test_live_and_replay_agree_on_what_every_kind_leaves(tmp_path: Path) -> None:
    actions = [PROGRESS, PARTIAL["text"][0], PARTIAL["half a character"][0], *WAITING[:8], *FED, *SHELL]
    run = make_run(
        tmp_path,
        {"client": "scripted", "commands": [*actions, SUBMIT]},
        forks={"rule": "absolute", "at": [len(actions) + 1]},
        limits={"calls": len(actions) + 1, "action_seconds": 1.0},
    )
    assert run.finish() == 0
    (base,), (branch,) = run.records().bases.values(), run.records().branches.values()
    assert base.ending.stop is Stop.SUBMITTED
    check = branch.prefix
    assert check.first_mismatch is None, base.steps[check.first_mismatch - 1]
    assert check.exit_codes_equal == check.outputs_equal == check.actions == len(actions)
    assert check.states_equal == check.states == len(actions) + 1


# --- E 016: the sandbox is lost

SLEEPER = "sleep 20; echo three"


@pytest.fixture(params=ORIGINS)
def sleepy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A model whose third action sleeps."""
    if request.param == "shared":
        with serve_shared("016-container-gone", "tool", tmp_path) as served:
            yield served
        return
    with serve([completion(tool_call(c)) for c in ("echo one", "echo two", SLEEPER, "echo four")]) as served:
        yield served


@whole_run
def test_016_a_lost_sandbox_is_a_failure_row_and_the_cell_is_done_again(sleepy: Served, tmp_path: Path) -> None:
    run = make_run(tmp_path, served_model(sleepy), limits={"calls": 5}, retries=1)
    with run.start() as driver:
        kill_sandbox_of(driver.pid, SLEEPER)
        told, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0, told
    found = run.records()
    (failure,), (base,) = found.failures, found.bases.values()
    assert (failure.side, failure.id, failure.provenance.attempt) == ("sandbox", base.id, 1)
    assert [step.observations[0].output for step in failure.steps] == [b"one\n", b"two\n"]
    assert (base.provenance.attempt, base.ending.stop, len(base.steps)) == (2, Stop.CALL_LIMIT, 5)
    assert len(sleepy.requests()) == 3 + 5 + 4  # not one call is spent on a sandbox that is gone
    assert not any("sandbox lost" in text for text in strings(sleepy.requests()))


@pytest.mark.skipif(docker_available() is not None, reason=f"no Docker: {docker_available()}")
def test_016_removed_containers_are_a_failure_row_and_the_cell_is_done_again(sleepy: Served, tmp_path: Path) -> None:
    run = make_run(tmp_path, served_model(sleepy), sandbox="docker", limits={"calls": 5}, retries=1)
    with run.start() as driver:
        assert eventually(lambda: len(sleepy.requests()) == 3, 60)
        assert remove_containers_of(driver.pid) >= 1  # those that wait in its pool too
        told, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0, told
    (failure,), (base,) = run.records().failures, run.records().bases.values()
    assert (failure.side, failure.id, len(failure.steps)) == ("sandbox", base.id, 2)
    assert (base.provenance.attempt, base.ending.stop, len(base.steps)) == (2, Stop.CALL_LIMIT, 5)
    assert len(sleepy.requests()) == 3 + 5 + 4
    assert not any("sandbox lost" in text for text in strings(sleepy.requests()))


@whole_run
def test_016_without_a_retry_the_cell_is_owed_and_not_scored(sleepy: Served, tmp_path: Path) -> None:
    run = make_run(tmp_path, served_model(sleepy), limits={"calls": 5})
    with run.start() as driver:
        kill_sandbox_of(driver.pid, SLEEPER)
        told, _ = driver.communicate(timeout=60)
    assert driver.returncode == 4, told
    assert (run.records().bases, run.records().branches) == ({}, {})
    status = run.tell("status")
    assert status.returncode == 4
    assert b"1 cells owed" in status.stdout and b"1 sandbox" in status.stdout
    assert b"unresolved" not in run.tell("show").stdout
    assert run.finish() == 0  # the same command goes on
    (base,) = run.records().bases.values()
    assert base.provenance.attempt == 2


@whole_run
def test_016_a_branch_whose_prefix_loses_its_sandbox_makes_no_pair(tmp_path: Path) -> None:
    slow = "sleep 1; echo slow"
    model = {"client": "scripted", "commands": ["echo one", slow, "echo x >> README.md", SUBMIT]}
    run = make_run(tmp_path, model, forks={"rule": "absolute", "at": [4]}, arms=["control", "swap"], replicates=1)
    with run.start("workers=1") as driver:
        assert eventually(lambda: len(run.records().bases) == 1, 30)
        kill_sandbox_of(driver.pid, slow)  # the base is done: this is a branch on its way to the fork
        told, _ = driver.communicate(timeout=60)
    assert driver.returncode == 4, told
    found = run.records()
    (failure,), (branch,) = found.failures, found.branches.values()
    assert failure.side == "sandbox" and failure.id != branch.id
    assert failure.steps == ()
    assert run.tell("tables").returncode == 0
    assert run.finish() == 0
    assert {branch.provenance.attempt for branch in run.records().branches.values()} == {1, 2}


# --- E 018: a flood of processes

FLOOD = r"""python3 - <<'P'
import os, time
made = 0
for _ in range(20000):
    try:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
        made += 1
    except OSError as e:
        print("stopped at", made, e.strerror); break
else:
    print("no limit, made", made)
P
"""


@pytest.mark.parametrize("origin", ORIGINS)
def test_018_a_flood_stops_at_its_sandbox_s_own_limit(origin: str, isolated: World) -> None:
    action = FLOOD if origin == "ours" else (shared_case("018-fork-bomb") / "action.sh").read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:
        with isolated.another(SandboxLimits(processes=100)) as flooded:
            canary(flooded)
            place = f"/proc/{flooded.box.pid}/ns/pid"  # type: ignore[attr-defined]
            stack.callback(os.close, os.open(place, os.O_RDONLY))  # while it is held, no other one gets its number
            namespace = os.readlink(place)
            seen = flooded.run(action, 20)
            assert seen.output.startswith(b"stopped at")
            assert 0 < int(seen.output.split()[2]) < 100
            assert len(_members(namespace)) > 50
            for _ in range(5):  # beside the flood
                assert isolated.text("for i in $(seq 20); do true & done; wait; ls | wc -l; echo well").endswith(
                    "well\n"
                )
            with isolated.another() as fresh:
                assert fresh.text("echo fresh") == "fresh\n"
            assert flooded.box.digest() == isolated.box.digest()
            assert flooded.box.working_diff(flooded.head) == b""
        assert _members(namespace) == []


def _members(namespace: str) -> list[int]:
    """PIDs in a PID namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                found.append(int(pid))
        except OSError:
            continue
    return found


# --- H 026: binary files, H 028: odd paths

BEFORE = r"""
git init -q -b main; git config user.email a@b.c; git config user.name n
printf 'def f():\n    return 1\n' > mod.py; printf '\0\1\2\3' > old.bin; printf '\0gone' > gone.bin
printf 'plain\n' > becomes.bin; printf '\0\1' > becomes.txt; : > empty.bin; printf 'a\r\nb\r\n' > crlf.txt
printf 'v1\n' > "$(printf 'caf\303\251.py')"; printf 'v1\n' > "$(printf 'latin\351.txt')"
printf 'v1\n' > 'with space.txt'; printf 'v1\n' > "$(printf 'tab\tname.txt')"
printf 'run\n' > run.sh; printf 'old\n1\n2\n3\n4\n' > old_name.py; ln -s old_name.py link; ln -s mod.py flips
mkdir -p pkg/deep; echo x > pkg/deep/a.py; echo y > to_folder
git add -A; git commit -qm base
"""
FIX = r"printf 'def f():\n    return 2\n' > mod.py; "
EDITS = {
    "binary": r"""
        printf '\0\1\2\3\4\377' > old.bin; rm gone.bin; printf '\211PNG\r\n\032\n\0\0' > plot.png
        printf '\0now' > becomes.bin; printf 'now text\n' > becomes.txt; printf '\0' > empty.bin
        mkdir -p __pycache__; printf '\0pyc' > __pycache__/mod.cpython-311.pyc; printf '\0' > stray.pyc
        head -c 1000000 /dev/urandom > big.bin; printf '\0x' > run.sh; chmod +x run.sh""",
    "binary by attribute": r"""
        printf '*.py -diff\n*.bin diff\n*.txt binary\n' > .gitattributes
        printf '\0\r\n\0\r\n' > old.bin; printf 'x\n' > new.txt""",
    "names": r"""
        printf 'v2\n' > "$(printf 'caf\303\251.py')"; printf 'v2\n' > "$(printf 'latin\351.txt')"
        printf 'v2\n' > 'with space.txt'; printf 'v2\n' > "$(printf 'tab\tname.txt')"
        printf 'x\n' > "$(printf 'nouveau_\342\230\203.py')"; printf 'x' > 'new"quote\and'; printf 'x' > $'two\nlines'
        mkdir -p 'a b' ' b/' ':(top)x'; printf 'x' > 'a b/ b'; printf 'x' > ' b/ '; printf 'x' > ':(top)x/y'
        printf 'x' > -dash; printf 'x' > '*'; printf 'x' > "$(printf '\001')"; printf 'x' > HEAD; printf x > 'end '
        printf 'x' > "$(printf 'n%.0s' $(seq 255))"; printf x > 'a => b'; printf x > '{a => b}'""",
    "kinds": r"""
        chmod +x run.sh; mv old_name.py new_name.py; ln -sfn new_name.py link; : > empty_new; rm flips; printf x > flips
        rm -rf pkg/deep; echo 'now a file' > pkg/deep; rm to_folder; mkdir to_folder; echo z > to_folder/in
        ln -s "$(printf 'nowhere \351\n')" dangling; ln -s . loop; rm crlf.txt; ln -s mod.py crlf.txt""",
    "line ends": r"printf 'a\nb\r\n' > crlf.txt; printf 'q\r\nr' > new.txt; printf '\r' > cr; printf '\n \t\n' > white",
    "git's own": r"""
        git rm -q --cached mod.py; git mv run.sh moved.sh; printf 'x\n' >> moved.sh; git add -N notyet 2>/dev/null
        git stash -q; git stash pop -q; printf 'ignored/\n' > .gitignore; rm .git/index""",
    "attributes: eol": r"printf '*.txt text eol=crlf\n' > .gitattributes; printf 'q\r\nr\r\n' > new.txt",
    "attributes: auto": r"printf '* text=auto\n' > .gitattributes; printf 'c\r\n' | tee -a crlf.txt > new.txt",
    "attributes: ident": r"printf '*.txt ident\n' > .gitattributes; printf '$Id: kept $\n' > new.txt",
    "attributes: encoding": r"""
        printf '*.txt working-tree-encoding=UTF-16LE-BOM\n' > .gitattributes; printf '\377\376q\0\n\0' > new.txt""",
}
"""What an agent may do to the tree, besides the fix."""


@contextlib.contextmanager
def put_back(world: World, patch: bytes) -> Iterator[World]:
    """A fresh sandbox with the patch applied as grading applies it."""
    with world.another() as fresh:
        fresh.box.write_file("../the.patch", patch)
        seen = fresh.run("git apply --whitespace=nowarn ../the.patch")
        assert seen.exit_code == 0, seen.output
        yield fresh


@pytest.fixture(scope="module")
def odd_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    folder = tmp_path_factory.mktemp("odd")
    tree = folder / "tree"
    tree.mkdir()
    subprocess.run(["bash", "-ec", BEFORE], cwd=tree, check=True)
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(world_of(kind, folder, tree, _head(tree))))


def _head(tree: Path) -> str:
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tree, text=True).strip()


@pytest.fixture(params=list(BACK_ENDS))
def odd(request: pytest.FixtureRequest, odd_of: Callable[[str], World]) -> Iterator[World]:
    with odd_of(request.param).another() as fresh:
        yield fresh


@pytest.mark.parametrize("edit", list(EDITS))
def test_026_028_a_diff_put_back_gives_the_same_tree(edit: str, odd: World) -> None:
    before = listing(odd.box)
    seen = odd.run(FIX + EDITS[edit])
    assert b"rror" not in seen.output, seen.output
    after = {path: entry for path, entry in listing(odd.box).items() if not path.endswith(b".pyc")}
    patch = odd.box.working_diff(odd.head)
    assert b"mod.py" in changed(before, after)
    assert names_in(patch, odd.image.tree) == changed(before, after)
    with put_back(odd, patch) as fresh:
        assert changed(listing(fresh.box), after) == set()


@pytest.mark.parametrize("kind", list(BACK_ENDS))
def test_026_attributes_of_the_start_commit_hold(kind: str, tmp_path: Path) -> None:
    """A file that was checked out with other line ends than it was committed with is not changed."""
    tree = tmp_path / "tree"
    tree.mkdir()
    script = r"""
    git init -q -b main; git config user.email a@b.c; git config user.name n
    printf '*.bat text eol=crlf\n' > .gitattributes; printf 'a\nb\n' > run.bat; printf 'x\n' > mod.py
    git add -A; git commit -qm base; rm run.bat; git checkout -q -- run.bat
    """
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)
    assert (tree / "run.bat").read_bytes() == b"a\r\nb\r\n"
    with world_of(kind, tmp_path, tree, _head(tree)) as world:
        assert world.box.working_diff(world.head) == b""
        world.run(r"printf 'c\r\n' >> run.bat; printf 'y\n' >> mod.py; printf 'n\r\n' > new.bat")
        after = listing(world.box)
        with put_back(world, world.box.working_diff(world.head)) as fresh:
            assert changed(listing(fresh.box), after) == set()


def test_028_the_list_of_changed_files_has_true_names(odd: World) -> None:
    before = listing(odd.box)
    odd.run(FIX + EDITS["names"])
    told = files(odd.box.working_diff(odd.head).decode("utf-8", "surrogateescape"))
    assert {os.fsencode(name) for name in told} == changed(before, listing(odd.box))


@pytest.mark.parametrize("kind", list(BACK_ENDS))
def test_026_the_shared_repository_comes_through(kind: str, tmp_path: Path) -> None:
    with _shared_world(kind, "026-binary", tmp_path) as world:
        after = listing(world.box)
        patch = world.box.working_diff(world.head)
        assert names_in(patch, world.image.tree) == {b"mod.py", b"old.bin", b"gone.bin", b"plot.png"}
        with put_back(world, patch) as fresh:
            assert changed(listing(fresh.box), after) == set()
            assert fresh.text("cat mod.py").endswith("return 2\n")


@contextlib.contextmanager
def _shared_world(kind: str, name: str, folder: Path) -> Iterator[World]:
    """A sandbox that starts at a shared repository's commit, in which the rest of its script has been run."""
    script = (shared_case(name) / "make_repo.sh").read_text(encoding="utf-8")
    make, middle, change = script.partition("git commit -qm base\n")
    tree = folder / "repo" / "tree"
    subprocess.run(["bash", "-c", make + middle, "make_repo.sh", str(tree)], check=True, capture_output=True)
    with world_of(kind, folder, tree, _head(tree)) as world:
        seen = world.run(f"set -e; {change}")
        assert seen.exit_code == 0, seen.output
        yield world


@pytest.mark.parametrize("kind", list(BACK_ENDS))
def test_028_the_shared_repository_comes_through_and_its_submodule_is_named(kind: str, tmp_path: Path) -> None:
    with _shared_world(kind, "028-odd-paths", tmp_path) as world:
        after = listing(world.box)
        patch = world.box.working_diff(world.head)
        expected = {
            *("caf\u00e9.py".encode(), b"latin\xe9.txt", b"with space.txt", b"tab\tname.txt", b"run.sh", b"link"),
            *(b"old_name.py", b"new_name.py", b"empty_new", "nouveau_\u2603.py".encode(), b"sub"),
        }
        assert names_in(patch, world.image.tree) == expected
        with put_back(world, patch) as fresh:
            assert changed(listing(fresh.box), after) == set()


NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: (
        not set(name) & {0, ord("/")}
        and name not in (b".", b"..")
        and not name.lower().startswith(b".git")
        and not name.endswith(b".pyc")
    )
)
ENTRIES = st.one_of(
    st.tuples(st.sampled_from("-x"), st.binary(max_size=40)),
    st.tuples(st.just("l"), st.binary(min_size=1, max_size=20).filter(lambda target: 0 not in target)),
)
_WRITE = r"""python3 -S - <<'P'
import os
for folder, kind, name, held in {entries!r}:
    place = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    if kind == 'l':
        os.symlink(held, place)
    else:
        with open(place, 'wb') as file:
            file.write(held)
        os.chmod(place, 0o755 if kind == 'x' else 0o644)
P"""


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, ENTRIES, min_size=1, max_size=8), st.binary(max_size=30))
def test_026_028_any_names_and_bytes_come_back(
    isolated: World, entries: Mapping[bytes, tuple[str, bytes]], edit: bytes
) -> None:
    made = [(b"./in", kind, name, held) for name, (kind, held) in entries.items()]
    with isolated.another() as world:
        before = listing(world.box)
        assert world.run(_WRITE.format(entries=made)).exit_code == 0
        world.box.write_file("mod.py", edit)
        after = listing(world.box)
        patch = world.box.working_diff(world.head)
        assert names_in(patch, world.image.tree) == changed(before, after)
        with put_back(world, patch) as fresh:
            assert changed(listing(fresh.box), after) == set()


@whole_run
def test_026_a_fix_beside_generated_binaries_is_graded_as_a_fix(tmp_path: Path) -> None:
    task = next(iter(pocket_tasks().values()))
    fix = "\n".join(
        f"cat > {path} <<'END_OF_FILE'\n{text.removesuffix(chr(10))}\nEND_OF_FILE"
        for path, text in task.changed("right").items()
    )
    litter = EDITS["binary"].replace("becomes", "other").replace("rm gone.bin", "true")
    run = make_run(tmp_path, {"client": "scripted", "commands": [fix, litter, SUBMIT]})
    assert run.finish() == 0
    (base,) = run.records().bases.values()
    assert base.ending.outcome.status == "resolved", base.ending.outcome
    assert b"plot.png" in base.ending.patch and b".pyc" not in base.ending.patch
    assert clean_text(base.id) == base.id
