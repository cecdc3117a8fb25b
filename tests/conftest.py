"""Shared fixtures. Real parts only: a test that needs shared data and has none is skipped with the reason."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of development data: $FORKROLL_DATA, else ../shared/data."""
    named = os.environ.get("FORKROLL_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no development data at {folder}; set FORKROLL_DATA")
    return folder
