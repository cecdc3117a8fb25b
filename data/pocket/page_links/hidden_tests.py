from leafing import Pages, link_header, links, with_page


def test_per_page_before_page():
    assert with_page("/items?per_page=20&page=2", 3) == "/items?per_page=20&page=3"
    assert with_page("/items?per_page=20&page=2&q=a", 3) == "/items?per_page=20&page=3&q=a"


def test_other_name_that_ends_in_page():
    assert with_page("/items?homepage=yes", 2) == "/items?homepage=yes&page=2"
    assert with_page("/items?homepage=yes&page=7", 8) == "/items?homepage=yes&page=8"


def test_header_keeps_per_page():
    text = link_header("/items?per_page=5", Pages(10, 5))
    assert text == (
        '</items?per_page=5&page=1>; rel="first", '
        '</items?per_page=5&page=2>; rel="next", '
        '</items?per_page=5&page=2>; rel="last"'
    )


def test_fragment_stays_at_the_end():
    assert with_page("/items?page=1#top", 2) == "/items?page=2#top"
    assert with_page("/items#top", 2) == "/items?page=2#top"


def test_per_page_after_page():
    assert with_page("/items?page=2&per_page=20", 3) == "/items?page=3&per_page=20"


def test_value_that_names_page():
    assert with_page("/items?sort=page&q=page", 2) == "/items?sort=page&q=page&page=2"


def test_no_next_on_last_page():
    found = links("/items?sort=name&page=3", Pages(60, 20))
    assert list(found) == ["first", "prev", "last"]
    assert found["prev"] == "/items?sort=name&page=2"
