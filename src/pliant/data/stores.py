"""Where images lie: in files, in an Arrow column, in an array. Each row is decoded when it is asked for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from pliant.data.decode import decode
from pliant.errors import PliantError


class Store(Protocol):
    """Images by row."""

    def __len__(self) -> int: ...

    def key(self, row: int) -> str:
        """A name for people that stays the same when the data is moved."""
        ...

    def read(self, row: int) -> Image.Image:
        """The image in RGB; raises PliantError naming `key(row)` where it cannot be decoded."""
        ...

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        """What changes when an image does: its size in bytes and the like; its time of change too, if `times`."""
        ...


def decoded_by(store: Store) -> Store:
    """The store that decodes: `store`, or what it computes its images from, row by row, as its `origin`."""
    while (origin := getattr(store, "origin", None)) is not None:
        store = origin
    return store


@dataclass(frozen=True)
class FileStore:
    """Image files below `root`; `paths` are relative to it, with slashes."""

    root: Path
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def key(self, row: int) -> str:
        return self.paths[row]

    def read(self, row: int) -> Image.Image:
        path = self.root / self.paths[row]
        return decode(path, str(path))

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        return [_file_signature(self.root / self.paths[row], times) for row in rows.tolist()]


class ArrowStore:
    """A column of encoded images, binary or struct<bytes, path>, left in Arrow's own memory.

    Args:
        column: a pyarrow ChunkedArray.
        name: what keys begin with: `train.parquet` gives `train.parquet#0`.
        stamp: identity of the file besides its rows: size and time of change.
        root: folder for rows that hold a path and no bytes.
    """

    def __init__(self, column: Any, name: str, stamp: str, root: Path):
        import pyarrow.compute as pc
        import pyarrow.types as kinds

        self.name, self.stamp, self.root = name, stamp, root
        struct = kinds.is_struct(column.type)
        self._bytes = pc.struct_field(column, "bytes") if struct else column
        self._paths = pc.struct_field(column, "path") if struct and column.type.get_field_index("path") >= 0 else None
        self._starts = np.cumsum([0, *(len(chunk) for chunk in self._bytes.chunks)])

    def __len__(self) -> int:
        return len(self._bytes)

    def key(self, row: int) -> str:
        return f"{self.name}#{row}"

    def read(self, row: int) -> Image.Image:
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        scalar = self._bytes.chunk(chunk)[row - int(self._starts[chunk])]
        if scalar.is_valid:
            return decode(memoryview(scalar.as_buffer()), self.key(row))
        path = self._paths[row].as_py() if self._paths is not None else None
        if path is None:
            raise PliantError(f"{self.key(row)}: holds no image")
        return decode(self.root / path, f"{self.key(row)} ({path})")

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        import pyarrow.compute as pc

        sizes = np.asarray(pc.fill_null(pc.binary_length(self._bytes), -1).to_numpy())[rows].tolist()
        return [f"{size}.{self.stamp}" for size in sizes] if times else [str(size) for size in sizes]


@dataclass(frozen=True)
class ArrayStore:
    """Pixels in memory: uint8 (N, H, W) or (N, H, W, 3)."""

    pixels: np.ndarray
    name: str

    def __len__(self) -> int:
        return len(self.pixels)

    def key(self, row: int) -> str:
        return f"{self.name}#{row}"

    def read(self, row: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self.pixels[row])).convert("RGB")

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        return [str(zlib.crc32(self.pixels[row].tobytes())) for row in rows.tolist()]


class JoinedStore:
    """Several stores as one, in order: the shards of a split."""

    def __init__(self, stores: Sequence[Store]):
        self.stores = tuple(stores)
        self._starts = np.cumsum([0, *(len(store) for store in self.stores)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def key(self, row: int) -> str:
        store, inner = self._at(row)
        return store.key(inner)

    def read(self, row: int) -> Image.Image:
        store, inner = self._at(row)
        return store.read(inner)

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        found = np.empty(len(rows), dtype=object)
        for index, store in enumerate(self.stores):
            start, end = self._starts[index], self._starts[index + 1]
            inside = (rows >= start) & (rows < end)
            found[inside] = store.signatures(rows[inside] - start, times)
        return found.tolist()

    def _at(self, row: int) -> tuple[Store, int]:
        index = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.stores[index], row - int(self._starts[index])


def _file_signature(path: Path, times: bool) -> str:
    try:
        found = path.stat()
    except OSError:
        return "missing"
    return f"{found.st_size}.{found.st_mtime_ns}" if times else str(found.st_size)
