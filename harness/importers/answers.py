"""What came back from an action, out of a message that answers it.

Some logs keep output and exit code beside the message; of others only the message is left, rendered by a template.
mini-swe-agent's usual shapes of it are read back exactly; of any other shape only what the model read is known.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from harness.record import Exit, Observation

_WHOLE = r"<output>\n(?P<output>.*)</output>"
_ENDS = (
    r"<warning>.*?</warning>\s*<output_head>\n(?P<head>.*)\n</output_head>\s*"
    r"<elided_chars>\s*(?P<gone>\d+) characters elided\s*</elided_chars>\s*"
    r"<output_tail>\n(?P<tail>.*)\n</output_tail>"
)
_SHAPE = re.compile(
    rf"\A(?:<exception>(?P<exception>.*?)</exception>\s*)?<returncode>(?P<code>-?\d+)</returncode>\s*(?:{_WHOLE}|{_ENDS})\s*\Z",
    re.DOTALL,
)
_NOT_EXECUTED = "action was not executed"

NOTHING_KNOWN = Observation(
    output=b"", exit_code=None, ended=Exit.UNKNOWN, size=0, sha256=hashlib.sha256(b"").hexdigest(), kept="nothing"
)
"""Of an action whose answer the log lacks."""


def observation(answer: Mapping[str, Any], timed_out: re.Pattern[str] | None = None) -> Observation:
    """What `answer` says came back; `timed_out` matches messages about the time limit (see `pattern_of`)."""
    extra = answer.get("extra")
    if isinstance(extra, Mapping):
        ours = _ours(extra)
        if ours is not None:
            return ours
        if isinstance(extra.get("raw_output"), str):
            return _from_extra(extra, extra["raw_output"])
    return _from_text(text_of(answer), timed_out)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message: its content, the text parts of a list, or the `output` of a call's result."""
    content = message.get("content", message.get("output"))
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _ours(extra: Mapping[str, Any]) -> Observation | None:
    """An observation that forkroll exported."""
    told = extra.get("forkroll")
    if not isinstance(told, Mapping):
        return None
    try:
        return Observation.model_validate({"output": extra.get("raw_output"), **told})
    except ValidationError:
        return None


def _from_extra(extra: Mapping[str, Any], output: str) -> Observation:
    code = extra.get("returncode")
    exception = extra.get("exception_info")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    kind = str(extra.get("exception_type") or "")
    return _observation(output, code, exception if isinstance(exception, str) else "", kind)


def _observation(output: str, code: int | None, exception: str, kind: str) -> Observation:
    if exception:
        ended = _ended(exception, kind)
        return _kept(output, None, ended)
    return _kept(output, code, Exit.UNKNOWN if code is None else Exit.EXITED)


def _ended(exception: str, kind: str) -> Exit:
    """mini-swe-agent turns every exception of its sandbox into an observation."""
    if kind == "TimeoutExpired" or re.search(r"timed out after \S+ seconds", exception):
        return Exit.TIME_LIMIT
    return Exit.NOT_RUN if exception == _NOT_EXECUTED else Exit.UNKNOWN


def _kept(output: str, code: int | None, ended: Exit) -> Observation:
    raw = output.encode("utf-8")
    sha256 = hashlib.sha256(raw).hexdigest()
    return Observation(output=raw, exit_code=code, ended=ended, size=len(raw), sha256=sha256, kept="text")


def _from_text(text: str, timed_out: re.Pattern[str] | None) -> Observation:
    found = _SHAPE.match(text)
    if found is not None and found["head"] is not None:
        return _ends(found["head"], found["tail"], int(found["gone"]), int(found["code"]))
    if found is not None:
        return _observation(found["output"], int(found["code"]), found["exception"] or "", "")
    late = timed_out.match(text) if timed_out is not None else None
    if late is not None:
        return _kept(late.groupdict().get("output") or "", None, Exit.TIME_LIMIT)
    return _kept(text, None, Exit.UNKNOWN).model_copy(update={"kept": "shown"})


def _ends(head: str, tail: str, gone: int, code: int) -> Observation:
    first, last = head.encode("utf-8"), tail.encode("utf-8")
    return Observation(
        output=first + last,
        exit_code=code,
        size=len(first) + gone + len(last),
        sha256=hashlib.sha256(first + last).hexdigest(),
        cut_at=len(first),
        characters=len(head) + gone + len(tail),
        kept="ends",
    )


def pattern_of(template: object) -> re.Pattern[str] | None:
    """What a template without control blocks renders to, each variable as anything; `output` is a group of that name.

    None for other templates, and for what is none.
    """
    if not isinstance(template, str) or "{%" in template or "{{" not in template:
        return None
    parts = re.split(r"\{\{-?(.*?)-?\}\}", template.removesuffix("\n"), flags=re.DOTALL)
    made, named = "", False
    for number, part in enumerate(parts):
        if number % 2 == 0:
            made += re.escape(part)
        elif part.strip() in ("output", "output.output") and not named:
            made, named = made + "(?P<output>.*)", True
        else:
            made += ".*"
    return re.compile(made + r"\Z", re.DOTALL)
