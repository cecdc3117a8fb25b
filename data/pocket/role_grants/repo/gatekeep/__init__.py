"""Role based permissions with inheritance, wildcards and denials."""

from gatekeep.policy import Policy

__all__ = ["Policy"]
