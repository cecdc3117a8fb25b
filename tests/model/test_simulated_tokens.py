"""Tokens invert, a prompt's ids tell the conversation, and a note and an action tokenise alike together and apart."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.simulated.mixture import EPSILON, Mixture
from harness.model.simulated.tokens import (
    MARKERS,
    ROLES,
    Turn,
    chunk_of,
    chunks,
    decode,
    encode,
    encode_prompt,
    parse,
    render,
    token_id,
)

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=80) | st.sampled_from(
    ["", "note\n<tool_call>\n{}\n</tool_call>", "a```bash\nls\n```", "<tool_call><tool_call>", "x\n\n\ny"]
)
TURNS = st.lists(st.builds(Turn, st.sampled_from(sorted(ROLES)), TEXTS), max_size=5)
quick = settings(max_examples=100, deadline=None, derandomize=True)


@quick
@given(st.binary(min_size=1, max_size=4))
def test_ids_invert_and_stay_clear_of_control_tokens(chunk: bytes) -> None:
    assert token_id(chunk) >= 256
    assert chunk_of(token_id(chunk)) == chunk


@pytest.mark.parametrize("number", [-1, 0, 5, 255, 512, 0x2_0000, 2 << 32, 1 << 50])
def test_a_number_that_is_no_token_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="token"):
        chunk_of(number)


@quick
@given(TEXTS)
def test_chunks_join_to_the_text_and_end_with_their_line(text: str) -> None:
    pieces = chunks(text.encode())
    assert b"".join(pieces) == text.encode()
    assert all(1 <= len(piece) <= 4 and b"\n" not in piece[:-1] for piece in pieces)


@quick
@given(TEXTS, st.sampled_from(MARKERS), TEXTS)
def test_an_action_tokenises_alike_alone_and_after_a_note(note: str, marker: bytes, rest: str) -> None:
    action = marker.decode() + rest
    note = note.rstrip("`<")  # what completes a marker across the seam is another text
    assert encode(note + action) == encode(note) + encode(action)


@quick
@given(TURNS, TEXTS)
def test_a_prompt_tells_the_conversation_and_the_open_reply(turns: list[Turn], reply: str) -> None:
    closed = parse(render(turns, open_reply=False))
    assert closed.turns == tuple(turns)
    assert closed.continuation is None
    opened = parse(render(turns, open_reply=True) + encode(reply))
    assert opened.turns == tuple(turns)
    assert opened.continuation == tuple(encode(reply))


@quick
@given(TURNS)
def test_a_prompt_as_a_string_is_the_prompt_as_ids(turns: list[Turn]) -> None:
    ids = render(turns, open_reply=True)
    assert encode_prompt(decode(ids)) == ids


@pytest.mark.parametrize("ids", [[300], [1], [1, 300], [1, 4, 300], [1, 3, 4, 2], [1, 3, 300, 2, 2]])
def test_ids_that_follow_no_template_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"message|token"):
        parse(ids)


MENUS = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=6, unique=True)


@quick
@given(MENUS, st.randoms(use_true_random=False), st.binary(max_size=30), st.sampled_from([EPSILON, 0.0]))
def test_conditionals_telescope_to_the_mass_of_the_whole(menu, random, foreign, epsilon) -> None:
    weights = [random.random() + 0.01 for _ in menu]
    probabilities = [weight / sum(weights) for weight in weights]
    mixture = Mixture(menu, probabilities, epsilon)
    for text in [*menu, foreign]:
        of_menu = math.fsum(p for string, p in zip(menu, probabilities, strict=True) if string.startswith(text))
        mass = (1 - epsilon) * of_menu + epsilon * 256.0 ** -len(text)
        total = math.fsum(mixture.logprobs(chunks(text)))
        assert total == (pytest.approx(math.log(mass), abs=1e-12) if mass else -math.inf)


@quick
@given(MENUS)
def test_strings_of_which_none_starts_another_share_the_whole_mass(menu: list[bytes]) -> None:
    closed = sorted({string.replace(b"\n", b"") + b"\n" for string in menu})
    mixture = Mixture(closed, [1 / len(closed)] * len(closed), EPSILON)
    masses = [math.exp(math.fsum(mixture.logprobs(chunks(string)))) for string in closed]
    assert math.fsum(masses) == pytest.approx(1.0, abs=1e-10)
