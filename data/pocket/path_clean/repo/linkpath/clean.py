"""Lexical normalisation of slash separated paths."""


def normalise(path):
    """Return the shortest path that names the same place.

    Empty and "." parts go, and ".." takes the part before it along. An absolute path cannot leave
    the root; a relative one keeps each leading ".." that has nothing to take along. The result has
    no closing slash, except for the root itself, and an empty relative path is ".".
    """
    absolute = path.startswith("/")
    kept = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            kept.append(part)
        elif kept:
            kept.pop()
        elif not absolute:
            kept.append(part)
    if absolute:
        return "/" + "/".join(kept)
    return "/".join(kept) or "."
