"""Layered INI settings: sections that inherit from other sections."""

from layerconf.parser import ConfigError
from layerconf.resolve import Config

__all__ = ["Config", "ConfigError"]
