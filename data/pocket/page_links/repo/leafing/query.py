"""The page number within an address."""

PARAMETER = "page="


def split_url(url):
    """Cut an address into path, query (without "?") and fragment (with "#")."""
    rest, mark, fragment = url.partition("#")
    path, _, query = rest.partition("?")
    return path, query, mark + fragment


def page_of(url):
    """The page number in an address, 1 when it has none that makes sense."""
    for part in split_url(url)[1].split("&"):
        name, _, value = part.partition("=")
        if name == "page" and value.isdigit():
            return max(1, int(value))
    return 1


def with_page(url, number):
    """The same address, showing another page."""
    path, query, fragment = split_url(url)
    at = query.find(PARAMETER)
    if at >= 0:
        end = query.find("&", at)
        tail = query[end:] if end >= 0 else ""
        query = f"{query[:at]}{PARAMETER}{number}{tail}"
    elif query:
        query = f"{query}&{PARAMETER}{number}"
    else:
        query = f"{PARAMETER}{number}"
    return f"{path}?{query}{fragment}"
