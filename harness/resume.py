"""Which folder a study's run lives in, whether what lies there is this very study's, and what it still owes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.assemble import open_scaffold
from harness.clients import cards_of
from harness.config import Study, identity, load_study
from harness.errors import JournalError, UsageError
from harness.journal import Records, RunFolder
from harness.manifest import new_manifest
from harness.record import Task
from harness.sweep import base_agents, imported_bases, owed, plan_bases, plan_branches


def run_folder(study: Study, tasks: Sequence[Task], path: Path, force_new: bool) -> RunFolder:
    """The folder for this study: new, or one that this very study made before."""
    place = RunFolder(path)
    differences = _differences(study, tasks, place) if place.exists() else []
    if not differences:
        if path.exists() and not place.exists() and any(path.iterdir()):
            raise JournalError(f"{path}: exists, is not empty and is no run folder; choose another with --run")
        return place
    if not force_new:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise JournalError(f"{path}: made by another study: {differences[0]}{more}; use --force-new or --run DIR")
    number = 2
    while (sibling := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return RunFolder(sibling)


def _differences(study: Study, tasks: Sequence[Task], place: RunFolder) -> list[str]:
    """What makes the stored study another one. More replicates or tasks extend a run; they do not make another."""
    stored = load_study(str(place.study_file))
    before, now = identity(stored), identity(study)
    found = [
        f"`{key}` was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not _extends(key, before.get(key), now.get(key))
    ]
    manifest, fresh = place.manifest(), new_manifest(study, open_scaffold(study), tasks)
    if manifest["prompts_digest"] != fresh["prompts_digest"]:
        found.append("the prompts were changed since")
    cards = manifest.get("cards", {})
    found += [
        f"the card of model {name} was changed since"
        for name, digest in card_digests(study).items()
        if cards.get(name, digest) != digest
    ]
    changed = [name for name, value in fresh["tasks"].items() if manifest["tasks"].get(name, value) != value]
    return found + [f"task {name} was changed since" for name in changed]


def card_digests(study: Study) -> dict[str, str]:
    """The study's name of a model -> digest of its card."""
    return {name: card.digest for name, card in cards_of(study).items()}


def _extends(key: str, before: Any, now: Any) -> bool:
    if key == "replicates":
        return bool(now > before)
    if key == "tasks.count":
        return now is None or (before is not None and now > before)
    if key == "tasks.ids":
        return now is None or (before is not None and set(before) <= set(now))
    return False


def cells_owed(study: Study, tasks: Sequence[Task], records: Records) -> int:
    """Cells without a record; branches of bases that are not there yet are not counted: their number is unknown."""
    bases = owed(plan_bases(study, tasks), records)
    return len(bases) + len(owed(plan_branches(study, tasks, records.bases), records))


def missing_imports(study: Study, tasks: Sequence[Task], place: RunFolder) -> list[str]:
    """Bases that were to be imported and were not; UsageError where a model that cannot be asked has none at all."""
    wanted = imported_bases(study, tasks)
    bases = place.records().bases if wanted else {}
    for agent in sorted(study.imported & set(base_agents(study))):
        if all(base.agent != agent for base in bases.values()):
            raise UsageError(
                f"model {agent!r} is imported and {place.path} has no base of it; first: "
                f"forkroll import KIND LOGS --study STUDY --agent {agent} --run {place.path}"
            )
    return [cell_id for cell_id in wanted if cell_id not in bases]
