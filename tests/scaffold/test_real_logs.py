"""Real trajectories of mini-swe-agent, of both generations, read again by the scaffold of the settings that they hold:
the same actions, format errors, observations and submissions."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.model.protocol import Completion
from harness.record import Action, Exit, Observation, Reply, Task, ToolCall, Usage
from harness.scaffold.mini import MiniScaffold
from tests.scaffold.scripts import command_alone

FIRST = "mini-swe-agent-1"


@cache
def scaffold_of(config: str, first: bool) -> MiniScaffold:
    return MiniScaffold.from_config(json.loads(config), "text" if first else "tool_call", source="log")


def logs(folder: Path, name: str) -> Iterator[tuple[MiniScaffold, dict[str, Any]]]:
    with gzip.open(folder / "mini_swe_agent" / name, "rt", encoding="utf-8") as lines:
        for line in lines:
            log = json.loads(line)["traj"]
            config = log["info"]["config"]
            config["environment"].pop("image")
            yield scaffold_of(json.dumps(config, sort_keys=True), log["trajectory_format"] == FIRST), log


def read(scaffold: MiniScaffold, message: dict[str, Any]) -> Reply:
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    )
    text = message["content"] or ""
    return scaffold.parse(Completion(text=text, tool_calls=calls, finish_reason="stop", usage=Usage(), model=""))


def observation(extra: dict[str, Any]) -> Observation:
    """Newlines were made one kind of and what is not UTF-8 was replaced when it was logged."""
    output, code = extra["raw_output"].encode(), extra["returncode"]
    timed_out = code == -1 and extra.get("exception_type") == "TimeoutExpired"
    return Observation(
        output=output,
        exit_code=None if timed_out else code,
        ended=Exit.TIME_LIMIT if timed_out else Exit.EXITED,
        size=len(output),
        sha256="",
    )


@pytest.mark.parametrize("name", ["deepseek-chat_lite_test100", "deepseek_lite_dev23_repeats"])
def test_tool_calls_and_observations_read_as_they_were_logged(shared_data: Path, name: str) -> None:
    count: Counter[str] = Counter()
    for scaffold, log in logs(shared_data, f"{name}.jsonl.gz"):
        actions: dict[str | None, Action] = {}
        for message in log["messages"]:
            if message["role"] == "assistant":
                reply = read(scaffold, message)
                taken = [{"command": a.command, "tool_call_id": a.call_id} for a in reply.actions]
                assert taken == message["extra"]["actions"]
                actions |= {action.call_id: action for action in reply.actions}
                count["replies"] += 1
            elif message["role"] == "tool":
                seen, action = observation(message["extra"]), actions[message["tool_call_id"]]
                shown = scaffold.observe(seen, action, timeout_s=60).shown
                count["observations"] += 1
                count["timeouts"] += seen.ended is Exit.TIME_LIMIT
                assert shown == command_alone(message["content"])
                assert scaffold.submission_of(seen) is None
    assert count["replies"] > 5000
    assert count["observations"] > 5000
    assert count["timeouts"] > 0


def test_generation_one_reads_blocks_and_words_format_errors_as_logged(shared_data: Path) -> None:
    replies, errors = 0, 0
    for scaffold, log in logs(shared_data, "gemini-3-pro_verified500.jsonl.gz"):
        messages = log["messages"]
        for message, answer in pairwise(messages):
            if message["role"] != "assistant":
                continue
            reply = read(scaffold, message)
            replies += 1
            if reply.format_error is not None:
                errors += 1
                assert answer["content"] == reply.format_error
            else:
                assert answer["content"].startswith(("<returncode>", "The last command")) or answer is messages[-1]
    assert (replies, errors) == (20163, 684)


@pytest.mark.parametrize(
    ("logged", "instances", "count"),
    [
        ("gemini-3-pro_verified500", "verified_instances", 500),
        ("deepseek-chat_lite_test100", "lite_instances", 99),
        ("deepseek_lite_dev23_repeats", "lite_instances", 107),
    ],
)
def test_the_opening_reads_as_it_was_logged(shared_data: Path, logged: str, instances: str, count: int) -> None:
    with gzip.open(shared_data / "swebench" / f"{instances}.jsonl.gz", "rt", encoding="utf-8") as lines:
        statements = {one["instance_id"]: one["problem_statement"] for one in map(json.loads, lines)}
    equal = 0
    for scaffold, log in logs(shared_data, f"{logged}.jsonl.gz"):
        statement = statements[log["instance_id"]]
        task = Task(instance_id="-", repo="-", base_commit="-", problem_statement=statement)
        opening = [{"role": message["role"], "content": message["content"]} for message in log["messages"][:2]]
        equal += scaffold.opening(task) == opening
    assert equal == count
