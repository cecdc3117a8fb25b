"""A trie whose nodes remember their best words, so that a lookup walks only the prefix."""

from wordtrie.node import Node, rank

KEEP = 3


class Trie:
    def __init__(self):
        self._root = Node()

    def _path(self, word):
        """The nodes from the root down to the end of word; stops early where letters are missing."""
        nodes = [self._root]
        for letter in word:
            child = nodes[-1].children.get(letter)
            if child is None:
                break
            nodes.append(child)
        return nodes

    def _refresh(self, path):
        """Rebuild the short lists along a path, deepest node first, as each draws on its children."""
        for node in reversed(path):
            entries = [entry for child in node.children.values() for entry in child.top]
            if node.word is not None:
                entries.append((node.word, node.weight))
            node.top = sorted(entries, key=rank)[:KEEP]

    def add(self, word, weight):
        """Add a word, or give a known word a new weight."""
        path = self._path(word)
        for letter in word[len(path) - 1:]:
            child = path[-1].children[letter] = Node()
            path.append(child)
        path[-1].word = word
        path[-1].weight = weight
        for node in path:
            node.offer(word, weight, KEEP)

    def remove(self, word):
        """Take a word out; KeyError when it is not there."""
        path = self._path(word)
        if path[-1].word != word:
            raise KeyError(word)
        path[-1].word = None
        self._refresh(path)

    def suggest(self, prefix, limit=KEEP):
        """The best words that start with prefix, at most limit and at most KEEP of them."""
        path = self._path(prefix)
        if len(path) != len(prefix) + 1:
            return []
        return [word for word, _ in path[-1].top[:limit]]
