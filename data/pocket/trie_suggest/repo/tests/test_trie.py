from wordtrie import Trie


def build(**weights):
    trie = Trie()
    for word, weight in weights.items():
        trie.add(word, weight)
    return trie


def test_heaviest_first():
    trie = build(tea=2, ten=5, to=9, inn=7)
    assert trie.suggest("t") == ["to", "ten", "tea"]
    assert trie.suggest("te") == ["ten", "tea"]


def test_only_the_best_are_listed():
    assert build(aa=1, ab=2, ac=3, ad=4).suggest("a") == ["ad", "ac", "ab"]


def test_unknown_prefix():
    assert build(tea=2).suggest("tex") == []


def test_removed_word_is_gone():
    trie = build(tea=2, ten=5)
    trie.remove("ten")
    assert trie.suggest("te") == ["tea"]


def test_weight_can_be_raised():
    trie = build(tea=2, ten=5)
    trie.add("tea", 8)
    assert trie.suggest("te") == ["tea", "ten"]
