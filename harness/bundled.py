"""Where what ships lies (`configs/` and `data/pocket/`, in a checkout as in an installed wheel), and where what is made
once and used by all runs is kept.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parent


def bundled(folder: str) -> Path:
    """The folder `configs` or `pocket`, wherever this installation keeps it."""
    installed = _PACKAGE / "_bundled" / folder
    if installed.is_dir():
        return installed
    checkout = {"configs": "configs", "pocket": "data/pocket"}[folder]
    return _PACKAGE.parent / checkout


def cache_folder() -> Path:
    """$FORKROLL_CACHE, else the user's cache folder."""
    named = os.environ.get("FORKROLL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forkroll"
