"""The command line as a person meets it: a real process, its exit code, its one line, what it leaves on disk."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.prompting import SUBMIT_WORD
from harness.sandbox.namespace import available

FORKROLL = Path(sys.executable).with_name("forkroll")
SCRIPTED = f"""
name: tiny
seed: 1
tasks: {{set: pocket, count: 1}}
sandbox: local
models:
  a: {{client: scripted, commands: [ls, "echo x >> README.md", "echo {SUBMIT_WORD}"]}}
  b: {{client: scripted, commands: [ls, pwd, "echo {SUBMIT_WORD}"]}}
directions: {{up: {{base: a, swap: b}}}}
forks: {{rule: absolute, at: [2]}}
"""


def forkroll(*arguments: object, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [str(FORKROLL), *map(str, arguments)]
    made = {**os.environ, "FORKROLL_CACHE": str(cwd / "cache"), **env}
    return subprocess.run(command, cwd=cwd, env=made, capture_output=True, text=True, timeout=120)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCRIPTED)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in done/runs/tiny."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "tiny.yaml").write_text(SCRIPTED)
    made = forkroll("run", "tiny.yaml", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder


BAD_STUDIES = [
    (["no-such.yaml"], "no study file 'no-such.yaml'; bundled studies:"),
    (["tiny.yaml", "replicate=2"], "did you mean `replicates`?"),
    (["tiny.yaml", "replicates=x"], "`replicates`"),
    (["tiny.yaml", "tasks.set=pockt"], "unknown task set 'pockt'; known: pocket"),
    (["tiny.yaml", "tasks.ids=[]"], "no tasks"),
    (["tiny.yaml", "tasks.ids=[nope]"], "has no task 'nope'"),
    (["tiny.yaml", "sandbox=dokcer"], "`sandbox.provider`"),
    (["tiny.yaml", "models.a.client=gpt"], "`models.a`"),
    (["tiny.yaml", "forks.rule=fraction", "forks.at=[0.3, 1.0]"], "strictly between 0 and 1, not 1"),
    (["tiny.yaml", "directions.up.swap=c"], "names model 'c'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD_STUDIES)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    study: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    made = forkroll("run", *arguments, cwd=tmp_path)
    assert made.returncode == 2
    assert says in made.stderr
    assert made.stderr.count("\n") == 1
    assert made.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_real_model_refuses_to_run_unsandboxed(study: Path, tmp_path: Path) -> None:
    model = "models.a={client: openai, base_url: 'http://127.0.0.1:9/v1', model: m}"
    made = forkroll("run", "tiny.yaml", model, cwd=tmp_path)
    assert made.returncode == 2
    assert "--allow-unsandboxed" in made.stderr
    assert not (tmp_path / "runs").exists()


def test_a_server_that_does_not_answer_is_found_before_anything_is_written(study: Path, tmp_path: Path) -> None:
    model = "models.a={client: openai, base_url: 'http://127.0.0.1:9/v1', model: m}"
    made = forkroll("run", "tiny.yaml", model, "--allow-unsandboxed", cwd=tmp_path)
    assert made.returncode == 2
    assert "no answer from http://127.0.0.1:9/v1" in made.stderr
    assert not (tmp_path / "runs" / "tiny" / "study.yaml").exists()


def test_a_missing_key_is_named_and_no_key_is_ever_printed(study: Path, tmp_path: Path) -> None:
    model = "models.a={client: openai, base_url: 'http://127.0.0.1:9/v1', model: m, api_key_env: MY_KEY}"
    without = forkroll("run", "tiny.yaml", model, "--allow-unsandboxed", cwd=tmp_path)
    assert "MY_KEY is not set" in without.stderr
    with_key = forkroll("run", "tiny.yaml", model, "--allow-unsandboxed", cwd=tmp_path, MY_KEY="sesame-123")
    assert with_key.returncode == 2
    assert "sesame" not in with_key.stderr + with_key.stdout


def test_a_second_run_says_that_all_is_done_and_changes_nothing(done: Path) -> None:
    before = {path: path.read_bytes() for path in (done / "runs").rglob("*") if path.is_file()}
    made = forkroll("run", "tiny.yaml", cwd=done)
    assert made.returncode == 0
    assert "all 1 bases and 4 branches are done; nothing to run" in made.stderr
    assert {path: path.read_bytes() for path in (done / "runs").rglob("*") if path.is_file()} == before


def test_the_fork_table_is_printed_and_json_is_json(done: Path) -> None:
    assert "fork table · tiny" in forkroll("run", "tiny.yaml", cwd=done).stdout
    tables = json.loads(forkroll("run", "tiny.yaml", "--json", cwd=done).stdout)
    assert [table["name"] for table in tables] == ["fork", "behaviour", "outcome", "quality"]
    assert tables[0]["rows"][0]["n"]["value"] == 2


@pytest.mark.parametrize("form", ["text", "md", "csv", "latex", "json"])
def test_tables_in_every_format(done: Path, form: str) -> None:
    made = forkroll("tables", "runs/tiny", "--format", form, cwd=done)
    assert (made.returncode, made.stderr) == (0, "")
    assert "control" in made.stdout


def test_another_study_in_the_folder_is_refused_with_the_difference(done: Path) -> None:
    made = forkroll("run", "tiny.yaml", "seed=2", cwd=done)
    assert made.returncode == 2
    assert "`seed` was 1, is 2" in made.stderr
    assert "--force-new" in made.stderr


def test_force_new_makes_a_sibling(done: Path) -> None:
    made = forkroll("run", "tiny.yaml", "seed=3", "--force-new", cwd=done)
    assert made.returncode == 0
    assert "seed: 3" in (done / "runs" / "tiny-2" / "study.yaml").read_text()
    assert "seed: 1" in (done / "runs" / "tiny" / "study.yaml").read_text()


def test_more_replicates_extend_a_run(study: Path, tmp_path: Path) -> None:
    forkroll("run", "tiny.yaml", "replicates=1", cwd=tmp_path)
    (file,) = (tmp_path / "runs/tiny/records").glob("*.jsonl")
    before = file.read_bytes()
    made = forkroll("run", "tiny.yaml", "replicates=2", cwd=tmp_path)
    assert made.returncode == 0
    assert file.read_bytes() == before
    assert "4 branches" in made.stdout
    assert forkroll("run", "tiny.yaml", "replicates=1", cwd=tmp_path).returncode == 2


def test_status_show_and_export(done: Path) -> None:
    status = forkroll("status", "runs/tiny", cwd=done)
    assert (status.returncode, status.stdout.splitlines()[0]) == (
        0,
        "runs/tiny: 1 bases and 4 branches done, 0 cells owed",
    )
    base = forkroll("show", "runs/tiny", cwd=done).stdout.splitlines()[1].split()[0]
    tree = forkroll("show", "runs/tiny", base, cwd=done).stdout
    assert re.search(r"\\-- step 2 .*:up@2:swap#1 +by b", tree)
    assert "[exit 0]" in tree
    branch = re.search(r"\S+:up@2:swap#1", tree)
    assert branch is not None
    assert (
        "prefix: 1/1 exit codes, 1/1 outputs, 2/2 states equal"
        in forkroll("show", "runs/tiny", branch[0], cwd=done).stdout
    )
    step = forkroll("show", "runs/tiny", branch[0], 2, cwd=done).stdout
    assert "$ pwd" in step and "[exit 0, " in step
    lines = Path(done / forkroll("export", "runs/tiny", cwd=done).stdout.strip()).read_text().splitlines()
    assert len(lines) == 5
    assert "provenance" not in lines[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "runs/tiny", "nope"], "no record 'nope'"),
        (["status", "runs/none"], "not a run folder"),
        (["tables", "runs/none"], "not a run folder"),
        (["tables", "runs/tiny", "--format", "yaml"], "--format is one of"),
        (["tables", "runs/tiny", "--paper"], "summary.json"),
        (["tables", "runs/tiny", "--paper", "--bucket", "x"], "--bucket is rank or released"),
    ],
)
def test_bad_arguments_of_the_readers(done: Path, arguments: list[str], says: str) -> None:
    made = forkroll(*arguments, cwd=done)
    assert (made.returncode, made.stdout) == (2, "")
    assert says in made.stderr
    assert made.stderr.count("\n") == 1


def test_a_corrupt_line_is_named_and_stops_every_reader(study: Path, tmp_path: Path) -> None:
    forkroll("run", "tiny.yaml", cwd=tmp_path)
    (file,) = (tmp_path / "runs/tiny/records").glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'{"kind":"branch"', b'{"kind":"brunch"', 1))
    for command in (["status", "runs/tiny"], ["tables", "runs/tiny"], ["run", "tiny.yaml"], ["export", "runs/tiny"]):
        made = forkroll(*command, cwd=tmp_path)
        assert made.returncode == 2
        assert "0001.jsonl:2: not a record" in made.stderr


def test_a_torn_last_line_is_said_and_its_cell_run_again(study: Path, tmp_path: Path) -> None:
    forkroll("run", "tiny.yaml", cwd=tmp_path)
    (file,) = (tmp_path / "runs/tiny/records").glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-20])
    assert forkroll("status", "runs/tiny", cwd=tmp_path).returncode == 4
    made = forkroll("run", "tiny.yaml", cwd=tmp_path)
    assert made.returncode == 0
    assert "0001.jsonl was torn by a kill" in made.stderr
    assert forkroll("status", "runs/tiny", cwd=tmp_path).returncode == 0


def test_limits_of_the_run_end_in_exit_4_and_the_command_that_resumes(study: Path, tmp_path: Path) -> None:
    made = forkroll("run", "tiny.yaml", "limits.run.calls=4", "workers=1", cwd=tmp_path)
    assert made.returncode == 4
    assert "limits.run.calls reached" in made.stderr
    assert "Resume: forkroll run tiny.yaml" in made.stderr
    assert forkroll("run", "tiny.yaml", cwd=tmp_path).returncode == 0


def test_failed_cells_end_in_exit_4_and_status_says_why(study: Path, tmp_path: Path) -> None:
    made = forkroll("run", "tiny.yaml", "models.b.commands=[ls]", cwd=tmp_path)
    assert made.returncode == 4
    status = forkroll("status", "runs/tiny", cwd=tmp_path)
    assert status.returncode == 4
    assert "model: the script holds 1 commands" in status.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_cleanly_and_the_run_resumes(study: Path, tmp_path: Path, number: signal.Signals) -> None:
    slow = "models.a.commands=[ls, 'sleep 0.5', 'echo x >> README.md', 'echo FORKROLL_SUBMIT']"
    env = {**os.environ, "FORKROLL_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [str(FORKROLL), "run", "tiny.yaml", slow, "workers=1"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    records = tmp_path / "runs/tiny/records"
    deadline = time.monotonic() + 30
    while not list(records.glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Resume: forkroll run tiny.yaml" in errors
    assert forkroll("run", "tiny.yaml", slow, cwd=tmp_path).returncode == 0
    kept = [line for path in records.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len({json.loads(line)["id"] for line in kept}) == len(kept) == 5


def test_doctor_names_what_it_finds(tmp_path: Path) -> None:
    made = forkroll("doctor", cwd=tmp_path)
    assert made.returncode in (0, 1)
    assert "python" in made.stdout and "namespace sandbox" in made.stdout


HEAVY = ("pydantic", "httpx", "numpy", "yaml", "rapidfuzz", "pandas", "scipy", "rich", "harness.record", "analysis")


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], ()),
        (["run", "--help"], ("pydantic",)),  # typer's own doing
        (["tables", "runs/tiny"], ("pydantic", "yaml", "rapidfuzz", "harness.record", "analysis", "numpy")),
        (["status", "runs/tiny"], ("pydantic", "yaml", "harness.record")),
    ],
)
def test_no_command_imports_what_it_does_not_need(done: Path, arguments: list[str], allowed: tuple[str, ...]) -> None:
    code = (
        "import sys; sys.argv = ['forkroll', *sys.argv[1:]]\n"
        "import atexit, harness.cli\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        "harness.cli.main()"
    )
    env = {**os.environ, "FORKROLL_CACHE": str(done / "cache")}
    made = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=done, env=env, capture_output=True, text=True, timeout=60
    )
    assert set(json.loads(made.stderr.splitlines()[-1].replace("'", '"'))) <= set(allowed)


ON_AN_OVERLAY = """
set -e
mkdir lower upper work merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what this test needs")
def test_what_a_provider_lacks_and_finds_out_in_use_is_printed_and_recorded(study: Path, tmp_path: Path) -> None:
    """A run folder that lies on an overlay can carry none: sandboxes copy their tree, and the run says so."""
    if (why_not := available()) is not None:
        pytest.skip(why_not)
    private = ["unshare", "--mount", "bash", "-c", ON_AN_OVERLAY, "bash"]
    run = [str(FORKROLL), "run", str(study), "sandbox=namespace", "--run", str(tmp_path / "merged" / "run")]
    env = {**os.environ, "FORKROLL_CACHE": str(tmp_path / "cache")}
    made = subprocess.run([*private, *run], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert made.stderr.count("note: no overlay in ") == 1
    manifest = json.loads((tmp_path / "upper" / "run" / "manifest.json").read_text())
    (session,) = manifest["sessions"]
    assert any(note.startswith("no overlay in ") for note in session["degraded"])
