"""What an action printed, as text: U+FFFD for what is not UTF-8, and every line end a newline, as Python reads a pipe.

Of a stream that was cut only the ends are kept. Its length is known all the same, so that a template can say how much
it leaves out; one that wants a character that was not kept gets an error, never another text.
"""

import codecs

from harness.errors import RolloutError
from harness.record import Observation

_UNSURE = 4
"""Characters at the start of a tail that may be halves: of a character, or of a line end."""


class LongText:
    """A text of which the middle is missing. `len`, and slices that keep to its ends, are those of the whole."""

    def __init__(self, head: str, tail: str, length: int) -> None:
        self.head = head
        self._tail, self._length = tail, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> str:
        if isinstance(part, slice):
            start, stop, step = part.indices(self._length)
            before_tail = self._length - len(self._tail)
            if step == 1 and stop <= max(start, len(self.head)):
                return self.head[start:stop]
            if step == 1 and start >= before_tail:
                return self._tail[start - before_tail : stop - before_tail]
        raise self._missing()

    def __str__(self) -> str:
        raise self._missing()

    def _missing(self) -> RolloutError:
        kept = len(self.head) + len(self._tail)
        return RolloutError(
            f"the template shows more than was kept of an output ({kept} of {self._length} characters): "
            "raise sandbox.output_bytes"
        )


def text_of(observation: Observation, *, newlines: bool = True) -> str | LongText:
    """The stream of `observation`; without `newlines` line ends stay as they were."""
    output, cut = observation.output, observation.cut_at
    if cut is None:
        return _text(output, newlines)
    if observation.characters is None:
        raise RolloutError("the characters of an output were not counted: it was not observed by this harness")
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(output[:cut])
    known = _with_newlines(head.removesuffix("\r")) if newlines else head
    return LongText(known, _text(output[cut:], newlines)[_UNSURE:], observation.characters)


def _text(output: bytes, newlines: bool) -> str:
    text = output.decode("utf-8", "replace")
    return _with_newlines(text) if newlines else text


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
