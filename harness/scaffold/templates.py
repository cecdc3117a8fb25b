"""Templates that are not ours: Jinja2 with its defaults and strict about names, in a sandbox.

In a sandbox, since a template may come out of somebody's log. Compiled once: compiling takes a hundred times as long
as rendering.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError, RolloutError

if TYPE_CHECKING:
    import jinja2

_HOW_TO_INSTALL = "templates need jinja2: pip install 'forkroll[mini]'"


def _environment() -> "jinja2.Environment":
    try:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError:
        raise ConfigError(_HOW_TO_INSTALL) from None
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined)


class Template:
    """One template; `name` says in messages which."""

    def __init__(self, source: str, name: str) -> None:
        environment = _environment()
        import jinja2

        try:
            self._compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{name}: line {error.lineno} is no valid Jinja2: {error.message}") from None
        self.name = name
        self.sha256 = hashlib.sha256(source.encode("utf-8")).hexdigest()

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. RolloutError where the template uses what is not known here."""
        try:
            return self._compiled.render(variables)
        except RolloutError:
            raise
        except Exception as error:
            raise RolloutError(f"{self.name}: {error}") from error
