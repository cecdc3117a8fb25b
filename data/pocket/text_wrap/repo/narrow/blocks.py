"""Paragraphs, lists and glossaries."""

from narrow.wrap import wrap


def paragraphs(text, width):
    """Text with empty lines between its paragraphs, each of them wrapped."""
    blocks = []
    block = []
    for line in text.split("\n") + [""]:
        if line.strip():
            block.append(line)
        elif block:
            blocks.append("\n".join(wrap(" ".join(block), width)))
            block = []
    return "\n\n".join(blocks)


def bullets(items, width, mark="* "):
    """A list; the text of each item is aligned behind its mark."""
    lines = []
    for item in items:
        lines.extend(wrap(item, width, first=mark, rest=" " * len(mark)))
    return "\n".join(lines)


def entry(term, meaning, width, indent=4):
    """A glossary entry: the term, and further lines set in by `indent`."""
    return "\n".join(wrap(meaning, width, first=term + ": ", rest=" " * indent))
