"""Replace {placeholders} in a text. A backslash makes the next brace or backslash literal."""

from letters.filters import apply


class TemplateError(ValueError):
    """The template is not well formed, or asks for something that is not there."""


def unescape(text):
    """Drop the backslash in front of each escaped character of a literal stretch."""
    out = []
    index = 0
    while index < len(text):
        if text[index] == "\\" and text[index + 1:index + 2] in ("\\", "{", "}"):
            index += 1
        out.append(text[index])
        index += 1
    return "".join(out)


def find_open(text, start):
    """Position of the next { that opens a placeholder, or -1."""
    index = text.find("{", start)
    while index > 0 and text[index - 1] == "\\" and text[index - 2:index] != "\\\\":
        index = text.find("{", index + 1)
    return index


def fill(field, values):
    """The value for the inside of one placeholder: a name, then filters."""
    name, *filters = field.split("|")
    try:
        return apply(str(values[name.strip()]), filters)
    except KeyError as error:
        raise TemplateError(f"unknown name {error.args[0]}") from None


def render(text, values):
    """Return text with every placeholder replaced; replaced values are not looked at again."""
    out = []
    position = 0
    while (start := find_open(text, position)) >= 0:
        end = text.find("}", start)
        if end < 0:
            raise TemplateError("placeholder is not closed")
        out.append(unescape(text[position:start]))
        out.append(fill(text[start + 1:end], values))
        position = end + 1
    out.append(unescape(text[position:]))
    return "".join(out)
