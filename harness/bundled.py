"""Finds what ships with the project: `configs/` and `data/pocket/`, in a checkout as in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def bundled(folder: str) -> Path:
    """The folder `configs` or `pocket`, wherever this installation keeps it."""
    installed = _PACKAGE / "_bundled" / folder
    if installed.is_dir():
        return installed
    checkout = {"configs": "configs", "pocket": "data/pocket"}[folder]
    return _PACKAGE.parent / checkout
