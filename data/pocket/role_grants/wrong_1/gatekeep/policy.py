"""Who may do what."""

from gatekeep.rules import Rule


class Policy:
    def __init__(self):
        self._rules = {}
        self._parents = {}
        self._members = {}

    def define(self, role, rules, inherits=()):
        """Define a role with its rules; the roles it inherits from must be defined before."""
        for parent in inherits:
            if parent not in self._rules:
                raise ValueError(f"unknown role {parent}")
        self._rules[role] = [Rule(text) for text in rules]
        self._parents[role] = list(inherits)

    def assign(self, user, *roles):
        """Give a user further roles."""
        for role in roles:
            if role not in self._rules:
                raise ValueError(f"unknown role {role}")
            self._members.setdefault(user, []).append(role)

    def rules_of(self, role):
        """The role's own rules, then those it inherits."""
        rules = list(self._rules[role])
        for parent in self._parents[role]:
            rules += self.rules_of(parent)
        return rules

    def can(self, user, permission):
        """Whether any role of the user allows the permission and none denies it."""
        for role in self._members.get(user, []):
            matching = [rule for rule in self.rules_of(role) if rule.matches(permission)]
            if matching and all(rule.allows for rule in matching):
                return True
        return False
