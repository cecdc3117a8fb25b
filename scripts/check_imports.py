"""See scripts/check_imports. What is expected is worked out here from the raw JSON, not by the importer's functions."""

import csv
import gzip
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.table import Column, Table, count, label, rate, render_many
from harness.config import ForksSection, LimitsSection
from harness.exporters.mini import restored_document
from harness.fork import fork_points, start_of
from harness.importers.continuing import logged_scaffold
from harness.importers.files import documents
from harness.importers.mini import MiniImporter
from harness.importers.protocol import Document, ImportFault
from harness.model.protocol import Completion
from harness.prompting import Conversation
from harness.record import Step, Task, Trajectory, commands
from harness.scaffold.protocol import Scaffold

FORKS = ForksSection(rule="paper_fraction", at=(0.3, 0.7))
LIMITS = LimitsSection(calls=250)
BLOCK = re.compile(r"```bash\s*\n.*?\n```", re.DOTALL)
Log = dict[str, Any]


def lines(path: Path) -> Iterator[tuple[Log, Document]]:
    """Each wrapped log with what our reader makes of its line."""
    with gzip.open(path, "rb") as stream:
        for raw, document in zip(stream, documents([path]), strict=True):
            assert isinstance(document, Document), document
            yield json.loads(raw), document


def logged_prefix(log: Log, calls: int) -> list[Any]:
    """The conversation before call `calls` + 1: everything up to the reply, or the message that stands for one."""
    messages, made = [], 0
    for number, message in enumerate(log["messages"]):
        dropped = message.get("extra", {}).get("interrupt_type") == "FormatError"
        made += number > 1 and (message["role"] == "assistant" or dropped)
        if made > calls or message["role"] == "exit":
            break
        messages.append(message)
    return [essence(message) for message in messages]


def essence(message: Any) -> Any:
    """What of a message reaches a model."""
    calls = [(call["id"], call["type"], call["function"]) for call in message.get("tool_calls") or []]
    return message["role"], message["content"], calls, message.get("tool_call_id"), message.get("reasoning_content")


def completion_of(step: Step) -> Completion:
    reply = step.reply
    return Completion(
        text=reply.text,
        tool_calls=reply.tool_calls,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        model=reply.model,
    )


class Checked:
    """What was compared in the logs of one run."""

    def __init__(self) -> None:
        self.n: Counter[str] = Counter()
        self.differs: list[str] = []

    def equal(self, what: str, same: bool, name: str) -> None:
        """One comparison; a difference is remembered by name."""
        self.n[f"{what} of"] += 1
        self.n[what] += same
        if not same:
            self.differs.append(f"{name}: {what}")

    def take(self, wrapped: Log, document: Document, row: dict[str, str]) -> None:
        """Import one log and compare."""
        name = document.name
        try:
            base = MiniImporter().read(document, "logged").base
        except ImportFault as fault:
            self.differs.append(f"{name}: refused: {fault}")
            return
        assert base.source is not None
        self.n["imported"] += 1
        again = Trajectory.model_validate_json(base.model_dump_json())
        self.equal("record", again == base, name)
        back = restored_document(again, base.source)
        self.equal("messages", back["messages"] == wrapped["traj"]["messages"], name)
        digest = hashlib.sha256(json.dumps(back, indent=2).encode()).hexdigest()
        self.equal("bytes", digest == wrapped["source"]["sha256"], name)
        self._counts(base, row, name)
        self._forks(base, wrapped["traj"], name)
        self._scaffold(base, logged_scaffold(base.source), wrapped["traj"], name)

    def _counts(self, base: Trajectory, row: dict[str, str], name: str) -> None:
        spent, parsed = base.ending.spent, [step for step in base.steps if step.reply.format_error is None]
        rejected = [step.reply.text for step in base.steps if step.reply.format_error is not None]
        blocks = sum(len(BLOCK.findall(text)) for text in rejected)
        ours = {
            "n_actions": len(commands(base.steps)) + blocks,
            "api_calls": spent.calls,
            "prompt_tokens": spent.input_tokens,
            "completion_tokens": spent.output_tokens,
        }
        self.n["steps"] += len(base.steps)
        self.n["format errors"] += len(base.steps) - len(parsed)
        told = {key: int(row[key] or 0) for key in ours}
        self.equal(
            "counts", ours == told and base.source is not None and base.source.exit_status == row["exit_status"], name
        )

    def _forks(self, base: Trajectory, log: Log, name: str) -> None:
        task = Task(instance_id=base.task_id, repo="-", base_commit="-", problem_statement="-")
        assert base.source is not None
        scaffold = logged_scaffold(base.source)
        for fork in fork_points(base, FORKS, LIMITS):
            start = start_of(fork, base, "carry")
            sent = Conversation(task, scaffold, start.opening).follow(task, start.history)
            same = [essence(message) for message in sent] == logged_prefix(log, fork.step - 1)
            self.equal("forks", same and start.spent.calls == fork.step - 1, f"{name}@{fork.step}")

    def _scaffold(self, base: Trajectory, scaffold: Scaffold, log: Log, name: str) -> None:
        """Whether the log's own scaffold reads its replies and shows its outputs as the log has them."""
        for step in base.steps:
            if step.reply.text or step.reply.tool_calls:
                read = scaffold.parse(completion_of(step))
                same = (read.actions, read.format_error) == (step.reply.actions, step.reply.format_error)
                self.equal("read", same, f"{name} step {step.index}")
            answers = [message for message in step.messages or () if message["role"] in ("tool", "user")]
            for action, seen, answer in zip(step.reply.actions, step.observations, answers, strict=False):
                if seen.kept == "text" and seen.exit_code is not None:
                    shown = scaffold.observe(seen, action, timeout_s=60).shown
                    self.equal("shown", shown == answer["content"], f"{name} step {step.index}")


def table(runs: dict[str, Checked]) -> Table:
    compared = ["record", "messages", "bytes", "counts", "forks", "read", "shown"]
    columns = [
        Column("run", "run", is_label=True),
        *(Column(key, key) for key in ("imported", "steps", "format errors")),
    ]
    columns += [Column(key, key) for key in compared]
    rows = []
    total = Checked()
    for checked in runs.values():
        total.n.update(checked.n)
    for name, checked in [*runs.items(), ("all", total)]:
        cells = [count(checked.n[key]) for key in ("imported", "steps", "format errors")]
        cells += [rate(checked.n[key], checked.n[f"{key} of"], why="none in these logs") for key in compared]
        rows.append((label(name), *cells))
    notes = (
        "record: the record reads back from its JSON as it was. messages, bytes: the log rebuilt from the record has "
        "the same messages; the same sha256 as the original file.",
        "counts: actions, calls, tokens and exit status are those of index.csv, which counts every block of a reply "
        "that was rejected for having several as an action; here it is none. forks: at 30 % and 70 % "
        "(paper_fraction) the messages that would be sent are those of the log before that call, and as many calls "
        "are spent.",
        "read: the log's own scaffold reads the reply to the same actions or the same error text. shown: it renders "
        "the observation to the message in the log (outputs of which the log keeps the ends alone, and time limits, "
        "whose text names a container, are left out).",
    )
    return Table(
        "imports", "Real trajectories, imported and held against their logs", tuple(columns), tuple(rows), notes
    )


def main() -> int:
    folder, clock = Path(sys.argv[1]), time.monotonic()
    with (folder / "index.csv").open(newline="") as stream:
        index = {(row["file"], int(row["line"])): row for row in csv.DictReader(stream)}
    runs: dict[str, Checked] = {}
    for path in sorted(folder.glob("*.jsonl.gz")):
        for number, (wrapped, document) in enumerate(lines(path)):
            runs.setdefault(document.run, Checked()).take(wrapped, document, index[path.name, number])
    print(render_many([table(runs)], "text"))
    differs = [one for checked in runs.values() for one in checked.differs]
    print(f"\ndifferences: {len(differs)}" + "".join(f"\n  {one}" for one in differs[:40]))
    print(f"{time.monotonic() - clock:.0f} s")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
