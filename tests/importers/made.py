"""Logs in mini-swe-agent's formats of rollouts that really ran, with settings of our own words, and a model server that
keeps what it is asked."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.config import validate
from harness.record import Task
from harness.sandbox.live import LiveProvider
from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Sandbox, SandboxLimits
from harness.tasks.pocket import Pocket

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"
COMMANDS = (
    "ls",
    "head -n 2 README.md",
    "echo to-stderr >&2; exit 3",
    r"printf 'one\r\ntwo\n\377\n'",
    "echo more >> README.md; git diff --stat",
    "seq 5000",
    SUBMIT,
)
SHAPE = (
    "<returncode>{{output.returncode}}</returncode>\n"
    "{% if output.output | length < 10000 -%}\n<output>\n{{output.output -}}\n</output>\n"
    "{%- else -%}\n<warning>long</warning>\n"
    "<output_head>\n{{output.output[:5000]}}\n</output_head>\n"
    "<elided_chars>\n{{output.output | length - 10000}} characters elided\n</elided_chars>\n"
    "<output_tail>\n{{output.output[-5000:]}}\n</output_tail>\n{%- endif -%}"
)
SYSTEM, INSTANCE = "You work in a shell.", "Please see to this:\n{{task}}"
AGENT = {"system_template": SYSTEM, "instance_template": INSTANCE, "step_limit": 0, "cost_limit": 3.0}
CONFIG: dict[str, dict[str, Any]] = {
    "mini-swe-agent-1": {
        "agent": {
            **AGENT,
            "timeout_template": "Too slow: {{action['action']}}\nuntil then:\n{{output}}\n:over",
            "format_error_template": "One block please, not {{actions|length}}.",
            "action_observation_template": SHAPE,
        },
        "model": {"model_name": "first/model"},
        "environment": {"cwd": "/testbed", "timeout": 60, "env": {"PAGER": "cat"}},
    },
    "mini-swe-agent-1.1": {
        "agent": AGENT,
        "model": {
            "model_name": "second/model",
            "observation_template": SHAPE,
            "format_error_template": "Not a call: {{error}}",
        },
        "model_type": "some.package.ToolCallModel",
        "environment": {"cwd": "/testbed", "timeout": 60, "env": {"PAGER": "cat"}, "interpreter": ["bash", "-c"]},
    },
}


def seen_by(output: bytes) -> str:
    """As a harness in Python's text mode reads it."""
    return output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def rendered(output: str, code: int) -> str:
    head = f"<returncode>{code}</returncode>\n"
    if len(output) < 10000:
        return f"{head}<output>\n{output}</output>"
    return (
        f"{head}<warning>long</warning>\n<output_head>\n{output[:5000]}\n</output_head>\n"
        f"<elided_chars>\n{len(output) - 10000} characters elided\n</elided_chars>\n"
        f"<output_tail>\n{output[-5000:]}\n</output_tail>"
    )


def response(text: str, command: str, number: int, *, tools: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tools:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        message |= {"tool_calls": [{"index": 0, "function": function, "id": f"c{number}", "type": "function"}]}
    usage = {"prompt_tokens": 100 + number, "completion_tokens": 7, "total_tokens": 107 + number}
    choice = {"finish_reason": "tool_calls" if tools else "stop", "index": 0, "message": message}
    return {"id": f"r{number}", "created": 1_775_000_000 + number, "model": "m", "choices": [choice], "usage": usage}


class Log:
    """A trajectory file that grows as commands really run."""

    def __init__(self, form: str, task: Task, sandbox: Sandbox) -> None:
        self._sandbox, self.form = sandbox, form
        self._old = form == "mini-swe-agent-1"
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": INSTANCE.replace("{{task}}", task.problem_statement)},
        ]
        self.calls, self._task, self._submission = 0, task, ""

    def step(self, command: str) -> None:
        """One call of the model, and its action."""
        self.calls += 1
        seen = self._sandbox.act(command, timeout_s=20)
        output, code = seen_by(seen.output), seen.exit_code or 0
        if command == SUBMIT:
            self._submission = output.partition("\n")[2]
        (self._step_1 if self._old else self._step_1_1)(command, output, code)

    def _step_1(self, command: str, output: str, code: int) -> None:
        text = f"Next.\n\n```bash\n{command}\n```"
        answer = self._submission if command == SUBMIT else rendered(output, code)
        said = response(text, command, self.calls, tools=False)
        self.messages.append({"role": "assistant", "content": text, "extra": {"response": said}})
        self.messages.append({"role": "user", "content": answer})

    def _step_1_1(self, command: str, output: str, code: int) -> None:
        said = response("Next.", command, self.calls, tools=True)
        message = said["choices"][0]["message"]
        extra: dict[str, Any] = {"actions": [{"command": command, "tool_call_id": f"c{self.calls}"}], "response": said}
        extra |= {"cost": 0.001, "timestamp": 1_775_000_000.25 + self.calls}
        self.messages.append({**message, "function_call": None, "extra": extra})
        if command == SUBMIT:
            exit_extra = {"exit_status": "Submitted", "submission": self._submission}
            self.messages.append({"role": "exit", "content": self._submission, "extra": exit_extra})
            return
        seen = {"raw_output": output, "returncode": code, "timestamp": 1_775_000_000.75 + self.calls}
        answer = {"content": rendered(output, code), "extra": {**seen, "exception_info": ""}}
        self.messages.append({**answer, "tool_call_id": f"c{self.calls}", "role": "tool"})

    def format_error(self) -> None:
        """A reply that cannot be read: format 1 keeps it, format 1.1 does not."""
        self.calls += 1
        if self._old:
            said = response("Hm.", "", self.calls, tools=False)
            self.messages.append({"role": "assistant", "content": "Hm.", "extra": {"response": said}})
            self.messages.append({"role": "user", "content": "One block please, not 0."})
            return
        self.messages.append(
            {"role": "user", "content": "Not a call: none", "extra": {"interrupt_type": "FormatError"}}
        )

    def document(self) -> dict[str, Any]:
        info = {
            "model_stats": {"instance_cost": 0.01, "api_calls": self.calls},
            "config": CONFIG[self.form],
            "mini_version": "0",
            "exit_status": "Submitted",
            "submission": self._submission,
        }
        return {
            "info": info,
            "messages": self.messages,
            "trajectory_format": self.form,
            "instance_id": self._task.instance_id,
        }


@contextmanager
def sandboxes(scratch: Path) -> Iterator[LiveProvider]:
    """Namespaces where the kernel has them, else `local`."""
    provider: LiveProvider
    if available() is None:
        provider = NamespaceProvider(limits=SandboxLimits(), scratch=scratch)
    else:
        provider = LocalProvider(limits=SandboxLimits(), scratch=scratch)
    try:
        yield provider
    finally:
        provider.close()


def run_log(form: str, pocket: Pocket, scratch: Path, commands: Sequence[str] = COMMANDS) -> dict[str, Any]:
    """The log of a rollout on the first bundled task: `commands`, with a format error after the second."""
    task = pocket.tasks()[0]
    with sandboxes(scratch) as provider, provider.start(pocket.image(task)) as sandbox:
        log = Log(form, task, sandbox)
        for number, command in enumerate(commands, 1):
            log.step(command)
            if number == 2:
                log.format_error()
    return log.document()


@dataclass
class Asked:
    """A model server and what it was asked."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[Asked]:
    """Runs `pwd`, then submits, in whichever dialect it is asked."""
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": [{"id": "chat"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/chat/completions"):
                asked.requests.append(request)
            last = next(m for m in reversed(request["messages"]) if m["role"] == "assistant")
            command = SUBMIT if "pwd" in json.dumps(last) else "pwd"
            tools = bool(request.get("tools"))
            text = "Then." if tools else f"Then.\n\n```bash\n{command}\n```"
            self._send(response(text, command, 900 + len(asked.requests), tools=tools))

        def _send(self, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    asked.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def study_text(url: str, **more: Any) -> str:
    """A study that forks imported bases and swaps to the model at `url`."""
    content = {
        "name": "taken",
        "seed": 1,
        "tasks": {"set": "pocket", "count": 2},
        "models": {"logged": {"client": "imported"}, "other": {"client": "openai", "base_url": url, "model": "chat"}},
        "directions": {"over": {"base": "logged", "swap": "other"}},
        "forks": {"rule": "absolute", "at": [3, 8]},
        "arms": ["swap"],
        "replicates": 1,
        "limits": {"calls": 30, "action_seconds": 20},
        "workers": 1,
        **more,
    }
    validate(content, "study")
    return json.dumps(content)
