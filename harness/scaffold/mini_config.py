"""Configurations of mini-swe-agent: found in the installed package, which is not imported, or read from a file.

Only its files are read. Importing the package would print a banner, make a folder and load a dotenv file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError
from harness.scaffold.protocol import Dialect

PACKAGE = "mini-swe-agent"
INSTALL = "pip install --no-deps 'mini-swe-agent>=2.4,<3'"
"""Without its dependencies, some 700 MB that none of this needs."""

INSTALLED: Mapping[str, Dialect] = {"swebench": "tool_call", "swebench_backticks": "text", "swebench_xml": "text"}
"""The package's own configurations, and how each has actions written."""


@dataclass(frozen=True)
class Found:
    """A configuration and where it came from."""

    config: Mapping[str, Any]
    source: str
    package: str | None
    """Version of the package that it was read from; None: it was a file."""


def find(name: str | None, dialect: Dialect) -> Found:
    """The configuration of that name or at that path; None: the package's own for `dialect`."""
    wanted = name or next(known for known, spoken in INSTALLED.items() if spoken == dialect)
    if wanted not in INSTALLED:
        return Found(_read(Path(wanted)), wanted, None)
    if INSTALLED[wanted] != dialect:
        raise ConfigError(f"scaffold.config {wanted!r} speaks `dialect: {INSTALLED[wanted]}`, not {dialect}")
    folder, version = installed()
    path = folder / "config" / "benchmarks" / f"{wanted}.yaml"
    if not path.is_file():
        raise ConfigError(f"mini-swe-agent {version} has no configuration {wanted!r}: {INSTALL}")
    return Found(_read(path), wanted, version)


def installed() -> tuple[Path, str]:
    """Folder and version of the installed package; ConfigError without one."""
    spec = util.find_spec("minisweagent")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the templates of mini-swe-agent are not here: {INSTALL}, or name a file in scaffold.config")
    return Path(spec.submodule_search_locations[0]), metadata.version(PACKAGE)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(INSTALLED)
        raise ConfigError(f"scaffold.config {str(path)!r}: {error.strerror}; a file, or one of {known}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"scaffold.config {path}: not a text file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"scaffold.config {path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"scaffold.config {path}: holds no sections such as `agent:`")
    return content
