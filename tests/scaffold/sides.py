"""What both sides of a parity test share: what a rollout comes to, our side of it, the way into our sandboxes, and how
outcomes are compared. Nothing of mini-SWE-agent is imported here: its two generations cannot be in one interpreter."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.exporters.statuses import status_of
from harness.loop import rollout
from harness.model.protocol import Completion, Message, Sampling
from harness.record import Task
from harness.routing import Always
from harness.sandbox.live import LiveSandbox
from harness.sandbox.protocol import Sandbox
from harness.scaffold.mini import SUBMIT_WORD, MiniScaffold
from tests.scaffold.scripts import Turn

TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement='It "breaks" & <fails>: {{ x }}\n\né\n')
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What a rollout comes to, in mini-SWE-agent's terms."""

    asked: list[Messages]
    """The messages that the model was sent, call by call."""
    status: str
    submission: str
    calls: int


class Replies:
    """The completions one after the other, the last for ever; keeps what it was asked."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self.asked: list[list[Message]] = []

    def complete(self, messages: Sequence[Message], *, tools: object, sampling: Sampling, seed: int) -> Completion:
        self.asked.append([dict(message) for message in messages])
        turn = self._turns[min(len(self.asked), len(self._turns)) - 1]
        if isinstance(turn, Exception):
            raise turn
        return turn

    def score(self, messages: Sequence[Message], continuation: str, action: str, *, tools: object) -> float | None:
        return None


def ours(scaffold: MiniScaffold, sandbox: Sandbox, turns: Sequence[Turn], limits: LimitsSection) -> Outcome:
    """One rollout of our loop."""
    client = Replies(turns)
    agent = ModelAgent(client, scaffold, Sampling())
    done = rollout(TASK, Always("a"), {"a": agent}, sandbox, limits=limits, seed=1)
    asked = [[dict(message) for message in messages] for messages in client.asked]
    return Outcome(asked, status_of(done.stop), done.submission or "", done.spent.calls)


def make_tree(folder: Path) -> Path:
    """A repository with one file and one commit."""
    folder.mkdir()
    (folder / "notes.txt").write_text("notes\n")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@example.invalid commit -qm start"):
        subprocess.run(["git", "-C", str(folder), *command.split()], check=True)
    return folder


_DOCKER = r"""#!/bin/bash
# `docker` as far as DockerEnvironment uses it: `exec` goes through the door that lies beside this file.
[ "$1" = run ] && { echo sandbox; exit; }
[ "$1" = exec ] || exit 0
shift
variables=()
while :; do
  case $1 in
    -w) shift 2 ;;
    -e) variables+=("$2"); shift 2 ;;
    *) break ;;
  esac
done
shift
mapfile -d '' -t door <"$0.door"
exec 3>&2 2>/dev/null # bash says there what killed a process
"${door[@]}" "${variables[@]}" "$@" bash </dev/null 2>&3 3>&-
exit $?
"""


def door_into(sandbox: LiveSandbox, folder: Path) -> str:
    """A program `docker` whose `exec` runs what it is given in `sandbox`, where `docker exec` would: in a process of
    its own, with the environment of actions, nothing to read, and death by a signal told as 128 + its number."""
    program = folder / "docker"
    program.write_text(_DOCKER)
    program.chmod(0o755)
    Path(f"{program}.door").write_text("".join(f"{word}\0" for word in sandbox.shell_argv()))
    return str(program)


@dataclass(frozen=True)
class Difference:
    """What differs in one script, and how mini-SWE-agent's outcome would read if it did not."""

    why: str
    rewrite: Callable[[Outcome], Outcome]
    """Makes ours of mini-SWE-agent's."""


def in_messages(change: Callable[[str], str]) -> Callable[[Outcome], Outcome]:
    """Changes the texts that are read as observations."""

    def one(message: dict[str, Any]) -> dict[str, Any]:
        observed = message["role"] in ("tool", "user")
        return {**message, "content": change(message["content"])} if observed else message

    return lambda outcome: replace(outcome, asked=[[one(message) for message in asked] for asked in outcome.asked])


def not_kept(printed: str) -> str:
    return f"forkroll: not kept: a submission of {len(printed)} bytes; raise sandbox.output_bytes\n"


MORE_THAN_IS_KEPT = Difference(
    "mini-SWE-agent holds all output in memory; here a submission longer than sandbox.output_bytes is not kept",
    lambda outcome: replace(outcome, submission=not_kept(f"{SUBMIT_WORD}\n{outcome.submission}")),
)


def differing(theirs: Outcome, ours: Outcome) -> list[str]:
    """Names of what is not equal, the first unequal message beside its place."""
    found = [name for name in ("status", "submission", "calls") if getattr(theirs, name) != getattr(ours, name)]
    if len(theirs.asked) != len(ours.asked):
        found.append(f"requests: {len(theirs.asked)} and {len(ours.asked)}")
    for number, (left, right) in enumerate(zip(theirs.asked, ours.asked, strict=False), 1):
        if left != right:
            first = next(
                (pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), (len(left), len(right))
            )
            return [*found, f"messages of call {number}: {first[0]} and {first[1]}"]
    return found


def hold(theirs: Callable[[], Outcome], ours: Callable[[], Outcome], known: Difference | None) -> None:
    """Run both at once. Equal, or different in the known way and in no other."""
    with ThreadPoolExecutor(max_workers=1) as other:
        coming = other.submit(theirs)
        right, left = ours(), coming.result()
    compare(left, right, known)


def compare(theirs: Outcome, ours: Outcome, known: Difference | None) -> None:
    if known is not None:
        assert differing(theirs, ours) != [], f"no difference is left: {known.why}"
        theirs = known.rewrite(theirs)
    assert differing(theirs, ours) == []
