"""Text for narrow places."""

from narrow.blocks import bullets, entry, paragraphs
from narrow.wrap import wrap

__all__ = ["bullets", "entry", "paragraphs", "wrap"]
