from wordtrie import Trie


def build(**weights):
    trie = Trie()
    for word, weight in weights.items():
        trie.add(word, weight)
    return trie


def test_next_best_moves_up_after_remove():
    trie = build(card=9, care=8, cart=7, cargo=6)
    trie.remove("card")
    assert trie.suggest("car") == ["care", "cart", "cargo"]
    assert trie.suggest("c") == ["care", "cart", "cargo"]
    assert trie.suggest("") == ["care", "cart", "cargo"]


def test_next_best_moves_up_after_lower_weight():
    trie = build(card=9, care=8, cart=7, cargo=6)
    trie.add("card", 1)
    assert trie.suggest("car") == ["care", "cart", "cargo"]
    assert trie.suggest("") == ["care", "cart", "cargo"]


def test_removing_a_prefix_of_other_words():
    trie = build(car=9, care=3, cart=2, carbon=1, dog=5, cat=4)
    trie.remove("car")
    assert trie.suggest("car") == ["care", "cart", "carbon"]
    assert trie.suggest("c") == ["cat", "care", "cart"]
    assert trie.suggest("") == ["dog", "cat", "care"]


def test_lowered_word_keeps_its_place_when_nothing_is_better():
    trie = build(tea=5, ten=4)
    trie.add("tea", 1)
    assert trie.suggest("t") == ["ten", "tea"]


def test_equal_weights_are_alphabetical():
    trie = build(mop=1, map=1, mud=1, mid=1)
    assert trie.suggest("m") == ["map", "mid", "mop"]


def test_limit_shortens_the_answer():
    assert build(aa=1, ab=2, ac=3).suggest("a", limit=2) == ["ac", "ab"]


def test_remove_of_unknown_words():
    trie = build(care=3)
    for word in ("car", "careful", "dog"):
        try:
            trie.remove(word)
        except KeyError:
            continue
        raise AssertionError("no KeyError for " + word)
    assert trie.suggest("c") == ["care"]


def test_removed_word_can_come_back():
    trie = build(ten=5, tea=2)
    trie.remove("ten")
    trie.add("ten", 1)
    assert trie.suggest("t") == ["tea", "ten"]
