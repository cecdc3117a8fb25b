"""One letter of the trie, with a short list of the best words below it."""


def rank(entry):
    """Sort key of a (word, weight) entry: heavier first, then alphabetical."""
    word, weight = entry
    return -weight, word


class Node:
    def __init__(self):
        self.children = {}
        self.word = None
        self.weight = 0
        self.top = []

    def offer(self, word, weight, keep):
        """Take an entry into the short list, replacing an older one for the same word."""
        self.forget(word)
        self.top.append((word, weight))
        self.top.sort(key=rank)
        del self.top[keep:]

    def forget(self, word):
        self.top = [entry for entry in self.top if entry[0] != word]
