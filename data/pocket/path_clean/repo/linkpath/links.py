"""Links as they are written in pages."""

from linkpath.clean import normalise


def split_fragment(link):
    """Return (path, fragment), the fragment with its # or empty."""
    path, mark, fragment = link.partition("#")
    return path, mark + fragment


def folder_of(page):
    """The folder a page is in, with a closing slash, or an empty string."""
    return page[:page.rfind("/") + 1]


def resolve(page, link):
    """The path that link, found in page, leads to; a fragment stays at the end."""
    path, fragment = split_fragment(link)
    if not path:
        return normalise(page) + fragment
    if path.startswith("/"):
        return normalise(path) + fragment
    return normalise(folder_of(page) + path) + fragment
