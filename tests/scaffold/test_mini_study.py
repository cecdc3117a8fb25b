"""A study in scaffold `mini-swe-agent`: environment of actions, manifest, what is written when it cannot be run."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from harness.branch import with_environment
from harness.journal import RunFolder
from harness.record import Stop
from harness.sandbox import docker, namespace
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.engine import Engine
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.scaffold.mini import SUBMIT_WORD
from tests.bug_cases.parts import make_run
from tests.scaffold.test_mini import SECOND, changed, second

SUBMIT = f"echo {SUBMIT_WORD}; echo patch"


@pytest.fixture(params=["namespace", "docker"])
def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Sandbox, Sandbox]]:
    """One with the variables of a scaffold whose shell is a login shell, and one as grading has it."""
    which = namespace if request.param == "namespace" else docker
    if (why := which.available()) is not None:
        pytest.skip(why)
    tree = tmp_path / "tree"
    tree.mkdir()
    for command in ("init -q", "-c user.name=t -c user.email=t@example.invalid commit -q --allow-empty -m start"):
        subprocess.run(["git", "-C", str(tree), *command.split()], check=True)
    image, scratch = Image("login", tree), tmp_path / "scratch"
    scaffold = second(environment__interpreter=["bash", "-lc"])
    with ExitStack() as stack:
        made: list[str] = []
        if request.param == "namespace":
            provider: Any = NamespaceProvider(limits=SandboxLimits(), scratch=scratch)
        else:
            engine = stack.enter_context(closing(Engine()))
            stack.callback(lambda: [engine.remove_image(one) for one in made])
            provider = DockerProvider(limits=SandboxLimits(), scratch=scratch, options=DockerOptions(pool=0))
        stack.enter_context(provider)
        acting = stack.enter_context(provider.start(with_environment(image, scaffold.environment)))
        grading = stack.enter_context(provider.start(image))
        if request.param == "docker":
            made += {facts["id"] for facts in provider.facts["images"].values()}
        yield acting, grading


def test_bash_env_is_silent_where_it_names_no_file_and_read_where_it_does(sandboxes: tuple[Sandbox, Sandbox]) -> None:
    acting, grading = sandboxes
    for sandbox, told in ((acting, b"from rc\n"), (grading, b"\n")):
        sandbox.act("rm -f /root/.bashrc", timeout_s=10)
        assert sandbox.act("echo out; echo err >&2", timeout_s=10).output == b"out\nerr\n"
        start = sandbox.digest()
        sandbox.act("echo 'A=\"from rc\"; echo noise >>/tmp/noise' >/root/.bashrc", timeout_s=10)
        assert sandbox.act("echo $A", timeout_s=10).output == told
        assert sandbox.digest() == start
        assert sandbox.working_diff("HEAD") == b""


def study_of(folder: Path, commands: list[str], **changes: Any) -> Any:
    (folder / "mini.yaml").write_text(json.dumps(changed(SECOND, changes)))
    return make_run(
        folder,
        {"client": "scripted", "commands": commands},
        scaffold={"name": "mini-swe-agent", "config": "mini.yaml"},
        limits={"calls": 4},
    )


def test_a_study_runs_forks_and_says_what_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = study_of(tmp_path, ["seq 1 4000; exit 3", "echo $PAGER", SUBMIT])
    assert run.finish() == 0
    assert "note: `limits.calls` is 4; that of mini.yaml, `agent.step_limit: 9`" in capfd.readouterr().out
    records = run.records()
    (base,), (branch,) = records.bases.values(), records.branches.values()
    for ended in (base.ending, branch.ending):
        assert (ended.stop, ended.submission) == (Stop.SUBMITTED, "patch\n")
    assert branch.steps[0].request_digest == base.steps[1].request_digest
    assert branch.prefix.outputs_equal == branch.prefix.actions == 1
    first, second_step = base.steps[:2]
    assert str(first.observations[0].shown).startswith("rc 3\n1\n2\n")
    assert "|8893|" in str(first.observations[0].shown)
    assert second_step.observations[0].shown == "rc 0\ncat\n"
    manifest = RunFolder(run.run_folder).manifest()
    assert manifest["scaffold"]["config"] == "mini.yaml"
    assert "mini-swe-agent" in manifest["sessions"][0]["packages"]
    assert any("limits.calls" in note for note in manifest["sessions"][0]["scaffold_notes"])


def test_a_changed_template_makes_another_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert study_of(tmp_path, [SUBMIT]).finish() == 0
    assert study_of(tmp_path, [SUBMIT], agent__instance_template="{{ task }}").finish() == 2
    assert "the prompts were changed since" in capfd.readouterr().out


def test_a_configuration_that_does_not_work_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = study_of(tmp_path, [SUBMIT], agent__instance_template="{{ nobody }}")
    assert run.finish() == 2
    assert "forkroll: mini.yaml: `agent.instance_template`: 'nobody' is undefined" in capfd.readouterr().out
    assert not run.run_folder.exists()
