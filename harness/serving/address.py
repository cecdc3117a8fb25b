"""What is at a server's address: whether it is healthy, what it serves, which version, since when.

Every question has a short time limit and no retries; no answer is None.
"""

from dataclasses import dataclass
from typing import Any

import httpx

_ASK_S = 5.0
_START_METRIC = "process_start_time_seconds"


@dataclass(frozen=True)
class Address:
    """One server's address, without /v1."""

    root_url: str

    def healthy(self) -> bool:
        """Whether GET /health says so."""
        answer = self._get("/health")
        return answer is not None and answer.status_code == 200

    def served(self) -> list[str] | None:
        """Names that the server serves; None when nothing there answers like a model server."""
        answer = self._json("/v1/models")
        data = answer.get("data") if answer else None
        return [str(entry.get("id")) for entry in data] if isinstance(data, list) else None

    def version(self) -> str | None:
        """As vLLM gives it."""
        answer = self._json("/version")
        return str(answer["version"]) if answer and "version" in answer else None

    def started_at(self) -> float | None:
        """Seconds since 1970 at which the server's process started, from its metrics."""
        answer = self._get("/metrics")
        if answer is None or answer.status_code != 200:
            return None
        values = [line.split()[-1] for line in answer.text.splitlines() if line.startswith(f"{_START_METRIC} ")]
        return float(values[0]) if values else None

    def _json(self, path: str) -> dict[str, Any] | None:
        answer = self._get(path)
        try:
            parsed = answer.json() if answer is not None and answer.status_code == 200 else None
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) else None

    def _get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(
                self.root_url + path, timeout=_ASK_S, trust_env=False, verify=self.root_url.startswith("https:")
            )
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
