"""The layers hold: a file imports only from lower levels, harness never imports analysis (its command line apart),
and analysis knows of harness only records and the journal. The table is DESIGN.md's."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LEVELS = {
    "harness": 0,
    "harness.record": 0,
    "harness.errors": 0,
    "harness.bundled": 0,
    "harness.normalise": 0,
    "harness.compare": 1,
    "harness.config": 1,
    "harness.journal": 1,
    "harness.routing": 1,
    "harness.sandbox": 1,
    "harness.sandbox.protocol": 1,
    "harness.sandbox.tree": 2,
    "harness.sandbox.shell": 2,
    "harness.sandbox.archive": 2,
    "harness.sandbox.layers": 3,
    "harness.sandbox.spawner": 2,
    "harness.sandbox.engine": 3,
    "harness.sandbox.pool": 2,
    "harness.sandbox.inside": 3,
    "harness.sandbox.container": 4,
    "harness.sandbox.images": 5,
    "harness.sandbox.changes": 6,
    "harness.sandbox.docker": 7,
    "harness.sandbox.disk": 2,
    "harness.sandbox.live": 3,
    "harness.sandbox.local": 4,
    "harness.sandbox.namespace": 4,
    "harness.sandbox.recorded": 4,
    "harness.serving": 1,
    "harness.serving.card": 2,
    "harness.serving.keeper": 0,
    "harness.serving.address": 2,
    "harness.serving.asking": 3,
    "harness.serving.epoch": 3,
    "harness.serving.command": 3,
    "harness.serving.facts": 4,
    "harness.serving.server": 5,
    "harness.serving.selftest": 4,
    "harness.tasks": 1,
    "harness.tasks.protocol": 2,
    "harness.tasks.pocket": 3,
    "harness.tasks.rows": 2,
    "harness.tasks.selection": 2,
    "harness.tasks.swebench_worker": 2,
    "harness.tasks.official": 3,
    "harness.tasks.swebench": 4,
    "harness.model": 1,
    "harness.model.protocol": 1,
    "harness.model.scripted": 2,
    "harness.model.suspect": 0,
    "harness.model.gate": 1,
    "harness.model.keys": 1,
    "harness.model.patience": 1,
    "harness.model.digest": 2,
    "harness.model.ledger": 2,
    "harness.model.request": 2,
    "harness.model.said": 2,
    "harness.model.repeat": 2,
    "harness.model.reading": 3,
    "harness.model.transport": 2,
    "harness.model.refusals": 3,
    "harness.model.recorded": 3,
    "harness.model.scoring": 4,
    "harness.model.openai": 5,
    "harness.model.simulated": 1,
    "harness.model.simulated.tokens": 1,
    "harness.model.simulated.profiles": 1,
    "harness.model.simulated.noise": 1,
    "harness.model.simulated.mixture": 1,
    "harness.model.simulated.process": 1,
    "harness.model.simulated.menu": 4,
    "harness.model.simulated.choice": 5,
    "harness.model.simulated.engine": 6,
    "harness.model.simulated.wire": 7,
    "harness.model.simulated.client": 8,
    "harness.model.simulated.api": 8,
    "harness.model.simulated.server": 9,
    "harness.difference": 0,
    "harness.exporters": 1,
    "harness.exporters.statuses": 2,
    "harness.exporters.mini": 3,
    "harness.exporters.run": 13,
    "harness.importers": 1,
    "harness.importers.protocol": 1,
    "harness.importers.clocks": 1,
    "harness.importers.answers": 1,
    "harness.importers.files": 2,
    "harness.importers.mini": 4,
    "harness.importers.sweagent": 5,
    "harness.importers.own": 10,
    "harness.importers.verdicts": 1,
    "harness.importers.continuing": 6,
    "harness.importing": 13,
    "harness.scaffold": 1,
    "harness.scaffold.protocol": 2,
    "harness.scaffold.stream": 1,
    "harness.scaffold.templates": 1,
    "harness.scaffold.mini_config": 3,
    "harness.scaffold.mini_words": 4,
    "harness.scaffold.mini": 5,
    "harness.prompting": 3,
    "harness.score": 3,
    "harness.snapshots": 2,
    "harness.gradings": 4,
    "harness.agent": 4,
    "harness.loop": 5,
    "harness.fork": 6,
    "harness.branch": 7,
    "harness.manifest": 3,
    "harness.sweep": 8,
    "harness.determinism": 5,
    "harness.progress": 9,
    "harness.estimate": 9,
    "harness.preflight": 9,
    "harness.clients": 6,
    "harness.assemble": 9,
    "harness.inspection": 8,
    "harness.resume": 10,
    "harness.session": 11,
    "harness.run": 12,
    "harness.selftests": 10,
    "harness.reference": 13,
    "harness.revisit": 13,
    "harness.regrade": 13,
    "harness.clean": 8,
    "harness.show": 2,
    "harness.doctor": 8,
    "harness.truth": 10,
    "harness.forced": 13,
    "harness.cli": 14,
    "analysis": 0,
    "analysis.table": 1,
    "analysis.divergence": 0,
    "analysis.patches": 0,
    "analysis.load": 1,
    "analysis.effects": 2,
    "analysis.flips": 2,
    "analysis.flakes": 2,
    "analysis.task_table": 2,
    "analysis.fidelity": 2,
    "analysis.paper": 2,
    "analysis.paper_tables": 3,
    "analysis.fork_tables": 3,
    "analysis.score_table": 2,
    "analysis.selftest_table": 2,
}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("harness", "analysis"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in dict(modules()) else str(node.module)


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] in ("harness", "analysis")}


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_a_file_imports_only_from_lower_levels(name: str, path: Path) -> None:
    assert name in LEVELS, f"{name} has no level: give it one here and in DESIGN.md"
    upward = [
        other for other in ours(path) if other.split(".")[0] == name.split(".")[0] and LEVELS[other] >= LEVELS[name]
    ]
    packages = {other for other in upward if name.startswith(other + ".") or other in ("harness", "analysis")}
    assert [other for other in upward if other not in packages] == []


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_the_two_packages_meet_in_two_places_only(name: str, path: Path) -> None:
    across = {other for other in ours(path) if other.split(".")[0] != name.split(".")[0]}
    if name.startswith("analysis"):
        assert across <= {"harness.record", "harness.journal"}
    elif name != "harness.cli":
        assert across == set()


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [str(path) for _, path in modules() if path.stem in FORBIDDEN_NAMES] == []


def test_the_table_has_no_ghosts() -> None:
    assert set(LEVELS) - {name for name, _ in modules()} == set()
