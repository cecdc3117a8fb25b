"""What goes over the wire: mini-swe-agent's own LitellmModel and our OpenAIClient, asked by the same replies.

A server on the loopback plays scripted completions and keeps every request. Commands are harmless (`echo`, `seq`,
`exit`) and run on this machine, in both harnesses' unisolated shells. Compared are the messages and tools of every
request, a null taken as absent: litellm leaves out a null `content`, we send it, and OpenAI's form has both mean the
same. The other parameters are printed side by side.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.loop import rollout
from harness.model.openai import OpenAIClient
from harness.model.protocol import Sampling
from harness.record import Task
from harness.routing import Always
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import Image, SandboxLimits
from harness.scaffold.mini import SUBMIT_WORD, MiniScaffold
from harness.scaffold.mini_config import find
from harness.scaffold.protocol import Dialect

TASK = Task(instance_id="t", repo="r", base_commit="HEAD", problem_statement="It breaks: é.\n")
SUBMIT = f"echo {SUBMIT_WORD}"
Reply = tuple[dict[str, Any], str]
"""The assistant message and the finish reason."""


def call(*commands: Any, content: Any = None, **more: Any) -> Reply:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": c})}}
        for n, c in enumerate(commands)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}, "tool_calls"


def broken(arguments: str, name: str = "bash") -> Reply:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "call_b", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"


def prose(text: str | None, finish: str = "stop", **more: Any) -> Reply:
    return {"role": "assistant", "content": text, **more}, finish


def block(command: str, **more: Any) -> Reply:
    return prose(f"A thought.\n\n```mswea_bash_command\n{command}\n```", **more)


SCRIPTS: dict[str, tuple[Dialect, Sequence[Reply]]] = {
    "plain work": ("tool_call", [call("echo 1", content="A thought."), call("exit 3"), call(SUBMIT)]),
    "several calls": ("tool_call", [call("echo 1", "seq 1 4000", content="Two."), call(SUBMIT)]),
    "empty text beside calls": ("tool_call", [call("echo 1", content=""), call(SUBMIT)]),
    "reasoning": ("tool_call", [call("echo 1", reasoning_content="Because."), call(SUBMIT)]),
    "no call": ("tool_call", [prose("I think."), call("echo 1"), prose(None), call(SUBMIT)]),
    "cut before the call": (
        "tool_call", [prose("I th", "length"), call("echo 1"), prose("I th", "tool_calls"), call(SUBMIT)]
    ),
    "broken calls": (
        "tool_call", [broken("{"), call("echo 1"), broken("[]"), call("echo 2"), broken("{}", "python"), call(SUBMIT)]
    ),
    "text": ("text", [block("echo 1"), prose("Prose."), block("exit 3"), prose("", "length"), block(SUBMIT)]),
    "reasoning in text": ("text", [block("echo 1", reasoning_content="Because."), block(SUBMIT)]),
}  # fmt: skip
KNOWN = {
    "empty text beside calls": "a server's empty text beside calls is sent back as null, as most servers send it",
}
"""Script -> a deliberate difference."""


@contextmanager
def server(replies: Sequence[Reply]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Plays `replies`, the last for ever; its address and the bodies of the requests."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message, finish = replies[min(len(bodies), len(replies)) - 1]
            choice = {"index": 0, "message": message, "finish_reason": finish}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            sent = json.dumps({**answer, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}/v1", bodies
    finally:
        serving.shutdown()
        serving.server_close()


def theirs(dialect: Dialect, replies: Sequence[Reply], folder: Path) -> list[dict[str, Any]]:
    """The requests of mini-swe-agent's own agent, model and environment."""
    import litellm
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    litellm.suppress_debug_info = True
    config = find(None, dialect).config
    with server(replies) as (url, bodies):
        kind = LitellmModel if dialect == "tool_call" else LitellmTextbasedModel
        kwargs = {**config["model"]["model_kwargs"], "api_base": url, "api_key": "none"}
        named = {"model_name": "hosted_vllm/m", "model_kwargs": kwargs, "cost_tracking": "ignore_errors"}
        environment = LocalEnvironment(cwd=str(folder), env=config["environment"]["env"])
        DefaultAgent(kind(**{**config["model"], **named}), environment, **config["agent"]).run(TASK.problem_statement)
    return bodies


def ours(dialect: Dialect, replies: Sequence[Reply], tree: Path, scratch: Path) -> list[dict[str, Any]]:
    """The requests of our loop."""
    provider = LocalProvider(limits=SandboxLimits(), scratch=scratch)
    try:
        with server(replies) as (url, bodies), provider.start(Image("wire", tree)) as sandbox:
            client = OpenAIClient(url, "m")
            agents = {"a": ModelAgent(client, MiniScaffold.named(None, dialect), Sampling())}
            rollout(TASK, Always("a"), agents, sandbox, limits=LimitsSection(), seed=1)
            client.close()
    finally:
        provider.close()
    return bodies


def without_nulls(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return messages and [{key: held for key, held in one.items() if held is not None} for one in messages]


def compare(name: str, folder: Path) -> bool:
    dialect, replies = SCRIPTS[name]
    left, right = theirs(dialect, replies, folder), ours(dialect, replies, folder, folder.with_name(f"scratch {name}"))
    sent = [[{key: without_nulls(body.get(key)) for key in ("messages", "tools")} for body in s] for s in (left, right)]
    same = sent[0] == sent[1]
    verdict = "equal" if same else "DIFFERENT"
    print(f"{name:26} {dialect:10} {len(left)} and {len(right)} requests  messages and tools {verdict}")
    if name in KNOWN:
        print(f"{'':26} known: {KNOWN[name]}{' - AND NO LONGER SO' if same else ''}")
    elif not same:
        print_first_difference(*([body["messages"] for body in side] for side in sent))
    return same != (name in KNOWN)


def print_first_difference(left: list[Any], right: list[Any]) -> None:
    for number, (one, other) in enumerate(zip(left, right, strict=False), 1):
        for mine, yours in zip(one, other, strict=False):
            if mine != yours:
                print(f"  call {number}:\n    theirs {json.dumps(mine)[:1500]}\n    ours   {json.dumps(yours)[:1500]}")
                return


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        tree.mkdir()
        for command in ("init -q", "-c user.name=t -c user.email=t@example.invalid commit -q --allow-empty -m start"):
            subprocess.run(["git", "-C", str(tree), *command.split()], check=True)
        good = [compare(name, tree) for name in SCRIPTS]
        for side, bodies in (
            ("theirs", theirs("tool_call", SCRIPTS["plain work"][1], tree)),
            ("ours", ours("tool_call", SCRIPTS["plain work"][1], tree, Path(work) / "scratch")),
        ):
            rest = {key: held for key, held in bodies[0].items() if key not in ("messages", "tools")}
            print(f"other parameters, {side}: {json.dumps(rest, sort_keys=True)}")
    print(f"{sum(good)} of {len(good)} scripts as expected")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
