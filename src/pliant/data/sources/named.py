"""Data sets that are found by name in the data folder, and downloading those that can be."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pliant.data.places import data_folder
from pliant.data.sources.image_folder import open_folder
from pliant.data.sources.parquet import files_below, open_parquet
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.errors import PliantError
from pliant.progress import say

_PATIENCE = 30.0
"""Seconds without an answer after which a download has failed."""


@dataclass(frozen=True)
class Named:
    """One data set that is known by name.

    Attributes:
        name: what people write.
        classes, what: for the catalogue.
        marks: paths below the data folder that are all there once it has been unpacked.
        read: the images, from the data folder.
        download: fetches and unpacks into the folder that it is given; None where people must do it themselves.
        by_hand: what to put where, for people without a connection.
    """

    name: str
    classes: int
    what: str
    marks: tuple[str, ...]
    read: Callable[[Path], Opened]
    download: Callable[[Path], object] | None
    by_hand: str

    def matches(self, spec: str) -> bool:
        return spec == self.name

    def open(self, spec: str) -> Opened:
        root = data_folder()
        if self._own_copy(root):
            folder = root / self.name
            return open_parquet(folder, self.name) if files_below(folder) else open_folder(folder, self.name)
        if not self._unpacked(root):
            self._fetch(root)
        try:
            return self.read(root)
        except (OSError, RuntimeError, ValueError, KeyError, IndexError) as error:
            raise PliantError(f"{self.name}: damaged in {root} ({error}); remove it there and try again") from error

    def catalogue(self) -> list[SourceInfo]:
        root = data_folder()
        how = "downloaded when first used" if self.download else self.by_hand
        return [SourceInfo(self.name, self.classes, self.what, how, self._own_copy(root) or self._unpacked(root))]

    def _unpacked(self, root: Path) -> bool:
        return all((root / mark).exists() for mark in self.marks)

    def _own_copy(self, root: Path) -> bool:
        """A folder of the data set's name with images or parquet files that somebody put there."""
        return (root / self.name).is_dir()

    def _fetch(self, root: Path) -> None:
        instead = f"{self.by_hand} in {root}, or name a folder of images or a parquet file instead"
        if self.download is None:
            raise PliantError(f"{self.name}: not found in {root}; {instead}")
        say(f"{self.name}: downloading into {root}")
        # Unpacked elsewhere first: half an archive must never pass for a data set.
        partial = root / f".{self.name}.{os.getpid()}.partial"
        try:
            partial.mkdir(parents=True, exist_ok=True)
            with _impatient():
                self.download(partial)
            for entry in sorted(partial.iterdir()):
                if not (root / entry.name).exists():
                    os.replace(entry, root / entry.name)
        except (OSError, RuntimeError, EOFError, ValueError) as error:
            raise PliantError(f"{self.name}: cannot be downloaded ({_first_line(error)}); {instead}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """A firewall that swallows packets must not hang the program."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
