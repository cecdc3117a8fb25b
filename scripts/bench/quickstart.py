"""Where the processor time of the quickstart study goes: driver, client, server, sandboxes."""

import os
import tempfile
import time
from pathlib import Path

from meter import Meter, MeteredClient, MeteredProvider

from harness.assemble import open_provider, open_scaffold, open_tasks, select_tasks, stage_of
from harness.clients import open_models
from harness.config import load_study, to_yaml
from harness.journal import Journal, RunFolder
from harness.manifest import new_manifest
from harness.sweep import Brakes, run


def main() -> None:
    study = load_study("quickstart")
    tasks = open_tasks(study)
    chosen = select_tasks(study, tasks)
    meter = Meter()
    wall, own = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        place = RunFolder(Path(folder) / "run")
        with (
            open_provider(study, Path(folder) / "sandboxes", allow_unsandboxed=False) as sandboxes,
            open_models(study) as models,
            Journal(place) as journal,
        ):
            journal.start_session(to_yaml(study), new_manifest(study, open_scaffold(study), chosen))
            clients = {name: MeteredClient(client, meter) for name, client in models.clients.items()}
            stage = stage_of(study, tasks, MeteredProvider(sandboxes.provider, meter), clients)
            run(study, chosen, stage, journal, Brakes(study, journal, calls_before=0), lambda tally: None)
            server = sum(process.cpu_seconds() for process in models.servers)
        records = place.records()
    own, wall = time.process_time() - own, time.monotonic() - wall
    spent = os.times()
    children = spent.children_user + spent.children_system
    everything = own + children
    rest = own - meter.total()
    size = f"{len(records.bases)} bases, {len(records.branches)} branches, {records.calls()} calls"
    print(f"quickstart: {size}, {wall:.1f} s")
    print(f"  all processor time            {everything:7.2f} s  100.0%")
    lines = {f"driver: {name}": seconds for name, seconds in sorted(meter.seconds.items())}
    lines |= {
        "driver: everything else": rest,
        "model server": server,
        "sandboxes and their commands": children - server,
    }
    for name, seconds in lines.items():
        print(f"  {name:<29} {seconds:7.2f} s  {seconds / everything:6.1%}")
    less_client = own - meter.seconds.get("client", 0.0)
    print(f"  driver less client and server: {less_client / everything:.1%} of all (limit 15%)")


if __name__ == "__main__":
    main()
