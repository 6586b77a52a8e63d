"""What a data source is, and the list of known ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pliant.data.images import ImageSet
from pliant.errors import PliantError


@dataclass
class Opened:
    """A source's images: either one part `all`, or some of `train`, `val` and `test`; and notes on what was ignored."""

    parts: dict[str, ImageSet]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SourceInfo:
    """One line of `pliant data`.

    Attributes:
        name: what to write.
        classes: how many, where known.
        what: what it holds.
        how: how to get it.
        present: usable now without a download; None where that depends on what is named.
    """

    name: str
    classes: int | None
    what: str
    how: str
    present: bool | None


class Source(Protocol):
    """A place that images come from."""

    def matches(self, spec: str) -> bool:
        """Is `spec` for this source? Must not raise, nor read much."""
        ...

    def open(self, spec: str) -> Opened:
        """Raises PliantError where the data is missing or damaged."""
        ...

    def catalogue(self) -> list[SourceInfo]:
        """What `pliant data` says of it."""
        ...


_sources: list[Source] = []


def register(source: Source) -> Source:
    """Add a source; it is asked before those registered earlier, so that a special case can win."""
    _sources.insert(0, source)
    return source


def catalogue() -> list[SourceInfo]:
    """All that can be named: what it is, how to get it, whether it is here."""
    return [line for source in reversed(_sources) for line in source.catalogue()]


def open_source(spec: str | Path) -> Opened:
    """The images that `spec` names.

    Raises:
        PliantError: nothing by that name, with near names; or what the source raises.
    """
    spec = str(spec)
    try:
        source = next((source for source in _sources if source.matches(spec)), None)
    except OSError as error:
        raise PliantError(f"{spec}: cannot be read ({error.strerror})") from error
    if source is not None:
        opened = source.open(spec)
        if spec in _names() and Path(spec).is_dir():
            opened.notes.append(f"{spec}: the data set of that name, not the folder; for the folder write ./{spec}")
        return opened
    if _looks_like_path(spec):
        raise PliantError(f"{spec}: no such file or folder")
    near = difflib.get_close_matches(spec, _names(), n=3, cutoff=0.5)
    offer = f"; did you mean {' or '.join(near)}?" if near else "; `pliant data` lists what can be named"
    raise PliantError(f"{spec!r}: no such folder, nor a data set of that name{offer}")


def _names() -> list[str]:
    return [line.name for line in catalogue()]


def _looks_like_path(spec: str) -> bool:
    return "/" in spec or "\\" in spec or spec.startswith((".", "~")) or Path(spec).suffix == ".parquet"
