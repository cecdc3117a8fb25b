"""Permission patterns such as invoice:read, invoice:* or *."""


class Rule:
    def __init__(self, text):
        """A leading ! makes the rule a denial."""
        self.allows = not text.startswith("!")
        self.parts = text.lstrip("!").split(":")

    def matches(self, permission):
        """True when every part agrees; a closing * stands for all the parts that are left."""
        wanted = permission.split(":")
        for index, part in enumerate(self.parts):
            if part == "*" and index == len(self.parts) - 1:
                return True
            if index >= len(wanted) or part not in ("*", wanted[index]):
                return False
        return len(wanted) == len(self.parts)

    def __repr__(self):
        return ("" if self.allows else "!") + ":".join(self.parts)
