"""Counts and lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """1 image, 2 images."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def shown(names: Sequence[str], most: int = 5) -> str:
    """A few names: 'a', 'b' and 7 more."""
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
