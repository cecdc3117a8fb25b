"""Text to tables."""


def split_row(line):
    """The fields of one row."""
    fields = []
    field = ""
    quoted = False
    at = 0
    while at < len(line):
        character = line[at]
        if quoted and character == '"' and line[at + 1:at + 2] == '"':
            field += '"'
            at += 1
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            fields.append(field)
            field = ""
        else:
            field += character
        at += 1
    fields.append(field)
    return fields


def row_texts(text):
    """The text of each row, in order."""
    found = []
    for line in text.split("\n"):
        if line == "":
            continue
        found.append(line)
    return found


def load(text):
    """All rows as lists of strings."""
    return [split_row(row_text) for row_text in row_texts(text)]


def load_records(text):
    """One dict a row, with the fields of the first row as keys."""
    rows = load(text)
    if not rows:
        return []
    names = rows[0]
    return [dict(zip(names, row)) for row in rows[1:]]
