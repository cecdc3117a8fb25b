"""Autocomplete over a weighted word list."""

from wordtrie.trie import KEEP, Trie

__all__ = ["KEEP", "Trie"]
