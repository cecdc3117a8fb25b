"""Filling lines with words."""


def fits(line, word, room):
    """Whether a word can be added to the words of a line that has so much room."""
    if not line:
        return True
    return sum(len(part) + 1 for part in line) + len(word) <= room


def wrap(text, width, first="", rest=""):
    """The lines of a text, none longer than `width` unless a single word is.

    The first line starts with `first`, all others with `rest`.
    """
    if width < 1:
        raise ValueError("the width must be positive")
    room = width - len(first)
    lines = []
    line = []
    for word in text.split():
        if not fits(line, word, room):
            lines.append(line)
            line = []
        line.append(word)
    if line:
        lines.append(line)
    return [
        (rest if number else first) + " ".join(words) for number, words in enumerate(lines)
    ]
