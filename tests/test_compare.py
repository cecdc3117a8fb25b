"""A re-executed action against its record, where the record is ours and where it is an imported log's."""

import hashlib
from typing import Any

import pytest

from harness.compare import Likeness, compare
from harness.record import Exit, Observation


def seen(output: bytes, code: int | None = 0, **more: Any) -> Observation:
    sha256 = hashlib.sha256(output).hexdigest()
    return Observation(**{"output": output, "exit_code": code, "size": len(output), "sha256": sha256, **more})


ENDS = {"kept": "ends", "cut_at": 2, "characters": 10}
CASES = [
    (seen(b"a\n"), seen(b"a\n"), (True, True, True)),
    (seen(b"a\n", 1), seen(b"a\n"), (False, True, True)),
    (seen(b"in 0.5s"), seen(b"in 0.7s"), (True, False, True)),
    (seen(b"a\r\n\xff"), seen("a\n\ufffd".encode()), (True, False, False)),
    (seen(b"a\r\n\xff"), seen("a\n\ufffd".encode(), kept="text"), (True, True, True)),
    (seen(b"b"), seen(b"a", kept="text"), (True, False, False)),
    (seen(b"ab", cut_at=1, size=9), seen(b"a", kept="text"), (True, None, None)),
    (seen(b"ab------yz"), seen(b"abyz", **ENDS), (True, True, True)),
    (seen(b"ab-----yz"), seen(b"abyz", **ENDS), (True, False, True)),
    (seen(b"ax------yz"), seen(b"abyz", **ENDS), (True, False, False)),
    (seen(b"ab--yz", cut_at=3, size=10, characters=10), seen(b"abyz", **ENDS), (True, True, True)),
    (seen(b"az", cut_at=1, size=10, characters=10), seen(b"abyz", **ENDS), (True, None, None)),
    (seen(b"x"), seen(b"y", None, kept="shown", ended=Exit.UNKNOWN), (None, None, None)),
    (seen(b"x"), seen(b"", None, kept="nothing", ended=Exit.UNKNOWN), (None, None, None)),
    (seen(b"", None, ended=Exit.SIGNAL, signal=9), seen(b"", 137, kept="text"), (True, True, True)),
    (seen(b"", None, ended=Exit.SIGNAL, signal=9), seen(b"", -9, kept="text"), (True, True, True)),
    (seen(b"", None, ended=Exit.SIGNAL, signal=9), seen(b"", 137), (False, True, True)),
    (seen(b"", 137), seen(b"", 137, kept="text"), (True, True, True)),
    (seen(b"", None, ended=Exit.TIME_LIMIT), seen(b"", None, ended=Exit.TIME_LIMIT, kept="text"), (True, True, True)),
    (seen(b"", 0), seen(b"", None, ended=Exit.TIME_LIMIT, kept="text"), (False, True, True)),
]


@pytest.mark.parametrize(("here", "recorded", "expected"), CASES)
def test_each_of_exit_code_and_output(
    here: Observation, recorded: Observation, expected: tuple[bool | None, bool | None, bool | None]
) -> None:
    like = compare(here, recorded)
    assert like == Likeness(*expected)
    assert like.differs == (like.exit_code is False or like.normalised is False)
