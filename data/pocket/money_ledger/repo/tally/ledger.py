"""What each member owes."""

from tally.money import format_cents, parse_cents
from tally.split import allocate


class Ledger:
    """Balances in cents, by member; a positive balance is owed by the member."""

    def __init__(self, members):
        self.balances = {member: 0 for member in members}
        self.entries = []

    def post(self, note, amount, weights):
        """Split `amount` (text) over the members in `weights` and add it to their balances."""
        unknown = [member for member in weights if member not in self.balances]
        if unknown:
            raise KeyError(f"not a member: {unknown[0]}")
        shares = allocate(parse_cents(amount), list(weights.values()))
        for member, share in zip(weights, shares):
            self.balances[member] += share
        self.entries.append((note, amount))

    def total(self):
        """The sum of all balances, as text."""
        return format_cents(sum(self.balances.values()))

    def statement(self):
        """One line a member, in the order in which the members were given."""
        return [f"{member} {format_cents(cents)}" for member, cents in self.balances.items()]
