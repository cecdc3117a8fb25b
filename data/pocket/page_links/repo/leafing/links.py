"""Links to the neighbours of a page."""

from leafing.query import page_of, with_page


def links(url, pages):
    """Addresses by relation, for the page shown at `url`.

    "first" and "last" are always there, "prev" and "next" only where such a page exists.
    """
    current = pages.clamp(page_of(url))
    found = {"first": with_page(url, 1)}
    if current > 1:
        found["prev"] = with_page(url, current - 1)
    if current < pages.last:
        found["next"] = with_page(url, current + 1)
    found["last"] = with_page(url, pages.last)
    return found


def link_header(url, pages):
    """The same links as the text of a Link header."""
    return ", ".join(f'<{target}>; rel="{name}"' for name, target in links(url, pages).items())
