"""One session of a run: parts are opened, models are checked, and what is owed is run.

What is less than the study asks for is printed where it is found and recorded in the session's entry of the manifest.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.assemble import OpenProvider, open_provider, open_scaffold, scaffold_notes, stage_of
from harness.clean import clean
from harness.clients import OpenModels, open_models, recorded_models
from harness.config import Study, identity, load_study, to_yaml
from harness.errors import ModelError, UsageError
from harness.inspection import Inspection
from harness.journal import Journal, RunFolder
from harness.manifest import new_manifest, prompts_digest, session
from harness.preflight import check_models
from harness.progress import Progress
from harness.record import Task
from harness.resume import card_digests
from harness.sweep import Brakes, Tally
from harness.sweep import run as run_cells
from harness.tasks.protocol import TaskSet

if TYPE_CHECKING:
    from harness.serving.selftest import SelfTest

Say = Callable[[str], None]


@dataclass(frozen=True)
class End:
    """How a session ended."""

    stopped: str | None
    """Why it ended early; None when it did not."""
    tested: "Mapping[str, SelfTest]" = field(default_factory=dict)
    """The study's name of a model -> the self-test of its server, where there was one."""
    refused: bool = False
    """The study demands servers that repeat themselves, and one does not: nothing was run."""


@dataclass(frozen=True)
class Session:
    """What one session works on."""

    study: Study
    tasks: TaskSet
    chosen: Sequence[Task]
    place: RunFolder
    recorded: Path | None
    """A run whose records answer in place of every model."""
    allow_unsandboxed: bool
    say: Say

    def run(self) -> End:
        """Run what is owed. Raises UsageError, with nothing written, when a part cannot be had."""
        study, say = self.study, self.say
        self.tasks.require(self.chosen)
        scratch = self.place.path.absolute() / "sandboxes"
        for reaped in clean([self.place.path], only=self.place.path, containers=study.sandbox.provider == "docker"):
            say(f"note: removed {reaped.kind} {reaped.name}, left by a dead driver")
        asked = open_models(study) if self.recorded is None else nullcontext(recorded_models(study, self.recorded))
        with (
            closing(self.tasks),
            open_provider(self._acting(), scratch, allow_unsandboxed=self.allow_unsandboxed) as sandboxes,
            asked as models,
        ):
            unchecked = check_models(study, self.chosen, open_scaffold(study), models.spoken)
            degraded = [*sandboxes.degraded, *models.notes(), *unchecked]
            departures = scaffold_notes(study, sandboxes.provider)
            for note in (*degraded, *departures, *self._about_source()):
                say(f"note: {note}")
            entry = session(sandboxes.provider.name, degraded, models.facts)
            entry |= {"scaffold_notes": departures, "grader": dict(self.tasks.facts())}
            return self._go_on(sandboxes, models, entry)

    def _go_on(self, sandboxes: OpenProvider, models: OpenModels, entry: dict[str, Any]) -> End:
        """From the first thing written to the last; `entry` is this session's in the manifest."""
        study, place = self.study, self.place
        with Journal(place) as journal:
            manifest = self._manifest(entry)
            journal.keep_tasks(self.chosen)
            journal.start_session(to_yaml(study), manifest)
            for name in place.records().torn:
                self.say(f"note: the last line of records/{name} was torn by a kill; its cell is run again")
            tested = self._self_test(models)
            entry["determinism"] = {name: found.facts() for name, found in tested.items()}
            journal.start_session(to_yaml(study), manifest)
            if study.determinism.mode == "required" and (why := _not_deterministic(tested)):
                return End(why, tested, refused=True)
            brakes = Brakes(study, journal, calls_before=place.records().calls())
            inspection = Inspection(
                self.tasks, manifest, lambda: journal.start_session(to_yaml(study), manifest), self.say
            )
            tallies = self._run_cells(sandboxes, models, journal, brakes, inspection)
            self._record_what_use_showed(entry, sandboxes, models, brakes)
            journal.start_session(to_yaml(study), manifest)
        return End(next((tally.stopped for tally in tallies if tally.stopped), None), tested)

    def _manifest(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The run's manifest with this session's entry."""
        fresh = new_manifest(self.study, open_scaffold(self.study), self.chosen)
        manifest = self.place.manifest() if self.place.exists() else fresh
        manifest["sessions"].append(entry)
        manifest["cards"] = card_digests(self.study)
        manifest["tasks"] |= fresh["tasks"]
        return manifest

    def _run_cells(
        self,
        sandboxes: OpenProvider,
        models: OpenModels,
        journal: Journal,
        brakes: Brakes,
        inspection: Inspection,
    ) -> Sequence[Tally]:
        stage = stage_of(self.study, self.tasks, sandboxes.provider, models.clients, grading=sandboxes.grading)
        stage = replace(stage, inspect=inspection.inspect)
        with stop_on_signals(brakes.requested, self.say), Progress() as progress:
            return run_cells(self.study, self.chosen, stage, journal, brakes, progress.watch)

    def _record_what_use_showed(
        self, entry: dict[str, Any], sandboxes: OpenProvider, models: OpenModels, brakes: Brakes
    ) -> None:
        unread = brakes.unread(least=1)
        entry["models_in_use"] = {name: one.client.facts() for name, one in models.spoken.items()}
        record_what_use_showed(entry, sandboxes, self.say, [*models.notes(), *([unread] if unread else [])])

    def _self_test(self, models: OpenModels) -> "Mapping[str, SelfTest]":
        """Of every model behind a server; empty where the study asks for none."""
        wanted = self.study.determinism
        if wanted.mode == "off":
            return {}
        from harness.determinism import test_servers

        asked = {name: one.asking for name, one in models.spoken.items()}
        for name in sorted(self.study.models.keys() - asked.keys()):
            self.say(f"note: model {name!r} is behind no server; there is nothing to self-test")
        self.say(f"self-test of {', '.join(asked) or 'no model'}")
        scaffold, temperature = open_scaffold(self.study), self.study.sampling.temperature
        try:
            tested = test_servers(asked, scaffold, self.chosen, self.tasks.tasks(), wanted, temperature=temperature)
        except ModelError as error:
            raise UsageError(f"{error}; set determinism=off to run without a self-test") from None
        for found in tested.values():
            self.say(f"self-test: {found.line()}")
        return tested

    def _acting(self) -> Study:
        """The study with the models whose commands are run: a real one's are no tamer for being recorded."""
        if self.recorded is None:
            return self.study
        return self.study.model_copy(update={"models": load_study(str(RunFolder(self.recorded).study_file)).models})

    def _about_source(self) -> Iterator[str]:
        """Who answers, and where the study that was recorded is another one: what hangs on that is a miss."""
        recorded, study = self.recorded, self.study
        if recorded is None:
            return
        yield f"models answer from the records of {recorded}; no server is asked"
        before, now = identity(load_study(str(RunFolder(recorded).study_file))), identity(study)
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and not key.startswith("models."):
                yield f"{recorded} was made with `{key}` {before.get(key)!r}, this study has {now.get(key)!r}"
        if RunFolder(recorded).manifest()["prompts_digest"] != prompts_digest(open_scaffold(study)):
            yield f"the prompts were changed since {recorded} was made"


def record_what_use_showed(entry: dict[str, Any], sandboxes: OpenProvider, say: Say, notes: Sequence[str] = ()) -> None:
    """Images, what this machine lacks and what a server leaves out are known only once they have been used."""
    providers = {"sandbox_facts": sandboxes.provider, "grading_facts": sandboxes.grading}
    used = {place: provider for place, provider in providers.items() if provider is not None}
    for note in (*(note for provider in used.values() for note in provider.degraded), *notes):
        if note not in entry["degraded"]:
            say(f"note: {note}")
            entry["degraded"].append(note)
    entry |= {place: provider.facts for place, provider in used.items() if provider.facts}


def _not_deterministic(tested: "Mapping[str, SelfTest]") -> str | None:
    """Which models do not repeat themselves; None when all do."""
    bad = [f"{name} ({', '.join(found.broken)})" for name, found in tested.items() if not found.deterministic]
    return f"determinism is required, and these models do not repeat themselves: {'; '.join(bad)}" if bad else None


@contextmanager
def stop_on_signals(requested: threading.Event, say: Say) -> Iterator[None]:
    """First SIGINT or SIGTERM: start nothing new, finish what is under way. Second: abandon that too."""

    def stop(number: int, frame: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        say("stopping: no new cell starts, those under way are finished; press Ctrl-C again to abandon them")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
