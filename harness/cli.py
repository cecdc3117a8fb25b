"""The command line, and the composition root: parse, load, call one function, print.

Nothing heavy is imported before a command needs it; `forkroll --help` imports typer and nothing of ours.
Exit codes: 0 done, 1 gate tripped, 2 usage or configuration, 4 incomplete or nothing measured, 130 interrupted.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from analysis.table import Table
    from harness.serving.selftest import SelfTest

app = typer.Typer(
    name="forkroll",
    help="Counterfactual branching rollouts of LLM agents: fork real runs, swap the model, measure what changes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

INCOMPLETE = 4

RunArgument = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]
UnsandboxedOption = Annotated[
    bool, typer.Option("--allow-unsandboxed", help="Let real models run commands on this machine in `local`.")
]
PythonOption = Annotated[
    str | None,
    typer.Option("--python", help="Interpreter that has vLLM. Default: $FORKROLL_VLLM_PYTHON, else our own."),
]
FormatOption = Annotated[str, typer.Option("--format", help="text, md, csv, latex or json.")]


def main() -> None:
    """Entry point: errors that a person must act on are one line and exit code 2."""
    from harness.errors import UsageError

    try:
        app()
    except UsageError as error:
        print(f"forkroll: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nothing more to say
        sys.exit(0)


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="Study file, or the name of a bundled study.", metavar="STUDY")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides such as replicates=4 or limits.calls=20.", metavar="KEY=VALUE")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--run", help="Run folder. Default: runs/<study name>.")] = None,
    force_new: Annotated[
        bool, typer.Option("--force-new", help="Where the folder holds another study: make a sibling folder.")
    ] = False,
    allow_unsandboxed: UnsandboxedOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the fork table as JSON.")] = False,
) -> None:
    """Run a study: bases, forks, arms, scores. Resumes where it stopped; what is done is not run again."""
    from harness.run import run_study

    finished = run_study(
        study,
        overrides or [],
        folder=folder,
        force_new=force_new,
        allow_unsandboxed=allow_unsandboxed,
        say=_say,
    )
    tested = _selftest_tables(finished.tested.values())
    made = tested if finished.refused else [*tested, *_fork_tables(finished.folder.path)]
    _print_tables(made, "json" if as_json else "text")
    for text in finished.closing_lines():
        print(text, file=sys.stderr)
    raise typer.Exit(finished.exit_code)


@app.command()
def status(folder: RunArgument) -> None:
    """How far a run is, what failed and why, what is owed."""
    from harness.run import open_run
    from harness.show import status_lines

    opened = open_run(folder)
    _print_lines(status_lines(opened.folder, opened.records, opened.owed, opened.unplanned))
    raise typer.Exit(INCOMPLETE if opened.owed else 0)


@app.command()
def show(
    folder: RunArgument,
    cell: Annotated[str | None, typer.Argument(help="Id of a base or a branch.", metavar="[ID]")] = None,
    step: Annotated[int | None, typer.Argument(help="A step of it, in full.", metavar="[STEP]")] = None,
) -> None:
    """A run's bases; a base with its branches as a tree; a branch; or one step with action, output and exit code."""
    from harness.run import open_run
    from harness.show import overview_lines, record_lines, step_lines

    opened = open_run(folder)
    if cell is None:
        _print_lines(overview_lines(opened.study, opened.records))
        return
    lines = record_lines(cell, opened.records)
    if step is not None:
        lines = step_lines(opened.record(cell), step)
    _print_lines(lines)


@app.command()
def tables(
    folder: Annotated[Path, typer.Argument(help="A run folder, or with --paper the paper's released files.")],
    paper: Annotated[bool, typer.Option("--paper", help="The paper's tables, published | recomputed.")] = False,
    form: FormatOption = "text",
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap (--paper).")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples (--paper).", min=100)] = 10_000,
    bucket: Annotated[str, typer.Option(help="Early and late by `rank` or as `released` (--paper).")] = "rank",
) -> None:
    """Tables of a run, or the paper's main tables recomputed from its released data."""
    made = _paper_tables(folder, bucket, seed, resamples) if paper else _run_tables(folder)
    _print_tables(made, form)


@app.command()
def export(folder: RunArgument) -> None:
    """Write the canonical export: records by id, without clocks, hosts and attempts; equal runs, equal bytes."""
    from harness.journal import RunFolder

    print(RunFolder(folder).require().export())


@app.command()
def shell(
    folder: RunArgument,
    place: Annotated[str, typer.Argument(help="ID@k: before step k. ID: after its last step.", metavar="ID@k")],
    allow_unsandboxed: UnsandboxedOption = False,
) -> None:
    """A shell in a fresh sandbox brought to a point of a recorded rollout."""
    from harness.revisit import shell as open_shell

    raise typer.Exit(open_shell(folder, place, allow_unsandboxed=allow_unsandboxed, say=_say))


@app.command()
def rerun(
    folder: RunArgument,
    cell: Annotated[str, typer.Argument(help="Id of a base or a branch.", metavar="ID")],
    keep_sandbox: Annotated[
        bool, typer.Option("--keep-sandbox", help="Open a shell in the sandbox when the rollout is over.")
    ] = False,
    allow_unsandboxed: UnsandboxedOption = False,
) -> None:
    """Run one cell again with its own seed, steps shown as they come; records nothing. Exit 1: it differs."""
    from harness.revisit import rerun as run_again

    raise typer.Exit(run_again(folder, cell, keep_sandbox=keep_sandbox, allow_unsandboxed=allow_unsandboxed, say=_say))


@app.command()
def clean(
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="This run alone. Default: every run in runs/.")
    ] = None,
) -> None:
    """Remove sandboxes, containers and folders whose driver is dead; never anything else."""
    from harness.clean import clean as reap

    runs = [run_folder] if run_folder is not None else sorted(Path("runs").glob("*"))
    found = reap(runs, only=run_folder)
    _print_lines([f"removed {reaped.kind} {reaped.name}" for reaped in found] or ["nothing to remove"])


@app.command()
def doctor() -> None:
    """What this machine has and lacks, and the command that mends each miss."""
    from harness.doctor import examine

    findings = list(examine())
    _print_lines([finding.line() for finding in findings])
    raise typer.Exit(1 if any(finding.state == "missing" for finding in findings) else 0)


@app.command("serve-sim", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_sim(context: typer.Context) -> None:
    """Serve the simulated models over HTTP; options as in `python -m harness.model.simulated.server --help`."""
    from harness.model.simulated.server import main as serve

    raise typer.Exit(serve(context.args))


@app.command()
def serve(
    cards: Annotated[list[str], typer.Argument(help="Model cards: names in configs/models, or files.", metavar="CARD")],
    python: PythonOption = None,
    show_command: Annotated[
        bool, typer.Option("--show", help="Print the command that starts each server, and start none.")
    ] = False,
    grace: Annotated[float, typer.Option("--grace", help="Seconds from TERM to KILL at the end.", min=0)] = 30.0,
) -> None:
    """Serve models as their cards say, until Ctrl-C. Exit 4: a server ended by itself."""
    from harness.selftests import command_lines
    from harness.selftests import serve as serve_cards

    if show_command:
        _print_lines(command_lines(cards, python))
        return
    gone = serve_cards(cards, python, grace)
    if gone is not None:
        _say(gone)
        raise typer.Exit(INCOMPLETE)


@app.command()
def selftest(
    targets: Annotated[list[str], typer.Argument(help="Model cards, or addresses of servers.", metavar="CARD_OR_URL")],
    study: Annotated[
        str | None, typer.Option("--study", help="Ask this study's prompts. Default: the bundled tasks'.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Which of an address's models.")] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="At most so many prompts.", min=1)] = 16,
    tokens: Annotated[int, typer.Option("--tokens", help="Length at which replies are cut.", min=1)] = 64,
    restart: Annotated[bool, typer.Option("--restart", help="Also restart the server and ask again.")] = False,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Environment variable that holds an address's key.")
    ] = None,
    python: PythonOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> None:
    """Does a server give one prompt one reply, alone, in a batch, warm, cold? Exit 1: it does not."""
    from harness.selftests import Wanted, examine

    found = examine(targets, Wanted(prompts, tokens, study, model, api_key_env, restart, python))
    _print_tables(_selftest_tables(found), "json" if as_json else "text")
    raise typer.Exit(0 if all(test.deterministic for test in found) else 1)


def _selftest_tables(found: "Iterable[SelfTest]") -> "Sequence[Table]":
    from analysis.selftest_table import selftest_table

    distinct = {id(test): test for test in found}  # models that are one served model share a test
    return [selftest_table(test.facts(), place) for place, test in enumerate(distinct.values(), 1)]


def _fork_tables(folder: Path) -> "Sequence[Table]":
    from analysis.fork_tables import fork_tables
    from analysis.load import load_run

    return fork_tables(load_run(folder))


def _run_tables(folder: Path) -> "Sequence[Table]":
    from analysis.fork_tables import all_tables
    from analysis.load import load_run

    return all_tables(load_run(folder))


def _paper_tables(folder: Path, bucket: str, seed: int, resamples: int) -> "Sequence[Table]":
    import numpy as np

    from analysis.paper import Bucket, PaperDataError, load_release
    from analysis.paper_tables import paper_tables
    from harness.errors import UsageError

    chosen = next((known for known in get_args(Bucket) if known == bucket), None)
    if chosen is None:
        raise UsageError(f"--bucket is rank or released, not {bucket!r}")
    try:
        release = load_release(folder)
    except PaperDataError as error:
        raise UsageError(str(error)) from None
    return paper_tables(release, bucket=chosen, rng=np.random.default_rng(seed), resamples=resamples)


def _print_tables(made: "Sequence[Table]", form: str) -> None:
    from analysis.table import FORMATS, render_many
    from harness.errors import UsageError

    if form not in FORMATS:
        raise UsageError(f"--format is one of {', '.join(FORMATS)}, not {form!r}")
    print(render_many(made, form))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _print_lines(lines: "Sequence[str]") -> None:
    for line in lines:
        print(line)
