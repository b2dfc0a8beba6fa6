"""Words for messages.  Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return e.g. ``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + "s" * (number != 1)
