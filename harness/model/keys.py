"""A key is sent and shown nowhere else: what a server echoes is read with the key taken out.

Keys come from the environment or from a file, never from a study. Shorter ones than `SHORTEST` are placeholders, which
servers without authentication ask for ("EMPTY"): they are sent and not hidden, since hiding one would maim the text.
"""

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.errors import ConfigError

SHORTEST = 8
HIDDEN = "[key]"


class Key:
    """A key, or none."""

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret
        hides = secret is not None and len(secret) >= SHORTEST
        forms = {secret, quote(secret, safe=""), secret.replace("/", "\\/")} if hides and secret else set()
        self._forms = sorted(forms, key=len, reverse=True)

    def __repr__(self) -> str:
        return "Key()" if self._secret is None else f"Key({HIDDEN})"

    def headers(self) -> dict[str, str]:
        """What sends it."""
        return {} if self._secret is None else {"Authorization": f"Bearer {self._secret}"}

    def hide(self, text: str) -> str:
        """`text` without the key."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def hide_in(self, value: Any) -> Any:
        """Parsed JSON without the key in any string; the very same object where there was none."""
        if not self._forms:
            return value
        if isinstance(value, str):
            clean = self.hide(value)
            return value if clean == value else clean
        if isinstance(value, list):
            items = [self.hide_in(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return self._hide_in_object(value) if isinstance(value, dict) else value

    def _hide_in_object(self, value: dict[str, Any]) -> dict[str, Any]:
        clean = {self.hide(key): self.hide_in(item) for key, item in value.items()}
        same = clean.keys() == value.keys() and all(clean[key] is value[key] for key in value)
        return value if same else clean


def read_key(env: str | None, file: str | None, where: str) -> tuple[Key, str | None]:
    """The key that environment variable `env` or file `file` holds, and what is wrong with how it is kept.

    `where` names the study's entry in errors, which never hold what they found.
    """
    if env is not None:
        found = os.environ.get(env)
        if not found:
            shown = env if env.isupper() else f"that `{where}.api_key_env` names"  # it may be a key in the wrong place
            raise ConfigError(f"{where}: environment variable {shown} is not set")
        return _checked(found, f"the environment variable of `{where}.api_key_env`"), None
    if file is not None:
        return _key_file(Path(file).expanduser(), where)
    return Key(), None


def _key_file(path: Path, where: str) -> tuple[Key, str | None]:
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"{where}: the file that `{where}.api_key_file` names cannot be read: {reason}") from None
    open_to_others = mode & (stat.S_IRWXG | stat.S_IRWXO)
    note = f"{path} can be read by others; run  chmod 600 {path}" if open_to_others else None
    return _checked(text, f"the file of `{where}.api_key_file`"), note


def _checked(text: str, place: str) -> Key:
    secret = text.strip()
    if not secret:
        raise ConfigError(f"{place} is empty: put the key there")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise ConfigError(f"{place} does not hold one key: one word of printable ASCII is needed")
    return Key(secret)
