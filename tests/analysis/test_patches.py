"""The three patch measures of G13, on hand-made patches, as laws, and against every released row."""

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.patches import compare, file_jaccard, files, identical, similarity

laws = settings(deadline=None)  # no law depends on how busy the machine is


def patch(*paths: str) -> str:
    return "".join(f"diff --git a/{p} b/{p}\n--- a/{p}\n+++ b/{p}\n@@ -1 +1 @@\n-x\n+y\n" for p in paths)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (patch("a.py", "src/b.py"), {"a.py", "src/b.py"}),
        (patch("with space/x b/y.py"), {"with space/x b/y.py"}),
        ("diff --git a/old.py b/new.py\nsimilarity index 90%\n", {"old.py"}),
        ('diff --git "a/t\\303\\251.py" "b/t\\303\\251.py"\n', {"té.py"}),
        ("diff --git x.py x.py\n", {"x.py"}),
        ("diff --git a/x.py b/x.py\\nindex 0..1\\n--- a/x.py\\n", {"x.py"}),  # line ends written out
        (patch("a.py") + "+diff --git a/no.py b/no.py\n+\x0cdiff --git a/no.py b/no.py\n", {"a.py"}),
    ],
)
def test_files(text, expected):
    assert files(text) == expected


def test_jaccard_of_files():
    assert file_jaccard("", "") == 1
    assert file_jaccard("", patch("a")) == 0
    assert file_jaccard(patch("a", "b"), patch("b", "c")) == 1 / 3


def test_similarity_is_difflib_with_the_base_first():
    base, branch = "tide", "diet"
    assert similarity(base, branch) == difflib.SequenceMatcher(None, base, branch).ratio()
    assert similarity(base, branch) != similarity(branch, base)
    assert similarity("", "") == 1
    assert similarity("", "\n") == 0


def test_identical_ignores_outer_white_space_only():
    assert identical(" a\n", "a")
    assert not identical("a b", "ab")


@laws
@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=12))
def test_short_cuts_change_no_ratio(base, branch):
    assert similarity(base, branch) == difflib.SequenceMatcher(None, base, branch).ratio()


@laws
@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_jaccard_is_a_symmetric_share(left, right):
    value = file_jaccard(patch(*left), patch(*right))
    assert value == file_jaccard(patch(*right), patch(*left))
    assert 0 <= value <= 1
    assert (value == 1) == (set(left) == set(right))


def test_compare_holds_all_three():
    assert compare(patch("a"), patch("a") + "\n") == (1.0, similarity(patch("a"), patch("a") + "\n"), True)


@pytest.mark.parametrize("function", [compare, file_jaccard, similarity, identical])
def test_a_missing_patch_is_refused(function):
    for pair in ((None, ""), ("", None)):
        with pytest.raises(TypeError):
            function(*pair)
