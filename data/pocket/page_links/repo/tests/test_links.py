from leafing import Pages, link_header, links, page_of, with_page


def test_page_of():
    assert page_of("/items?sort=name&page=4") == 4
    assert page_of("/items?page=zero") == 1


def test_page_is_added():
    assert with_page("/items", 2) == "/items?page=2"
    assert with_page("/items?sort=name", 2) == "/items?sort=name&page=2"


def test_page_is_replaced_in_place():
    assert with_page("/items?page=2&sort=name", 3) == "/items?page=3&sort=name"


def test_links_in_the_middle():
    found = links("/items?page=2", Pages(60, 20))
    assert list(found) == ["first", "prev", "next", "last"]
    assert found["prev"] == "/items?page=1"
    assert found["next"] == "/items?page=3"


def test_link_header():
    text = link_header("/items", Pages(10, 20))
    assert text == '</items?page=1>; rel="first", </items?page=1>; rel="last"'
