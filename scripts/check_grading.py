"""See scripts/check_grading."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.tasks.official import Official
from tests.tasks.recorded import ROOT, recorded_logs, recorded_reports


def verdicts(pairs: Sequence[tuple[bool, bool]]) -> str:
    """(ours, recorded) counted."""
    counted = Counter(pairs)
    cells = [
        f"{'resolved' if r else 'unresolved'}: {counted[r, r]} as recorded, {counted[not r, r]} not" for r in (1, 0)
    ]
    return f"{len(pairs)} graded; recorded {cells[0]}; recorded {cells[1]}"


def main() -> None:
    data = Path(os.environ.get("FORKROLL_DATA", ROOT.parent / "shared" / "data"))
    if not data.is_dir():
        sys.exit(f"no development data at {data}; set FORKROLL_DATA")
    clock = time.monotonic()
    official = Official()
    print(f"swebench {official.package.version}: ready after {time.monotonic() - clock:.1f} s")
    clock = time.monotonic()
    logs = [(bool(official.report(log.task, log.log)["resolved"]), log.resolved) for log in recorded_logs(data)]
    print(f"  logs     {verdicts(logs)}; {time.monotonic() - clock:.1f} s")
    reports = recorded_reports(data)
    tested = [report for report in reports if "tests_status" in report]
    rest = [report["resolved"] for report in reports if "tests_status" not in report]
    by_rule = [(official.resolution(one["tests_status"]) == "RESOLVED_FULL", one["resolved"]) for one in tested]
    print(f"  reports  {verdicts(by_rule)}")
    print(f"  reports without tests: {len(rest)}, of which recorded resolved: {sum(rest)}")
    official.close()
    sys.exit(any(ours != recorded for ours, recorded in [*logs, *by_rule]) or any(rest))


main()
