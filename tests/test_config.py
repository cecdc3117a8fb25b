"""Bad input is one clear line that names the key; good input comes back as it was."""

from pathlib import Path

import pytest

from harness.config import Study, identity, load_study, to_yaml
from harness.errors import ConfigError

GOOD = """
name: s
seed: 1
models:
  a: {client: simulated, profile: small}
  b: {client: scripted, commands: [ls]}
directions: {up: {base: a, swap: b}}
forks: {rule: paper_fraction, at: [0.3]}
"""


def load(tmp_path: Path, text: str = GOOD, *overrides: str) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return load_study(str(path), overrides)


def test_a_resolved_study_reads_back_as_itself(tmp_path: Path) -> None:
    study = load(tmp_path)
    assert load(tmp_path, to_yaml(study)) == study


def test_bundled_studies_are_found_by_name() -> None:
    assert load_study("quickstart").name == "quickstart"


def test_overrides_reach_nested_keys(tmp_path: Path) -> None:
    study = load(tmp_path, GOOD, "limits.run.calls=7", "models.a.noise=off", "replicates=3")
    assert study.limits.run.calls == 7
    assert study.models["a"].model_dump()["noise"] == "off"
    assert study.replicates == 3


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("replicate=2", "unknown key `replicate`; did you mean `replicates`?"),
        ("limits.cals=2", "unknown key `limits.cals`; did you mean `calls`?"),
        ("models.a.proflie=small", "unknown key `models.a.proflie`; did you mean `profile`?"),
        ("limits.run.second=2", "did you mean `seconds`?"),
        ("replicates=two", "`replicates`: Input should be a valid integer"),
        ("replicates=0", "greater than or equal to 1"),
        ("forks.at=[1.5]", "fractions must lie strictly between 0 and 1, not 1.5"),
        ("forks.at=[0]", "not 0"),
        ("forks.at=[]", "`at` is empty"),
        ("forks.rule=absolute", "whole numbers"),
        ("models.a.client=simulatd", "models.a"),
        ("directions.up.swap=c", "names model 'c', which is not among models: a, b"),
        ("determinism=requird", "`determinism.mode`"),
        ("models.a={client: served}", "`models.a.card` is missing"),
        ("models.a={client: served, crad: x, card: y}", "did you mean `card`?"),
        ("sandbox=dcoker", "`sandbox.provider`"),
        ("seed=", "`seed`"),
        ("nonsense", "not of the form key=value"),
        ("name.x=1", "holds no keys"),
        ("seed=[", "not valid YAML"),
    ],
)
def test_a_fault_is_one_line_that_says_where(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD, override)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("word", "mode"), [("off", "off"), ("measure", "measure"), ("{mode: off}", "off")])
def test_a_bare_word_stands_for_the_mode_of_the_gate(tmp_path: Path, word: str, mode: str) -> None:
    assert load(tmp_path, GOOD, f"determinism={word}").determinism.mode == mode


def test_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`seed` is missing"):
        load(tmp_path, GOOD.replace("seed: 1\n", ""))


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "just text"])
def test_what_is_no_study_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"study\.yaml"):
        load(tmp_path, text)


def test_missing_file_names_the_bundled_studies() -> None:
    with pytest.raises(ConfigError, match=r"bundled studies: .*quickstart"):
        load_study("no-such-study")


def test_identity_leaves_out_operational_keys_only(tmp_path: Path) -> None:
    operational = ("workers=9", "retries=0", "limits.run.calls=1", "sandbox.pool=0", "determinism=required")
    same = [load(tmp_path, GOOD, key) for key in operational]
    other = [load(tmp_path, GOOD, key) for key in ("seed=2", "limits.calls=9", "models.a.noise=off")]
    assert all(identity(study) == identity(load(tmp_path)) for study in same)
    assert all(identity(study) != identity(load(tmp_path)) for study in other)
