"""What may differ between two runs of one action without the action having done anything else.

Prefix fidelity compares outputs raw and normalised. The rules are few, named and narrow: each replaces text that a
clock, a process table or a random name put there. Raw outputs stay in the records; nothing normalised is ever stored.
Applying the rules twice is the same as once.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One replacement."""

    name: str
    pattern: re.Pattern[bytes]
    replacement: bytes


def _rule(name: str, pattern: bytes, replacement: bytes) -> Rule:
    return Rule(name, re.compile(pattern), replacement)


_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

RULES = (
    _rule(
        "temporary path",
        rb"(/tmp|/var/tmp|/dev/shm)/(?:tmp\.?[A-Za-z0-9_]{6,}|pytest-of-[^/\s]+/pytest-\d+)",
        rb"\1/<random>",
    ),
    _rule("address", rb"\b0x[0-9a-fA-F]{6,16}\b", rb"0x<address>"),
    _rule("moment", rb"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d\d:?\d\d))?", rb"<moment>"),
    _rule(
        "moment in a listing",
        rb"\b" + _MONTH + rb" [ \d]\d (?:\d\d:\d\d(?::\d\d)?|[ ]?\d{4})(?: \d{4})?\b",
        rb"<moment>",
    ),
    _rule("shell timing", rb"\b(real|user|sys)(\s+)\d+m\d+[.,]\d+s", rb"\1\2<time>"),
    _rule(
        "duration",
        rb"\b(in|took|elapsed:?|duration:?|time:?) (?:about )?\d+(?:[.,]\d+)? ?(?:ns|us|ms|s|secs?|seconds?)\b",
        rb"\1 <time>",
    ),
    _rule("job number and process id", rb"(?m)^\[(\d+)\] \d+$", rb"[\1] <pid>"),
    _rule("process id", rb"\b(pid|PID|process)([ =:]+)\d+\b", rb"\1\2<pid>"),
)


def normalise(output: bytes) -> bytes:
    """`output` with what a clock, a process table or a random name put there replaced by its kind."""
    for rule in RULES:
        output = rule.pattern.sub(rule.replacement, output)
    return output
