"""Where a study could hold a key that belongs elsewhere. What is found is named by its place and never shown."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus, urlsplit

_WORDS = re.compile(
    r"(^|_)(api_?key|key|token|auth|authorization|bearer|secret|password|passwd|credentials?)$|authorization|api_?key"
)
_TEMPLATE_TOKENS = frozenset({"bos_token", "eos_token", "pad_token", "unk_token"})
_LOOKS_LIKE_A_KEY = re.compile(r"^(Bearer |sk-|hf_|gsk_|AKIA)")


def key_in_url(url: str) -> str | None:
    """What in `url` could carry a key; None when nothing does."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return "a user name or key before @"
    if parts.query or parts.fragment:
        return "a query or fragment"
    return "a key" if _LOOKS_LIKE_A_KEY.search(unquote_plus(parts.path.rpartition("/")[2])) else None


def key_in_fields(value: Any, path: str = "") -> str | None:
    """The dotted path of the first field in parsed JSON that is named, or looks, like a key; None when none is."""
    if isinstance(value, str):
        return path if _LOOKS_LIKE_A_KEY.search(value) else None
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := key_in_fields(item, path))), None)
    if not isinstance(value, Mapping):
        return None
    for name, item in value.items():
        below = f"{path}.{name}" if path else str(name)
        found = below if _names_a_key(str(name)) else key_in_fields(item, below)
        if found:
            return found
    return None


def _names_a_key(name: str) -> bool:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return plain not in _TEMPLATE_TOKENS and _WORDS.search(plain) is not None
