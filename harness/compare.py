"""A re-executed action against its record: each of exit code and output is equal, different, or cannot be said.

An imported log is compared in its own terms: where it kept decoded text, what is seen is decoded in the same way,
and a shell that a signal ended stands for the number that a shell reports of one.
"""

from dataclasses import dataclass

from harness.normalise import normalise
from harness.record import Exit, Observation

UNIVERSAL_NEWLINES = ((b"\r\n", b"\n"), (b"\r", b"\n"))


@dataclass(frozen=True)
class Likeness:
    """None: the record does not say enough to compare."""

    exit_code: bool | None
    output: bool | None
    """The whole stream, as exactly as the record has it."""
    normalised: bool | None
    """Equal after `normalise`; True wherever `output` is."""

    @property
    def differs(self) -> bool:
        """Something that can be compared is not equal, differences that `normalise` explains apart."""
        return self.exit_code is False or self.normalised is False


def compare(seen: Observation, recorded: Observation) -> Likeness:
    """How `seen`, made here, agrees with `recorded`."""
    output, normalised = _OUTPUTS[recorded.kept](seen, recorded)
    return Likeness(_same_exit(seen, recorded), output, normalised)


def _same_exit(seen: Observation, recorded: Observation) -> bool | None:
    if recorded.ended is Exit.UNKNOWN:
        return None
    if recorded.kept == "bytes" or recorded.exit_code is None:
        return (seen.ended, seen.exit_code, seen.signal) == (recorded.ended, recorded.exit_code, recorded.signal)
    return recorded.exit_code in _reported(seen)


def _reported(seen: Observation) -> tuple[int, ...]:
    """What other harnesses report as exit code: of a signal, 128 and its number, or its number negative."""
    if seen.ended is Exit.SIGNAL and seen.signal is not None:
        return (128 + seen.signal, -seen.signal)
    return () if seen.exit_code is None else (seen.exit_code,)


def _same_bytes(seen: Observation, recorded: Observation) -> tuple[bool | None, bool | None]:
    """Of a stream that was cut the middle is not known: it counts as equal only byte for byte."""
    same = seen.sha256 == recorded.sha256
    cut = seen.cut_at is not None or recorded.cut_at is not None
    return same, same or (not cut and normalise(seen.output) == normalise(recorded.output))


def _same_text(seen: Observation, recorded: Observation) -> tuple[bool | None, bool | None]:
    if seen.cut_at is not None or recorded.cut_at is not None:
        return None, None
    text = as_text(seen.output)
    same = text == as_text(recorded.output)
    return same, same or normalise(text) == normalise(as_text(recorded.output))


def _same_ends(seen: Observation, recorded: Observation) -> tuple[bool | None, bool | None]:
    """Head, tail and the number of characters; what lies between the two is vouched for by nobody."""
    cut = recorded.cut_at or 0
    head, tail = recorded.output[:cut].decode("utf-8"), recorded.output[cut:].decode("utf-8")
    whole = seen.cut_at is None
    first = as_text(seen.output if whole else seen.output[: seen.cut_at]).decode("utf-8")
    last = as_text(seen.output if whole else seen.output[seen.cut_at :]).decode("utf-8")
    if not whole and (len(first) < len(head) or len(last) < len(tail)):
        return None, None
    length = len(first) if whole else seen.characters
    ours, theirs = f"{first[: len(head)]}\0{last[max(len(last) - len(tail), 0) :]}", f"{head}\0{tail}"
    if length is None or recorded.characters is None:
        return None, None
    same = ours == theirs and length == recorded.characters
    return same, same or normalise(ours.encode("utf-8")) == normalise(theirs.encode("utf-8"))


def _unknown(seen: Observation, recorded: Observation) -> tuple[bool | None, bool | None]:
    return None, None


_OUTPUTS = {
    "bytes": _same_bytes,
    "text": _same_text,
    "ends": _same_ends,
    "shown": _unknown,
    "nothing": _unknown,
}


def as_text(output: bytes) -> bytes:
    """`output` decoded as a harness in Python's text mode does (U+FFFD, all line ends as newlines), as UTF-8."""
    text = output.decode("utf-8", "replace").encode("utf-8")
    for ending, newline in UNIVERSAL_NEWLINES:
        text = text.replace(ending, newline)
    return text
