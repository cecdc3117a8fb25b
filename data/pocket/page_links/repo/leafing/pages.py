"""How many pages there are, and what is on them."""


class Pages:
    """A list of `total` items, cut into pages of `size` items."""

    def __init__(self, total, size):
        if size < 1:
            raise ValueError("a page needs room for one item")
        self.total = total
        self.size = size

    @property
    def last(self):
        """The number of the last page; an empty list has one empty page."""
        return max(1, -(-self.total // self.size))

    def clamp(self, number):
        """The nearest page that exists."""
        return min(max(1, number), self.last)

    def bounds(self, number):
        """Indexes of the first item on a page and of the one after its last."""
        start = (self.clamp(number) - 1) * self.size
        return start, min(start + self.size, self.total)
