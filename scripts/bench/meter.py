"""Wraps clients and sandboxes so that the processor time spent in each is known apart. For benchmarks only."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.record import Observation
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider


class Meter:
    """Seconds of this process's processor time by label, over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.count: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, label: str) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        finally:
            used = time.thread_time() - start
            with self._lock:
                self.seconds[label] = self.seconds.get(label, 0.0) + used
                self.count[label] = self.count.get(label, 0) + 1

    def total(self) -> float:
        return sum(self.seconds.values())


class MeteredClient:
    """A ModelClient whose time counts as `client`."""

    def __init__(self, client: ModelClient, meter: Meter) -> None:
        self._client, self._meter = client, meter

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        with self._meter.measure("client"):
            return self._client.complete(messages, tools=tools, sampling=sampling, seed=seed)

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        return self._client.score(messages, said, tools=tools)


class MeteredSandbox:
    """A Sandbox whose time counts as `sandbox driver`, `state digest` or `snapshot`."""

    def __init__(self, sandbox: Sandbox, meter: Meter) -> None:
        self._sandbox, self._meter = sandbox, meter

    def act(self, command: str, *, timeout_s: float) -> Observation:
        with self._meter.measure("sandbox driver"):
            return self._sandbox.act(command, timeout_s=timeout_s)

    def read_file(self, path: str) -> bytes:
        with self._meter.measure("sandbox driver"):
            return self._sandbox.read_file(path)

    def write_file(self, path: str, content: bytes) -> None:
        with self._meter.measure("sandbox driver"):
            self._sandbox.write_file(path, content)

    def digest(self) -> str | None:
        with self._meter.measure("state digest"):
            return self._sandbox.digest()

    def working_diff(self, base_commit: str) -> bytes:
        with self._meter.measure("sandbox driver"):
            return self._sandbox.working_diff(base_commit)

    @property
    def digest_method(self) -> str:
        return self._sandbox.digest_method

    def processes(self) -> tuple[str, ...] | None:
        with self._meter.measure("sandbox driver"):
            return self._sandbox.processes()

    def change_mark(self) -> str | None:
        with self._meter.measure("snapshot"):
            return self._sandbox.change_mark()

    def snapshot(self, into: Path) -> bool:
        with self._meter.measure("snapshot"):
            return self._sandbox.snapshot(into)

    def shell_argv(self) -> list[str]:
        return self._sandbox.shell_argv()


class MeteredProvider:
    """A SandboxProvider whose starts and ends count as `sandbox start`."""

    def __init__(self, provider: SandboxProvider, meter: Meter) -> None:
        self._provider, self._meter = provider, meter
        self.name, self.isolated = provider.name, provider.isolated

    def start(self, image: Image, *, snapshot: Path | None = None) -> AbstractContextManager[Sandbox]:
        return self._start(image, snapshot)

    @contextmanager
    def _start(self, image: Image, snapshot: Path | None) -> Iterator[Sandbox]:
        opened = self._provider.start(image, snapshot=snapshot)
        with self._meter.measure("sandbox start"):
            sandbox = opened.__enter__()
        try:
            yield MeteredSandbox(sandbox, self._meter)
        finally:
            with self._meter.measure("sandbox start"):
                opened.__exit__(None, None, None)
