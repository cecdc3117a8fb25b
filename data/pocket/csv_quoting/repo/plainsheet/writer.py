"""Tables to text."""

SPECIAL = (",", '"', "\n")


def quote(field):
    """A field as it stands in the text, in double quotes where they are needed."""
    if any(character in field for character in SPECIAL):
        doubled = field.replace('"', '""')
        return f'"{doubled}"'
    return field


def dump_row(row):
    """One row as text, without the line break at its end."""
    if list(row) == [""]:
        return '""'  # not to be taken for an empty line
    return ",".join(quote(field) for field in row)


def dump(rows):
    """All rows as text; every row ends with a line break."""
    return "".join(dump_row(row) + "\n" for row in rows)
