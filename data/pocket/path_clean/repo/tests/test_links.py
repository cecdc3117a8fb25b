from linkpath import resolve


def test_link_to_a_neighbour():
    assert resolve("guide/start.html", "more.html#top") == "guide/more.html#top"


def test_link_one_folder_up():
    assert resolve("guide/start.html", "../index.html") == "index.html"


def test_link_within_the_page():
    assert resolve("guide/start.html", "#top") == "guide/start.html#top"
