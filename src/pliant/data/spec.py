"""What people write for data, taken apart: `DATA[n=500]`, and paths within it."""

from __future__ import annotations

import re
from pathlib import Path

from pliant.errors import PliantError

_BRACKETS = re.compile(r"[\[\]]")


def without_count(spec: str) -> tuple[str, int | None]:
    """`digits[n=500]` as `digits` and 500; anything without brackets as it is, and None.

    A path that exists is a path, brackets and all.

    Raises:
        PliantError: brackets that are neither.
    """
    if not _BRACKETS.search(spec) or _exists(spec) or _exists(_within(spec)):
        return spec, None
    found = re.fullmatch(r"(.+)\[n=([1-9][0-9]{0,17})\]", spec)
    if found is None:
        raise PliantError(
            f"{spec}: no such file or folder, nor data with a number of training images in brackets, as in digits[n=500]"
        )
    source = found[1]
    if without_count(source)[1] is not None:
        raise PliantError(f"{spec}: has two numbers of training images in brackets; give one, as in digits[n=500]")
    return source, int(found[2])


def absolute(spec: str) -> str:
    """The same data, wherever it is asked for: paths that exist made absolute, all else as it is.

    Raises:
        PliantError: as `without_count`.
    """
    source, count = without_count(spec)
    where = place(spec)
    if where is None:
        return spec
    brackets = "" if count is None else f"[n={count}]"
    return f"{source.removesuffix(where)}{Path(where).expanduser().resolve()}{brackets}"


def place(spec: str) -> str | None:
    """The path that data lie at, as it is written in `spec`; None where they are known by a name alone.

    Raises:
        PliantError: as `without_count`.
    """
    source, _ = without_count(spec)
    return next((path for path in (source, _within(source)) if _exists(path)), None)


def _within(spec: str) -> str:
    """The part after a source's name and a colon, as in `cifar10c-snow-5:PATH`."""
    return spec.partition(":")[2]


def _exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).expanduser().exists()
    except (OSError, RuntimeError):
        return False
