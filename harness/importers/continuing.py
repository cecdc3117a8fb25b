"""The scaffold in which a branch of an imported base goes on: the log's own.

The model that takes over reads the log's conversation; it must be told how to act in the words that this began with.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness.errors import ConfigError
from harness.exporters.mini import FORMAT_1, FORMAT_1_1
from harness.prompting import OwnScaffold
from harness.record import Source
from harness.scaffold.mini import MiniScaffold
from harness.scaffold.protocol import Dialect, Scaffold

OURS = "forkroll"
"""Section of info.config in which our own exports say how models were spoken to."""


def logged_scaffold(source: Source) -> Scaffold:
    """The scaffold of a log. ConfigError where the log does not hold what it takes."""
    config = json.loads(source.config)
    ours = config.get(OURS) if isinstance(config, Mapping) else None
    if isinstance(ours, Mapping) and "scaffold" in ours:
        dialect: Dialect = "text" if ours.get("dialect") == "text" else "tool_call"
        own = ours["scaffold"] == OwnScaffold.name
        return OwnScaffold(dialect) if own else MiniScaffold.from_config(config, dialect, source="the log")
    if source.format not in (FORMAT_1, FORMAT_1_1):
        raise ConfigError(f"a log of format {source.format!r} cannot be gone on with here")
    if not isinstance(config, Mapping):
        raise ConfigError("the log holds no settings (info.config): how its model was spoken to is not known")
    return MiniScaffold.from_config(config, logged_dialect(source.format, config), source="the log")


def spoken_as(scaffold: Scaffold) -> dict[str, Any]:
    """Settings for a log of ours, from which `logged_scaffold` makes that scaffold again."""
    settings = scaffold.config if isinstance(scaffold, MiniScaffold) else {}
    return {**settings, OURS: {"scaffold": scaffold.name, "dialect": scaffold.dialect}}


def logged_dialect(form: str, config: Mapping[str, Any]) -> Dialect:
    """Format 1 knows text alone; of 1.1 the class of the model says it."""
    model_type = str(config.get("model_type") or "")
    model = config.get("model")
    textual = "textbased" in model_type.lower() or (isinstance(model, Mapping) and "action_regex" in model)
    return "text" if form == FORMAT_1 or textual else "tool_call"
