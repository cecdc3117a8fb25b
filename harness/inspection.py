"""Each task's repository is looked at once for what came after the task; what is there is said and recorded."""

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.record import Task
from harness.sandbox.protocol import Sandbox
from harness.tasks.protocol import TaskSet


class Inspection:
    """Looks into the first sandbox of each task, before anything is done in it."""

    def __init__(
        self, tasks: TaskSet, manifest: dict[str, Any], keep: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        """`keep` writes the manifest, into which findings go under `histories`."""
        self._tasks, self._manifest, self._keep, self._say = tasks, manifest, keep, say
        self._lock = threading.Lock()
        self._begun: set[str] = set(manifest.setdefault("histories", {}))

    def inspect(self, task: Task, sandbox: Sandbox) -> None:
        """Look, where nobody has yet."""
        with self._lock:
            if task.instance_id in self._begun:
                return
            self._begun.add(task.instance_id)
        found = self._tasks.history_of(task, sandbox)
        if found is None:
            return
        with self._lock:
            self._manifest["histories"][task.instance_id] = asdict(found)
            self._keep()
        if found.reaches_past_base:
            self._say(f"note: {found.line(task.instance_id)}")
