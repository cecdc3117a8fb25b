"""What mini-swe-agent's code, not a template of it, puts before a model: read from the installed package's source.

The source is parsed and never run. Where a version has it otherwise than this reads it, that is an error by name.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import ConfigError
from harness.scaffold.mini_config import INSTALL, installed

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Words:
    """Texts with {} where something is put in."""

    tool: Mapping[str, Any]
    """The schema of `bash`."""
    no_call: str
    bad_arguments: str
    unknown_tool: str
    no_command: str
    not_one_action: str
    exception: str
    """Before what went wrong with a command."""


@cache
def words() -> Words:
    """Of the installed package; ConfigError without one."""
    folder, version = installed()
    try:
        calls = _parsed(folder / "models" / "utils" / "actions_toolcall.py")
        return Words(
            tool=ast.literal_eval(_assigned(calls, "BASH_TOOL")),
            no_call=_one(node.value for node in _all(calls, ast.keyword) if node.arg == "error"),
            bad_arguments=_one(_set(calls, "error_msg", ast.Assign), lambda text: "{}" in text),
            unknown_tool=_one(_set(calls, "error_msg", ast.AugAssign), lambda text: "{}" in text),
            no_command=_one(_set(calls, "error_msg", ast.AugAssign), lambda text: "{}" not in text),
            not_one_action=_one(
                _set(_parsed(folder / "models" / "utils" / "actions_text.py"), "error_msg", ast.Assign)
            ),
            exception=_one(
                _values(_parsed(folder / "environments" / "docker.py"), "exception_info"), lambda text: "{}" in text
            ),
        )
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"mini-swe-agent {version} has a form unknown here ({error}): {INSTALL}") from None


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _all(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    found = [node.value for node in _all(tree, ast.Assign) if _names(node.targets[0], name)]
    if len(found) != 1:
        raise ValueError(f"{name} is set {len(found)} times")
    return found[0]


def _set(tree: ast.AST, name: str, kind: type[ast.Assign] | type[ast.AugAssign]) -> Iterator[ast.expr]:
    """What is assigned, or added, to the variable `name`."""
    for node in _all(tree, kind):
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        if _names(target, name):
            yield node.value


def _values(tree: ast.AST, key: str) -> Iterator[ast.expr]:
    """What dictionaries in the source hold at `key`."""
    for node in _all(tree, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                yield value


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _one(nodes: Iterator[ast.expr], wanted: Callable[[str], bool] = bool) -> str:
    """The one text among `nodes` that is `wanted`."""
    texts = {text for text in map(_text, nodes) if text and wanted(text)}
    if len(texts) != 1:
        raise ValueError(f"{len(texts)} texts where one was")
    return texts.pop()


def _text(node: ast.expr) -> str | None:
    """A string, or a formatted one with {} for each value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _literal(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def _literal(text: object) -> str:
    return str(text).replace("{", "{{").replace("}", "}}")
