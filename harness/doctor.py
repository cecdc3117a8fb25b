"""Says what this machine has and lacks, and the command that mends each miss."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of the checklist."""

    name: str
    state: Literal["ok", "missing", "optional"]
    """optional: absent, and only some studies need it."""
    detail: str
    remedy: str = ""
    """What to run or set; empty when nothing is to be done."""

    def line(self) -> str:
        """The finding for a terminal."""
        mark = {"ok": "[ok]", "missing": "[missing]", "optional": "[absent]"}[self.state]
        return f"{mark:<10} {self.name}: {self.detail}" + (f"\n{'':<11}mend: {self.remedy}" if self.remedy else "")


def examine() -> Iterator[Finding]:
    """All findings, cheapest first."""
    yield _python()
    yield _program("git", "missing", "start trees, diffs and grading need it", "sudo apt-get install git")
    yield _program("bash", "missing", "every action is a bash command", "sudo apt-get install bash")
    yield _namespaces()
    yield from _gaps()
    yield _docker()
    yield _gpu()
    yield _model_server()
    yield _templates()
    yield _swebench()


def _swebench() -> Finding:
    from harness.errors import ForkrollError
    from harness.tasks.official import Official

    official = Official()
    try:
        return Finding("official grader", "ok", f"swebench {official.package.version}")
    except ForkrollError as error:
        remedy = "scripts/setup-swebench 4; export FORKROLL_SWEBENCH_PYTHON=$PWD/.venv-swebench4/bin/python"
        return Finding("official grader", "optional", f"{error} (tasks of `swebench` alone need it)", remedy)
    finally:
        official.close()


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _program(name: str, state: Literal["missing", "optional"], why: str, remedy: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, state, why, remedy)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Finding(name, "ok", (done.stdout.splitlines() or [path])[0])


def _namespaces() -> Finding:
    from harness.sandbox.namespace import available

    why_not = available()
    if why_not is None:
        return Finding("namespace sandbox", "ok", "user, mount, pid, network and ipc namespaces work")
    return Finding(
        "namespace sandbox", "missing", "not available; only simulated and scripted models run, in `local`", why_not
    )


def _docker() -> Finding:
    from harness.sandbox.docker import available

    why_not = available()
    if why_not is None:
        return Finding("docker sandbox", "ok", "an engine on this machine answers and has the base image")
    return Finding("docker sandbox", "optional", "only studies with `sandbox: docker` need it", why_not)


def _gaps() -> Iterator[Finding]:
    from harness.sandbox.namespace import namespace_gaps

    for gap in namespace_gaps():
        yield Finding("namespace limit", "optional", gap)


def _gpu() -> Finding:
    path = shutil.which("nvidia-smi")
    asked = [path or "", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False) if path else None
    if done is None or done.returncode:
        return Finding("GPU", "optional", "only cards that name one need it; servers elsewhere are reached by address")
    return Finding("GPU", "ok", "; ".join(done.stdout.split("\n")).strip("; "))


def _model_server() -> Finding:
    from harness.serving.command import PYTHON_VARIABLE, vllm_python

    python = vllm_python(None)
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if subprocess.run([python, "-I", "-c", look], check=False).returncode:
        remedy = f"install vLLM in an environment of its own and name its Python in {PYTHON_VARIABLE}"
        return Finding("vLLM", "optional", "only models with a card (`client: served`) need it", remedy)
    return Finding("vLLM", "ok", f"served with {python}")


def _templates() -> Finding:
    from harness.errors import ConfigError
    from harness.scaffold.mini import MiniScaffold

    try:
        package = MiniScaffold.named(None, "tool_call").package
    except ConfigError as error:
        return Finding("mini-swe-agent", "optional", "only `scaffold: mini-swe-agent` needs its templates", str(error))
    return Finding("mini-swe-agent", "ok", f"templates of {package}")
