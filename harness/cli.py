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
    from harness.importing import Listing
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
    recorded: Annotated[
        Path | None,
        typer.Option("--recorded", help="Answer every model from this run's records; into runs/<study name>-recorded."),
    ] = None,
    allow_unsandboxed: UnsandboxedOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan (cells, images, calls, tokens, GPU hours); run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the fork table, or the plan, as JSON.")] = False,
) -> None:
    """Run a study: bases, forks, arms, scores. Resumes where it stopped; what is done is not run again."""
    if dry_run:
        _print_plan(study, overrides or [], as_json)
        return
    from harness.run import run_study

    finished = run_study(
        study,
        overrides or [],
        folder=folder,
        force_new=force_new,
        allow_unsandboxed=allow_unsandboxed,
        say=_say,
        recorded=recorded,
    )
    tested = _selftest_tables(finished.end.tested.values())
    made = tested if finished.end.refused else [*tested, *_fork_tables(finished.folder.path)]
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
def score(
    folder: RunArgument,
    model: Annotated[str, typer.Option("--model", help="The study's name of the model that scores.")],
    of: Annotated[str, typer.Option("--of", help="Steps of: base, branches or all.")] = "all",
    twice: Annotated[bool, typer.Option("--twice", help="Ask again in another order and print the spread.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Log-probabilities of a run's actions under a model of its study, by teacher forcing. Resumes where it stopped."""
    from analysis.score_table import score_table
    from harness.errors import UsageError
    from harness.forced import Of, score_run

    chosen = next((known for known in get_args(Of) if known == of), None)
    if chosen is None:
        raise UsageError(f"--of is one of {', '.join(get_args(Of))}, not {of!r}")
    forced = score_run(folder, model, of=chosen, twice=twice, say=_say)
    _print_tables([score_table(folder, model)], "json" if as_json else "text")
    _say(forced.closing_line())
    raise typer.Exit(forced.exit_code)


@app.command()
def export(
    folder: RunArgument,
    into: Annotated[
        Path | None, typer.Argument(help="Folder to write to (traj, preds); new or empty.", metavar="[DIR]")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="canonical, traj or preds.")] = "canonical",
) -> None:
    """The canonical export (records by id without clocks, hosts and attempts: equal runs, equal bytes), one traj.json
    a rollout as mini-swe-agent writes it, or one preds.json an arm as SWE-bench's grading reads it."""
    from harness.exporters.run import export_run

    _print_lines(export_run(folder, into, form))


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(help="mini, sweagent, or own (a run folder of ours).", metavar="KIND")],
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders of them.", metavar="PATH...")],
    listing: Annotated[bool, typer.Option("--list", help="Show what is in the logs; write nothing.")] = False,
    study: Annotated[str | None, typer.Option("--study", help="Study whose bases the rollouts become.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override of the study, KEY=VALUE.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="The study's name of the model that acted.")] = None,
    folder: Annotated[Path | None, typer.Option("--run", help="Run folder. Default: runs/<study name>.")] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Of logs of several runs this one; of a run of ours, this model.")
    ] = None,
    verdicts: Annotated[
        Path | None, typer.Option("--verdicts", help="A report of SWE-bench's grading, for logs that hold no verdict.")
    ] = None,
    form: FormatOption = "text",
) -> None:
    """Rollouts that were not made here become bases of a study: `forkroll run` then forks them."""
    from harness.errors import UsageError
    from harness.importing import Wanted, import_logs, list_logs

    if listing:
        found = list_logs(kind, paths, only)
        _print_tables([_listing_table(found)], form)
        raise typer.Exit(0 if found.held else INCOMPLETE)
    if study is None or agent is None:
        raise UsageError("name a --study and the --agent whose bases these are, or ask for --list")
    taken = import_logs(Wanted(kind, paths, study, overrides or [], agent, folder, only, verdicts), _say)
    _print_lines(taken.lines())
    raise typer.Exit(0 if taken.imported else INCOMPLETE)


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
def grade(
    folder: RunArgument,
    times: Annotated[
        int, typer.Option(help="Further gradings of each chosen cell, those done before included.", min=1)
    ] = 1,
    sample: Annotated[
        float,
        typer.Option(help="Probability of a cell at a fork where all outcomes agree; 1: every cell."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    form: FormatOption = "text",
    allow_unsandboxed: UnsandboxedOption = False,
) -> None:
    """Grade what a run left behind again and print how often grading differs. Outcomes stay as they were; resumes."""
    from analysis.flakes import flake_table
    from harness.gradings import Design
    from harness.journal import RunFolder
    from harness.regrade import grade as grade_again

    graded = grade_again(folder, Design(sample, seed), times, allow_unsandboxed=allow_unsandboxed, say=_say)
    _print_tables([flake_table(RunFolder(folder).records(), folder.name)], form)
    if graded.owed:
        _say(f"{graded.owed} gradings are owed: {graded.stopped or 'some failed; `forkroll status` says why'}")
    raise typer.Exit(graded.exit_code)


@app.command("tasks")
def list_tasks(
    name: Annotated[
        str,
        typer.Argument(
            help="Study (file or bundled), or pocket, verified, lite, full or a table's file: then keys of `tasks`.",
            metavar="STUDY|SET",
        ),
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides.", metavar="KEY=VALUE")] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Grade each task's reference patch where the study grades.")
    ] = False,
    form: FormatOption = "text",
    allow_unsandboxed: UnsandboxedOption = False,
) -> None:
    """The tasks that a study takes, in order: repository, difficulty, tests, image, flags. Starts nothing.

    With --reference: exit 1 when a reference patch does not resolve, 4 when one could not be graded.
    """
    from analysis.task_table import task_table
    from harness.assemble import tasks_named

    if reference:
        raise typer.Exit(_references(name, overrides or [], form, allow_unsandboxed))
    title, chosen = tasks_named(name, overrides or [])
    _print_tables([task_table(chosen, title)], form)


@app.command()
def clean(
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="This run alone. Default: every run in runs/.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Also the engine's cached images of bundled tasks that nothing uses.")
    ] = False,
) -> None:
    """Remove sandboxes, containers and folders whose driver is dead; never anything else."""
    from harness.clean import clean as reap

    runs = [run_folder] if run_folder is not None else sorted(Path("runs").glob("*"))
    lines = [f"removed {reaped.kind} {reaped.name}" for reaped in reap(runs, only=run_folder)]
    if images:
        from harness.sandbox.docker import drop_tree_images

        lines += [f"removed image {reference}" for reference in drop_tree_images()]
    _print_lines(lines or ["nothing to remove"])


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


def _print_plan(source: str, overrides: "Sequence[str]", as_json: bool) -> None:
    from harness.estimate import estimate_lines
    from harness.run import dry_run

    study, found = dry_run(source, overrides)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps({"study": study.name, **asdict(found), "assumes": study.rates.model_dump()}, indent=2))
        return
    _print_lines(estimate_lines(study, found))


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


def _references(name: str, overrides: "Sequence[str]", form: str, allow_unsandboxed: bool) -> int:
    from analysis.task_table import reference_table
    from harness.config import load_study
    from harness.reference import check_references

    study = load_study(name, overrides)
    found = check_references(study, allow_unsandboxed=allow_unsandboxed, say=_say)
    graded = [(one.outcome, one.failure) for one in found]
    _print_tables([reference_table([one.task for one in found], graded, study.name)], form)
    if any(one.outcome is None for one in found):
        return INCOMPLETE
    return 0 if all(one.resolves for one in found) else 1


def _fork_tables(folder: Path) -> "Sequence[Table]":
    from analysis.fork_tables import fork_tables
    from analysis.load import load_run

    return fork_tables(load_run(folder))


def _run_tables(folder: Path) -> "Sequence[Table]":
    from analysis.flakes import flake_table
    from analysis.fork_tables import all_tables
    from analysis.load import load_run
    from harness.journal import RunFolder

    records = RunFolder(folder).records()
    return [*all_tables(load_run(folder)), *([flake_table(records, folder.name)] if records.regrades else [])]


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


def _listing_table(found: "Listing") -> "Table":
    from analysis.table import Column, Table, count, label, number, rate

    columns = [Column(key, key, is_label=True) for key in ("run", "model", "format")]
    columns += [Column(key, key) for key in ("rollouts", "tasks", "resolved", "steps", "format errors")]
    columns += [Column("input", "input tokens"), Column("output", "output tokens"), Column("exits", "exit statuses")]
    rows = []
    for held in found.held:
        exits = ", ".join(f"{times} {status}" for status, times in held.statuses.most_common())
        rows.append(
            (
                *map(label, (held.run or "-", held.model or "-", held.format)),
                *map(count, (held.rollouts, len(held.tasks))),
                rate(held.resolved, held.graded, why="the logs hold no verdicts"),
                *map(count, (held.steps, held.format_errors)),
                number(held.input_tokens, 0, why="the logs hold no counts"),
                number(held.output_tokens, 0, why="the logs hold no counts"),
                label(exits),
            )
        )
    notes = [f"of all, {times}: {remark}" for remark, times in sorted(found.remarks.items())]
    notes += [f"refused: {len(found.refused)}", *(one.line() for one in found.refused)]
    title = "What the logs hold; tokens as far as the logs count them"
    return Table("logs", title, tuple(columns), tuple(rows), tuple(notes))


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
