"""A whole run under teacher forcing: a model's own log-probabilities come back; nothing is imputed or asked twice."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.score_table import score_table
from harness.config import to_yaml, validate
from harness.errors import ConfigError, JournalError
from harness.forced import Of, score_run
from harness.journal import Journal, RunFolder, ScoreLog
from harness.model.simulated.process import SimulatedServer
from harness.record import SCHEMA_VERSION, Score, Step, canonical_json
from harness.run import run_study
from tests.contracts.sandbox_contract import eventually
from tests.model.served import Words, serving

FORKROLL = Path(sys.executable).with_name("forkroll")


SEED = 6
"""With it the first two replies of the base can be read, and some later ones cannot."""


def study_of(url: str, **more: Any) -> dict[str, Any]:
    models = {name: {"client": "openai", "base_url": url, "model": name} for name in ("small", "large")}
    return {
        "name": "s",
        "seed": SEED,
        "tasks": {"set": "pocket", "count": 1},
        "sandbox": "auto",
        "models": {**models, "silent": {"client": "scripted", "commands": ["ls"]}},
        "directions": {"up": {"base": "small", "swap": "large"}},
        "forks": {"rule": "absolute", "at": [3]},
        "replicates": 1,
        "limits": {"calls": 8},
        "sampling": {"logprobs": True, "temperature": 1.0},
        "retries": 0,
        **more,
    }


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(["--set", "small.format_error_rate=0.2", "--epoch", "0"]) as running:
        yield running


def made(server: SimulatedServer, folder: Path, **more: Any) -> RunFolder:
    """A finished run of the study in `folder`."""
    (folder / "s.yaml").write_text(json.dumps(study_of(server.base_url, **more)))
    done = run_study(
        str(folder / "s.yaml"),
        [],
        folder=folder / "run",
        force_new=False,
        allow_unsandboxed=True,
        say=lambda text: None,
    )
    assert done.exit_code == 0
    return done.folder


@pytest.fixture(scope="module")
def run(server: SimulatedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    folder = tmp_path_factory.mktemp("forced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKROLL_CACHE", str(folder / "cache"))
        yield made(server, folder)


@pytest.fixture
def fresh(run: RunFolder) -> RunFolder:
    """The run without scores."""
    for path in run.scores_folder.glob("*"):
        path.unlink()
    return run


def steps(run: RunFolder) -> dict[tuple[str, int], Step]:
    records = run.records()
    return {
        (record.id, step.index): step
        for record in (*records.bases.values(), *records.branches.values())
        for step in record.steps
    }


def score(run: RunFolder, model: str, of: Of = "all", *, twice: bool = False) -> int:
    return score_run(run.path, model, of=of, twice=twice, say=lambda text: None).exit_code


def test_the_model_that_acted_gets_back_what_its_server_logged(fresh: RunFolder) -> None:
    assert score(fresh, "small") == 0
    own = [each for each in fresh.scores("small") if each.agent == "small"]
    logged = {place: step.reply.logprob for place, step in steps(fresh).items()}
    assert len([each for each in own if each.logprob is not None]) > 5
    for each in own:
        assert (each.logprob is None) == (logged[each.cell, each.step] is None)
        if each.logprob is not None:
            assert each.how == "ids"
            assert each.logprob == pytest.approx(logged[each.cell, each.step], abs=1e-6)
        else:
            assert (each.how, each.tokens, each.why) == (None, None, "no action begins in the reply")


def test_every_step_has_one_score_and_the_other_model_differs(fresh: RunFolder) -> None:
    assert score(fresh, "large") == 0
    found = fresh.scores("large")
    bases = fresh.records().bases
    in_order = sorted(steps(fresh), key=lambda place: (place[0] not in bases, place))
    assert [(each.cell, each.step) for each in found] == in_order
    assert {each.model for each in found} == {"large"}
    assert all(each.agent == steps(fresh)[each.cell, each.step].agent for each in found)
    apart = [
        abs(each.logprob - logged)
        for each in found
        if each.logprob is not None and (logged := steps(fresh)[each.cell, each.step].reply.logprob) is not None
    ]
    assert max(apart) > 0.1


def test_bases_and_branches_apart_make_the_same_scores_as_together(fresh: RunFolder) -> None:
    assert score(fresh, "small", "base") == 0
    bases = fresh.scores("small")
    assert {each.cell for each in bases} == set(fresh.records().bases)
    assert score(fresh, "small", "branches") == 0
    parts = fresh.scores_file("small").read_bytes()
    fresh.scores_file("small").unlink()
    assert score(fresh, "small") == 0
    assert fresh.scores_file("small").read_bytes() == parts


def test_what_was_scored_is_not_asked_again_and_a_torn_line_is(fresh: RunFolder) -> None:
    score(fresh, "small")
    file = fresh.scores_file("small")
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    marked = lines[0].replace(b'"why":""', b'"why":"kept"')
    file.write_bytes(b"".join([marked, *lines[1:4], lines[4][:-9]]))
    assert fresh.scores("small")[0].why == "kept"
    assert len(fresh.scores("small")) == 4
    assert score(fresh, "small") == 0
    assert file.read_bytes() == b"".join([marked, *lines[1:]])


def test_asking_twice_is_asked_in_another_order_and_reports_the_spread(fresh: RunFolder) -> None:
    assert score(fresh, "large", twice=True) == 0
    takes = {take: [each for each in fresh.scores("large") if each.take == take] for take in (1, 2)}
    known = [(each.cell, each.step) for each in takes[1] if each.logprob is not None]
    again = [(each.cell, each.step) for each in takes[2]]
    assert sorted(again) == sorted(known)
    assert again != known
    notes = " ".join(score_table(fresh.path, "large").notes)
    assert f"asked twice in another order: {len(known)} compared, largest difference 0; 0 were unknown" in notes
    assert score(fresh, "large", twice=True) == 0
    assert len(fresh.scores("large")) == len(takes[1]) + len(takes[2])


def test_a_spread_is_seen_where_there_is_one(fresh: RunFolder) -> None:
    score(fresh, "small")
    first = next(each for each in fresh.scores("small") if each.logprob is not None)
    assert first.logprob is not None
    with ScoreLog(fresh, "small") as log:
        log.append(first.model_copy(update={"take": 2, "logprob": first.logprob - 0.25}))
    assert any("1 compared, largest difference 0.25" in note for note in score_table(fresh.path, "small").notes)


def test_the_table_counts_what_is_known_and_names_what_is_not(fresh: RunFolder) -> None:
    score(fresh, "small")
    table = score_table(fresh.path, "small")
    found = fresh.scores("small")
    for row in table.rows:
        cells = {column.key: cell.value for column, cell in zip(table.columns, row, strict=True)}
        mine = [each for each in found if each.agent == cells["agent"]]
        known = [each.logprob for each in mine if each.logprob is not None]
        assert (cells["steps"], cells["scored"], cells["unknown"]) == (len(mine), len(known), len(mine) - len(known))
        assert cells["ids"] == len(known)
        assert cells["mean_logprob"] == pytest.approx(sum(known) / len(known))
    unknown = sum(each.logprob is None for each in found)
    assert unknown
    assert f"unknown, {unknown}: no action begins in the reply" in table.notes
    assert any(note.startswith("own actions against the log: ") for note in table.notes)


def test_a_model_without_probabilities_measures_nothing(fresh: RunFolder) -> None:
    assert score(fresh, "silent") == 4
    assert {each.logprob for each in fresh.scores("silent")} == {None}
    table = score_table(fresh.path, "silent")
    assert table.rows[0][-1].value is None
    assert any("a script has no probabilities" in note for note in table.notes)


def test_text_is_scored_where_no_tokens_were_logged(server: SimulatedServer, run: RunFolder, tmp_path: Path) -> None:
    bare = made(server, tmp_path, dialect="text", sampling={"temperature": 1.0})
    assert score(bare, "large") == 0
    assert {each.how for each in bare.scores("large") if each.logprob is not None} == {"text"}


def test_a_call_without_tokens_is_unknown_by_name(server: SimulatedServer, run: RunFolder, tmp_path: Path) -> None:
    bare = made(server, tmp_path, sampling={"temperature": 1.0})
    assert score(bare, "large") == 4
    assert {each.why for each in bare.scores("large")} == {
        "no tokens were logged, so how the call was written is not known"
    }


def rewritten(run: RunFolder, folder: Path, old: bytes, new: bytes, times: int = 1) -> RunFolder:
    """A copy of the run in which a record says something else."""
    copy = RunFolder(folder / "copy")
    copy.records_folder.mkdir(parents=True)
    copy.study_file.write_bytes(run.study_file.read_bytes())
    copy.manifest_file.write_bytes(run.manifest_file.read_bytes())
    (file,) = run.records_folder.glob("*.jsonl")
    content = file.read_bytes()
    assert old in content
    (copy.records_folder / file.name).write_bytes(content.replace(old, new, times))
    return copy


def test_a_branch_of_another_base_is_not_scored(run: RunFolder, tmp_path: Path) -> None:
    """The stored base has another first command than the one that the branches go on from."""
    base = next(iter(run.records().bases.values()))
    old = base.steps[0].state_digest
    assert old is not None
    stale = rewritten(run, tmp_path, f'"state_digest":"{old}"'.encode(), b'"state_digest":"other"')
    score(stale, "small")
    whys = {each.why for each in stale.scores("small") if each.cell in stale.records().branches}
    assert whys == {"the base was changed since the branch was made"}


def test_a_request_that_would_be_made_otherwise_now_is_not_scored(run: RunFolder, tmp_path: Path) -> None:
    base = next(iter(run.records().bases.values()))
    digest = str(base.steps[1].request_digest).encode()
    changed = rewritten(run, tmp_path, digest, b"other")
    score(changed, "small", "base")
    found = {each.step: each for each in changed.scores("small")}
    assert found[2].why == "the request as it is made now is not the one that was answered"
    assert found[1].logprob is not None


def test_another_prompt_than_the_one_that_was_answered_is_no_score_of_it(run: RunFolder, tmp_path: Path) -> None:
    base = next(iter(run.records().bases.values()))
    digest = str(base.steps[0].circumstances.prompt_digest).encode()
    changed = rewritten(run, tmp_path, digest, b"other")
    score(changed, "small", "base")
    score(changed, "large", "base")
    own, others = ({each.step: each for each in changed.scores(name)} for name in ("small", "large"))
    assert own[1].why == "the server's template made another prompt when the step was taken"
    assert own[2].logprob is not None
    assert others[1].logprob is not None, "another model has another template"


def served_by(
    url: str, name: str, run: RunFolder, folder: Path, concurrency: int | None = None, **more: Any
) -> RunFolder:
    """A copy of the run whose model `large` is served there under that name."""
    copy = rewritten(run, folder, b"{", b"{")
    study = study_of(url)
    study["models"]["large"] |= {"model": name, "concurrency": concurrency, **more}
    copy.study_file.write_text(to_yaml(validate(study, "test")))
    return copy


def test_a_server_that_is_not_there_is_found_before_anything_is_written(run: RunFolder, tmp_path: Path) -> None:
    gone = served_by("http://127.0.0.1:9/v1", "words", run, tmp_path)
    with pytest.raises(ConfigError, match="no answer from"):
        score(gone, "large")
    assert not gone.scores_folder.exists()


def test_steps_that_could_not_be_asked_stay_owed_and_are_asked_later(run: RunFolder, tmp_path: Path) -> None:
    words, broken = Words(), [True]

    def answer(path: str, asked: Mapping[str, Any]) -> Any:
        last = json.dumps(asked.get("messages", ""))
        return (500, {}) if broken[0] and "exit code" in last and path == "/tokenize" else words(path, asked)

    with serving(answer) as url:
        flaky = served_by(url, "words", run, tmp_path)
        told: list[str] = []
        done = score_run(flaky.path, "large", of="base", twice=False, say=told.append)
        base = next(iter(run.records().bases.values()))
        (first,) = flaky.scores("large")
        assert (first.step, first.how, first.logprob) == (1, "text", -0.5 * (first.tokens or 0))
        readable = [step.index for step in base.steps[1:] if step.reply.logprob is not None]
        assert (done.exit_code, done.owed) == (4, len(readable))
        assert [int(line.split(" step ")[1].split()[0]) for line in told] == readable
        assert all("could not be scored" in line and "HTTP 500" in line for line in told)
        broken[0] = False
        assert score(flaky, "large", "base") == 0
    assert sorted(each.step for each in flaky.scores("large")) == [step.index for step in base.steps]


def test_a_model_that_was_not_free_when_it_acted_is_said(run: RunFolder, tmp_path: Path) -> None:
    for number, body in enumerate(({"structured_outputs": {"regex": "a+"}, "top_k": 5}, {"top_k": 5})):
        (tmp_path / str(number)).mkdir()
        told: list[str] = []
        with serving(Words()) as url:
            held = served_by(url, "words", run, tmp_path / str(number), extra_body=body)
            score_run(held.path, "large", of="base", twice=False, say=told.append)
        assert [("structured_outputs" in line, "do not compare" in line) for line in told] == [(True, True)][number:]


def test_no_more_is_in_flight_than_the_models_server_is_to_have(run: RunFolder, tmp_path: Path) -> None:
    words, lock, flying, most = Words(), threading.Lock(), [0], [0]

    def answer(path: str, asked: Mapping[str, Any]) -> Any:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        threading.Event().wait(0.01)
        with lock:
            flying[0] -= 1
        return words(path, asked)

    for stated, seen in ((None, 4), (1, 1)):
        with serving(answer) as url:
            (tmp_path / str(seen)).mkdir()
            limited = served_by(url, "words", run, tmp_path / str(seen), concurrency=stated)
            most[0] = 0
            assert score(limited, "large", "base") == 0
        assert 1 <= most[0] <= seen


def test_an_interrupt_keeps_what_is_whole_and_the_same_command_goes_on(run: RunFolder, tmp_path: Path) -> None:
    words, asked_for, reached, released = Words(), [0], threading.Event(), threading.Event()

    def answer(path: str, asked: Mapping[str, Any]) -> Any:
        asked_for[0] += path == "/v1/completions"
        if asked_for[0] >= 3:
            reached.set()
            released.wait(60)
        return words(path, asked)

    with serving(answer) as url:
        slow = served_by(url, "words", run, tmp_path)
        one_at_a_time = slow.study_file.read_text().replace("workers: 4", "workers: 1")
        slow.study_file.write_text(one_at_a_time)
        command = [str(FORKROLL), "score", str(slow.path), "--model", "large", "--of", "base"]
        heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whoever started the tests may ignore it
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, text=True, preexec_fn=heeding) as process:
            assert reached.wait(60)
            assert eventually(lambda: len(slow.scores("large")) == 2, 60)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert any("stopping" in line for line in process.stderr)
            released.set()
            _, told = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "stopped: interrupted. 6 scores are owed; what is there is kept" in told
        first = slow.scores_file("large").read_bytes()
        assert score(slow, "large", "base") == 0
    assert slow.scores_file("large").read_bytes().startswith(first)
    assert len(slow.scores("large")) == 8


def test_a_second_scorer_of_one_file_is_refused(fresh: RunFolder) -> None:
    with ScoreLog(fresh, "small"), pytest.raises(JournalError, match="another `forkroll score` is at work"):
        score(fresh, "small")


def test_a_file_that_holds_no_scores_is_named(fresh: RunFolder) -> None:
    fresh.scores_folder.mkdir(exist_ok=True)
    fresh.scores_file("small").write_text('{"kind":"scor"}\n')
    with pytest.raises(JournalError, match=r"small\.jsonl:1: not a score"):
        score(fresh, "small")


def test_a_run_without_records_owes_nothing_and_measures_nothing(tmp_path: Path) -> None:
    study = validate(
        {
            "name": "s",
            "seed": 1,
            "models": {"a": {"client": "scripted", "commands": ["ls"]}},
            "directions": {"up": {"base": "a", "swap": "a"}},
            "forks": {"rule": "absolute", "at": [2]},
        },
        "test",
    )
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    with Journal(folder) as journal:
        journal.start_session(to_yaml(study), {"schema": SCHEMA_VERSION})
    assert score(folder, "a") == 4


def test_a_score_is_a_record_that_is_canonical_as_it_stands() -> None:
    one = Score(cell="t:a", step=1, agent="a", model="b", logprob=-0.5, tokens=2, how="ids")
    assert Score.model_validate_json(one.model_dump_json()) == one
    assert json.loads(canonical_json(one)) == one.model_dump(mode="json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "big"], "no model 'big'; its study has small, large, silent"),
        (["--model", "small", "--of", "bases"], "--of is one of base, branches, all"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(fresh: RunFolder, arguments: list[str], says: str) -> None:
    told = subprocess.run(
        [str(FORKROLL), "score", str(fresh.path), *arguments], capture_output=True, text=True, timeout=60
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert says in told.stderr
    assert told.stderr.count("\n") == 1
    assert not list(fresh.scores_folder.glob("*"))


def test_the_command_prints_the_table(fresh: RunFolder) -> None:
    command = [str(FORKROLL), "score", str(fresh.path), "--model", "large", "--of", "base", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    (table,) = json.loads(told.stdout)
    assert table["rows"][0]["steps"]["value"] == len(fresh.scores("large"))
    assert "remove the file to score anew" in told.stderr
