"""Fill in form letters."""

from letters.template import TemplateError, render

__all__ = ["TemplateError", "render"]
