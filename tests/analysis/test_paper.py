"""The released files give the printed numbers; a damaged folder gives one line that names what is wrong."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from analysis import paper, patches
from analysis.paper import CELLS, DIRECTIONS, RUNS, PaperDataError, figures, load_release, paired_deltas

DATA = Path(os.environ.get("FORKROLL_DATA", Path(__file__).parents[3] / "shared/data")) / "replay_gap"
needs_data = pytest.mark.skipif(not (DATA / "summary.json").exists(), reason=f"no released files in {DATA}")


@pytest.fixture(scope="module")
def release():
    return load_release(DATA)


def bare(value, digits=3):
    return f"{value:.{digits}f}".removeprefix("0")


@needs_data
@pytest.mark.parametrize("name", CELLS, ids="-".join)
def test_table_1_as_printed(release, name):
    got, printed = figures(release.cell(*name, "rank")), paper.TABLE_1[name]
    assert str(got.n) == printed.n
    assert bare(got.edit) == printed.edit
    assert f"{100 * got.parted / got.n:.1f}" == printed.diverged
    assert f"{100 * got.agreement:.1f}" == printed.validity
    if name == ("down", "swap", "early"):
        assert (f"{got.first:.3f}", printed.first) == ("2.045", "2.1")  # 2.045 -> 2.05 -> 2.1
    else:
        assert f"{got.first:.1f}" == printed.first


CORRECTED = {  # pure extensions, content-divergent %, edit with pure extensions at 0 (G20)
    ("up", "control", "early"): (14, 79.5, ".661"),
    ("up", "control", "late"): (41, 44.0, ".335"),
    ("up", "swap", "early"): (0, 100.0, ".941"),
    ("up", "swap", "late"): (21, 73.3, ".629"),
    ("down", "control", "early"): (12, 36.7, ".228"),
    ("down", "control", "late"): (24, 23.3, ".135"),
    ("down", "swap", "early"): (2, 94.4, ".894"),
    ("down", "swap", "late"): (11, 71.1, ".601"),
}
CONTEXT = {
    ("up", "early"): ".094",
    ("down", "early"): ".130",
    ("up", "late"): ".443",
    ("down", "late"): ".483",
}


@needs_data
@pytest.mark.parametrize("name", CELLS, ids="-".join)
def test_corrected_columns(release, name):
    got = figures(release.cell(*name, "rank"))
    extended, content, edit = CORRECTED[name]
    assert got.kinds["extended"] == extended
    assert round(100 * got.kinds["diverged"] / got.n, 1) == content
    assert bare(got.adjusted_edit) == edit
    assert sum(got.kinds.values()) == got.n
    assert got.parted == got.n - got.kinds["identical"]
    if name[1] == "swap":
        assert bare(got.context) == CONTEXT[name[0], name[2]]


@needs_data
@pytest.mark.parametrize(("direction", "tier"), RUNS)
def test_per_pair_edit_distances_as_printed(release, direction, tier):
    for arm in paper.ARMS:
        for depth in paper.DEPTHS:
            got = figures(release.cell(direction, arm, depth, "rank", tier))
            assert bare(got.edit) == paper.PAIRS[direction, tier].of(arm, depth)


@needs_data
def test_paired_deltas(release):
    got = {w: paired_deltas(release, *w, bucket="rank") for w in paper.DELTAS}
    assert {w: f"+{bare(d.mean)}" for w, d in got.items()} == {
        ("up", "early"): "+.267",
        ("up", "late"): "+.256",
        ("down", "early"): "+.663",
        ("down", "late"): "+.453",
    }
    assert [len(d.values) for d in got.values()] == [88, 88, 90, 90]
    assert [len(set(d.instances)) for d in got.values()] == [55, 55, 56, 56]


@needs_data
@pytest.mark.parametrize(
    ("measure", "expected"), [("edit", None), ("adjusted_edit", ["+.280", "+.287", "+.666", "+.466"])]
)
def test_the_deepest_fork_alone_gives_the_published_and_the_adjusted_deltas(release, measure, expected):
    got = [
        paired_deltas(release, *w, bucket="rank", late="deepest", measure=lambda row: getattr(row, measure))
        for w in paper.DELTAS
    ]
    assert [f"+{bare(d.mean)}" for d in got] == (expected or [p.delta for p in paper.DELTAS.values()])


@needs_data
def test_bounds_of_the_delta_on_the_shorter_list(release):
    got = {w: paper.truncated_delta_bounds(release, *w, bucket="rank") for w in paper.DELTAS}
    assert {w: tuple(round(end, 2) for end in b) for w, b in got.items()} == {
        ("up", "early"): (0.13, 0.29),
        ("up", "late"): (0.15, 0.30),  # .1549; M8 prints .16
        ("down", "early"): (0.63, 0.70),
        ("down", "late"): (0.42, 0.48),
    }


@needs_data
def test_intervals_lie_near_the_published_ones(release):
    for where, printed in paper.DELTAS.items():
        deltas = paired_deltas(release, *where, bucket="rank", late="deepest")
        means = paper.bootstrap(deltas, "pair", np.random.default_rng(7), 20_000)
        want = [float(end) for end in printed.interval.strip("[]").split(", ")]
        assert paper.percentile_interval(means, 0.95) == pytest.approx(want, abs=0.01)


@needs_data
def test_the_generator_decides_the_resamples_and_the_unit_matters(release):
    deltas = paired_deltas(release, "down", "early", bucket="rank")

    def run(seed, unit):
        return paper.bootstrap(deltas, unit, np.random.default_rng(seed), 500)

    assert np.array_equal(run(1, "pair"), run(1, "pair"))
    assert not np.array_equal(run(1, "pair"), run(2, "pair"))
    assert not np.array_equal(run(1, "pair"), run(1, "instance"))


def test_drawing_instances_keeps_their_pairs_together():
    deltas = paper.PairedDeltas(np.array([0.0, 0.0, 1.0, 1.0, 1.0]), ("a", "a", "b", "b", "b"))
    means = paper.bootstrap(deltas, "instance", np.random.default_rng(0), 200)
    assert set(means) <= {0.0, 3 / 5, 1.0}
    assert len(set(paper.bootstrap(deltas, "pair", np.random.default_rng(0), 200))) > 3


def test_one_unit_is_too_few():
    deltas = paper.PairedDeltas(np.array([0.5, 0.1]), ("a", "a"))
    with pytest.raises(ValueError, match="at least two"):
        paper.bootstrap(deltas, "instance", np.random.default_rng(0), 10)


@needs_data
def test_share_that_differs_at_the_fork_decision(release):
    for name, printed in paper.AT_ZERO.items():
        got = figures(release.cell(*name, "rank"))
        assert f"{100 * got.at_zero / got.n:.1f}" == printed
    swaps = figures([r for r in release.branches if r.arm == "swap"])
    assert f"{100 * swaps.at_zero / swaps.n:.1f}" == paper.AT_ZERO_ALL_SWAPS


@needs_data
@pytest.mark.parametrize("key", RUNS)
def test_exit_statuses_as_printed(release, key):
    got = paper.exit_counts(release, RUNS[key])
    assert tuple(got[status] for status in paper.STATUSES) == paper.EXITS[key]
    assert got.total() == sum(paper.EXITS[key])


@needs_data
def test_fidelity_as_far_as_it_is_released(release):
    whole = paper.fidelity(release.branches)
    assert (whole.checked, whole.unrecorded, whole.without_prefix) == (708, 3, 6)
    assert (whole.mismatched, whole.mismatches, whole.actions) == (1, 1, None)
    for key, printed in paper.FIDELITY.items():
        got = paper.fidelity([r for r in release.branches if (r.direction, r.tier) == key])
        assert str(got.checked) == printed.branches
        if key[0] == "up":  # one action a turn in every suffix
            assert str(got.actions) == printed.actions
        else:
            assert got.actions is None
            assert got.turns < int(printed.actions)


@needs_data
def test_log_stitched_patches_as_printed(release):
    for where, printed in paper.STITCH.items():
        got = paper.log_stitch(release, *where, bucket="rank")
        assert (str(got.n), str(got.either), bare(got.similarity)) == (
            printed.n,
            printed.either,
            printed.similarity,
        )
    assert [bare(paper.self_reference(release, d).similarity, 2) for d in DIRECTIONS] == [".31", ".53"]


@needs_data
def test_patch_measures_equal_every_released_row(release):
    rows = {
        (run, row["instance_id"], row["alias"], row["fork_step"]): row
        for run in RUNS.values()
        for row in json.loads((DATA / f"{run}.divergence.json").read_text())
    }
    assert len(rows) == len(release.branches) == 717
    for r in release.branches:
        alias = paper.BASE_ALIAS[r.direction] if r.arm == "control" else paper.BASE_ALIAS[other(r.direction)]
        row, got = rows[r.base.run, r.instance, alias, r.fork_step], patches.compare(r.base.patch, r.patch)
        assert got.similarity == pytest.approx(row["patch_similarity"], abs=1e-12)
        assert got.file_jaccard == pytest.approx(row["file_jaccard"], abs=1e-12)
        assert got.identical == row["patch_identical"]


def other(direction):
    return "down" if direction == "up" else "up"


@needs_data
def test_the_five_stale_rows(release):
    stale = {(r.base.run, r.instance, r.arm, r.fork_step) for r in paper.stale_rows(release)}
    assert stale == {
        ("pilot30", "django__django-11299", "swap", 5),
        ("pilot30", "django__django-11299", "control", 5),
        ("pilot30", "django__django-11299", "control", 12),
        ("pilot30", "django__django-14672", "swap", 1),
        ("pilot30", "django__django-14672", "control", 1),
    }


@needs_data
def test_tiers_overlap(release):
    assert len({r.instance for r in release.branches}) == 56
    assert paper.overlap(release, "up") == (55, 29, 4)
    assert paper.overlap(release, "down") == (56, 30, 4)


@needs_data
def test_the_released_bucket_counts_other_rows(release):
    counts = [len(release.cell("up", "control", depth, "released")) for depth in paper.DEPTHS]
    assert counts == [91, 88]


@needs_data
def test_mean_tokens(release):
    tokens = paper.base_tokens(release)
    assert (round(tokens.prompt / 1000), round(tokens.completion / 1000, 1)) == (333, 6.6)


# ---------------------------------------------------------------------- a small folder of the same shape

BASE = {
    "arm": "base",
    "alias": None,
    "fork_step": None,
    "exit_status": "Submitted",
    "patch": "",
    "n_steps": 10,
}
TOKENS = {"prompt_tokens": 100, "completion_tokens": 10}
DIVERGENCE = {
    "edit_distance": 2,
    "normalized_edit_distance": 0.4,
    "first_divergent_action": 1,
    "n_actions_base": 5,
    "n_actions_branch": 4,
    "patch_similarity": 1.0,
    "fork_bucket": "early",
    "replay_mismatches": 0,
}


@pytest.fixture
def folder(tmp_path):
    """One instance, both arms, early and late, in every run."""
    summary = []
    for run in RUNS.values():
        summary.append(BASE | TOKENS | {"run": run, "instance_id": "i"})
        rows = []
        for alias in ("small", "large"):
            for step in (3, 7):
                key = {"instance_id": "i", "alias": alias, "fork_step": step}
                rows.append(DIVERGENCE | key | {"fork_bucket": "early" if step == 3 else "late"})
                summary.append(BASE | TOKENS | key | {"run": run, "arm": "branch"})
        write(tmp_path, f"{run}.divergence", rows)
    write(tmp_path, "summary", summary)
    return tmp_path


def write(folder, name, value):
    (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def change(folder, name, row, **fields):
    rows = json.loads((folder / f"{name}.json").read_text())
    rows[row] |= fields
    write(folder, name, rows)


def test_a_small_folder_loads(folder):
    small = load_release(folder)
    assert (len(small.bases), len(small.branches), small.unscored) == (6, 24, 0)
    assert figures(small.cell("up", "swap", "early", "rank")).n == 3
    assert not paper.stale_rows(small)


def test_kinds_and_their_edits(folder):
    change(folder, "easy.divergence", 0, first_divergent_action=5, n_actions_branch=6, edit_distance=1)
    row = next(r for r in load_release(folder).branches if r.parted.kind == "extended")
    assert (row.edit, row.adjusted_edit) == (0.4, 0.0)
    assert [r.edits for r in paper.inconsistent_rows(load_release(folder))] == [1]


def test_a_base_without_its_branch_rows_is_counted(folder):
    write(folder, "nudge.divergence", [])
    assert load_release(folder).unscored == 4


def test_empty_cells_have_no_means(folder):
    for run in RUNS.values():
        write(folder, f"{run}.divergence", [])
    got = figures(load_release(folder).cell("up", "swap", "early", "rank"))
    assert got.n == 0
    assert got.edit is got.first is got.agreement is got.context is None


def test_early_is_the_smallest_step_per_alias(folder):
    change(folder, "easy.divergence", 0, fork_step=5)
    change(folder, "summary", 6, fork_step=5)
    easy = [r for r in load_release(folder).branches if r.base.run == "easy" and r.arm == "control"]
    assert [(r.fork_step, r.rank_depth, r.stale) for r in easy] == [(5, "early", True), (7, "late", False)]


@pytest.mark.parametrize("name", ["summary", *(f"{run}.divergence" for run in RUNS.values())])
def test_a_missing_file_is_named(folder, name):
    (folder / f"{name}.json").unlink()
    with pytest.raises(PaperDataError, match=rf"no {name}\.json in "):
        load_release(folder)


NEEDED = [*DIVERGENCE, "instance_id", "alias", "fork_step"]


@pytest.mark.parametrize("field", NEEDED)
def test_a_missing_field_is_named(folder, field):
    rows = json.loads((folder / "easy.divergence.json").read_text())
    del rows[2][field]
    write(folder, "easy.divergence", rows)
    with pytest.raises(PaperDataError, match=rf"easy\.divergence\.json row 2: no field '{field}'"):
        load_release(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_actions_base": "5"},
        {"n_actions_base": True},
        {"n_actions_base": None},
        {"n_actions_base": -1},
        {"n_actions_base": 10**400},
        {"normalized_edit_distance": float("nan")},
        {"normalized_edit_distance": 10**400},
        {"normalized_edit_distance": 1.5},
        {"first_divergent_action": 9},
        {"first_divergent_action": None},
        {"first_divergent_action": 4, "n_actions_branch": 4, "n_actions_base": 4},
        {"alias": "medium"},
        {"fork_bucket": "middle"},
        {"fork_step": 0},
        {"fork_step": 7},
        {"fork_step": 4},
        {"instance_id": "unknown"},
    ],
    ids=str,
)
def test_an_impossible_row_is_refused_in_one_line(folder, fields):
    change(folder, "easy.divergence", 0, **fields)
    with pytest.raises(PaperDataError) as caught:
        load_release(folder)
    message = str(caught.value)
    assert "easy.divergence.json row" in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", "\ud800", '[{"run": 3}]', "[" * 100_000])
def test_a_damaged_file_is_refused_in_one_line(folder, content):
    (folder / "summary.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(PaperDataError) as caught:
        load_release(folder)
    assert "summary.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_second_base_is_refused(folder):
    change(folder, "summary", 5, instance_id="i", run="pilot30")
    with pytest.raises(PaperDataError, match="a second base"):
        load_release(folder)
