"""Frozen outputs on disk, image by image: every run that reads an image through the same stages finds it there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pliant.adapt.batches import view_of
from pliant.errors import PliantError
from pliant.files import held, remove_orphans
from pliant.report.words import size as human

Fill = Callable[[np.ndarray, np.ndarray], None]
"""Computes outputs: takes an array (n, views, ...) to fill, and which images (n,) of the set it is for."""


@dataclass
class Cached:
    """Outputs of the frozen stages, computed once, in one or several arrays.

    Attributes:
        parts: arrays (n, views, ...), in memory or memory-mapped.
        part, row: int64 (N,), where each image's outputs are.
        labels: int64 (N,).
        where: `memory` or `file`.
    """

    parts: list[np.ndarray]
    part: np.ndarray
    row: np.ndarray
    labels: np.ndarray
    where: str

    @classmethod
    def of(cls, values: np.ndarray, labels: np.ndarray) -> Cached:
        """Of one array in memory, in the images' order."""
        return cls([values], np.zeros(len(values), np.int64), np.arange(len(values)), labels, "memory")

    def batch(self, indices: np.ndarray, epoch: int) -> Tensor:
        part, row = self.part[indices], self.row[indices]
        view = view_of(indices, epoch, self.parts[0].shape[1])
        taken = np.empty((len(indices), *self.parts[0].shape[2:]), np.float32)
        for number in np.unique(part):
            here = part == number
            taken[here] = self.parts[number][row[here], view[here]]
        return torch.from_numpy(taken)

    @property
    def nbytes(self) -> int:
        """Bytes of these images' outputs."""
        return sum(values[:1].nbytes * int((self.part == number).sum()) for number, values in enumerate(self.parts))


@dataclass(frozen=True)
class Shelf:
    """A folder of outputs of one kind: the same stages, weights, pixels and views.

    What one run adds is one file of outputs and one of the images' identities, written once and never changed; so runs
    in several processes can share the folder, and a kill leaves nothing half-written.
    """

    folder: Path

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Which of the images, uint8 (N, 16) as of `ImageSet.ids`, are not there yet: indices (n,)."""
        known = self._known()[1]
        return np.array([index for index, each in enumerate(ids) if each.tobytes() not in known], dtype=np.int64)

    def inputs(self, ids: np.ndarray, labels: np.ndarray) -> Cached:
        """The outputs of images that are all there."""
        parts, known = self._known()
        place = np.array([known[each.tobytes()] for each in ids], dtype=np.int64)
        return Cached(parts, place[:, 0], place[:, 1], labels, "file")

    def add(self, ids: np.ndarray, shape: tuple[int, ...], kind: type, fill: Fill) -> None:
        """Compute, for all images that are missing once it is this process's turn, outputs of `shape` (views, ...)."""
        with held(self.folder / "lock", wait=True):
            missing = self.missing(ids)
            if not len(missing):
                return
            number = len(self._known()[0])
            values = self.folder / f"{number}.npy"
            self._write(values, (len(missing), *shape), kind, lambda array: fill(array, missing))
            # Last, since what has no identities is not looked at.
            self._write(self.folder / f"{number}.ids.npy", (len(missing), ids.shape[1]), np.uint8,
                        lambda array: np.copyto(array, ids[missing]))  # fmt: skip

    def _known(self) -> tuple[list[np.ndarray], dict[bytes, tuple[int, int]]]:
        """The files of outputs, and where in them each image is."""
        parts: list[np.ndarray] = []
        known: dict[bytes, tuple[int, int]] = {}
        while (names := self.folder / f"{len(parts)}.ids.npy").is_file():
            ids = np.load(names, allow_pickle=False)
            known.update((each.tobytes(), (len(parts), row)) for row, each in enumerate(ids))
            parts.append(np.load(self.folder / f"{len(parts)}.npy", mmap_mode="r", allow_pickle=False))
        return parts, known

    def _write(self, path: Path, shape: tuple[int, ...], kind: type, fill: Callable[[np.ndarray], None]) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            # Reserve the space now: writing to a memory map of a full disk would kill the process.
            remove_orphans(path)
            with temporary.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size + 4096)
            values = np.lib.format.open_memmap(temporary, mode="w+", dtype=kind, shape=shape)
            fill(values)
            values.flush()
            os.replace(temporary, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise PliantError(
                    f"{path.parent}: no space for a cache of {human(size)}; free some, set PLIANT_CACHE to another "
                    "disk, or run with --cache off"
                ) from error
            raise PliantError(f"{path.parent}: cannot be written ({error.strerror}); set PLIANT_CACHE") from error
        finally:
            temporary.unlink(missing_ok=True)
