"""Links between the pages of a list."""

from leafing.links import link_header, links
from leafing.pages import Pages
from leafing.query import page_of, with_page

__all__ = ["Pages", "link_header", "links", "page_of", "with_page"]
