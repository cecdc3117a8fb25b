"""Read the text of a settings file into sections, without resolving anything."""


class ConfigError(Exception):
    """The settings text, or a reference inside it, cannot be understood."""


class Section:
    def __init__(self, name, parents):
        self.name = name
        self.parents = parents
        self.values = {}


def parse_header(line, number):
    if not line.endswith("]"):
        raise ConfigError(f"line {number}: section header is not closed")
    name, _, parents = line[1:-1].partition(":")
    name = name.strip()
    if not name:
        raise ConfigError(f"line {number}: section without a name")
    return Section(name, [part.strip() for part in parents.split(",") if part.strip()])


def parse(text):
    """Return {section name: Section} in file order."""
    sections = {}
    current = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            current = parse_header(line, number)
            if current.name in sections:
                raise ConfigError(f"line {number}: section [{current.name}] appears twice")
            sections[current.name] = current
            continue
        key, equals, value = line.partition("=")
        if not equals or current is None:
            raise ConfigError(f"line {number}: expected key = value inside a section")
        current.values[key.strip()] = value.strip()
    return sections
