"""What one JSON value has that another lacks, so that the other and the difference give the one back, order of keys
included.

    0                   the same
    [value]             this value instead
    {"d": [[k, p],..]}  an object: its keys in order, each with the difference of its value
    {"l": [p,..]}       a list: a difference an item; items beyond the other's end are [value]
"""

from collections.abc import Mapping
from typing import Any

SAME = 0


def difference(wanted: Any, have: Any) -> Any:
    """What turns `have` into `wanted`. Both are JSON values; numbers differ when their types do."""
    if isinstance(wanted, dict) and isinstance(have, dict):
        pairs = [[key, difference(value, have[key]) if key in have else [value]] for key, value in wanted.items()]
        same = list(wanted) == list(have) and all(part == SAME for _, part in pairs)
        return SAME if same else {"d": pairs}
    if isinstance(wanted, list) and isinstance(have, list):
        parts = [difference(item, have[n]) if n < len(have) else [item] for n, item in enumerate(wanted)]
        return SAME if len(wanted) == len(have) and all(part == SAME for part in parts) else {"l": parts}
    return SAME if type(wanted) is type(have) and wanted == have else [wanted]


def restore(have: Any, changes: Any) -> Any:
    """`have` with `changes` made: the inverse of `difference`."""
    if changes == SAME:
        return have
    if isinstance(changes, list):
        return changes[0]
    if not isinstance(changes, Mapping):
        raise ValueError(f"not a difference: {changes!r}")
    if "d" in changes:
        return {key: restore(have.get(key), part) for key, part in changes["d"]}
    return [restore(have[n] if n < len(have) else None, part) for n, part in enumerate(changes["l"])]
