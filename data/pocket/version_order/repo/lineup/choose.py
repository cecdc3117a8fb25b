"""Choosing among several versions."""

from lineup.version import parse


def in_order(texts):
    """The same texts, lowest version first; equal ones stay in the order given."""
    return sorted(texts, key=lambda text: parse(text).key())


def newest(texts, allow_pre=False):
    """The highest version, or None; pre-releases count only with `allow_pre`.

    Texts that are no version numbers (branch names, for example) are passed over.
    """
    best = None
    for text in texts:
        try:
            version = parse(text)
        except ValueError:
            continue
        if not (allow_pre or version.stable):
            continue
        if best is None or version.key() > best.key():
            best = version
    return None if best is None else str(best)
