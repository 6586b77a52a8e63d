"""What the trained part of a model reads. Everything before it is frozen, so its output is computed once and kept."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from pliant.data import ImageSet, Preprocess, cache_folder, load_batch
from pliant.errors import PliantError
from pliant.files import remove_orphans
from pliant.progress import track
from pliant.report.words import size as human

Prefix = Callable[[Tensor], Tensor]
"""The frozen stages: images (B, 3, S, S) on the device to what the first trained stage reads (B, ...)."""

MEMORY_SHARE, DISK_SHARE = 0.25, 0.5
"""Shares of what is free that a cache may take unasked."""


class Inputs(Protocol):
    """A source of the trained part's inputs, by index."""

    @property
    def labels(self) -> np.ndarray: ...

    def batch(self, indices: np.ndarray, epoch: int) -> Tensor:
        """Inputs (B, ...) of the images at `indices`, in float32 on the CPU or the device."""
        ...


@dataclass
class Streamed:
    """Decodes, transforms and runs the frozen stages anew each time: for fresh augmentation, and for reading once."""

    images: ImageSet
    preprocess: Preprocess
    prefix: Prefix
    device: torch.device
    chunk: int
    augment: str = "none"
    seed: int = 0
    views: int | None = None

    @property
    def labels(self) -> np.ndarray:
        return self.images.labels

    def batch(self, indices: np.ndarray, epoch: int) -> Tensor:
        chosen = dict(zip(indices.tolist(), view_of(indices, epoch, self.views).tolist(), strict=True))
        return self.seen(indices, chosen)

    def seen(self, indices: np.ndarray, views: dict[int, int]) -> Tensor:
        """Outputs of the frozen stages for the named view of each image: a fixed function of seed, view and index."""

        def transform(image, index: int) -> Tensor:
            if self.augment == "none":
                return self.preprocess.evaluate(image)
            return self.preprocess.augment(image, self.augment, _mixed(self.seed, views[index], index))

        pixels = load_batch(self.images, indices, transform)
        with torch.no_grad():
            return torch.cat([self.prefix(part.to(self.device)) for part in pixels.split(self.chunk)]).float()


def view_of(indices: np.ndarray, epoch: int, views: int | None) -> np.ndarray:
    """Which view of each image an epoch shows: a new one each time or, of `views` fixed ones, each in its turn.

    Neighbours take different views in the same epoch, and each image cycles through all of its own.
    """
    return np.full(len(indices), epoch) if views is None else (epoch + indices) % views


@dataclass
class Cached:
    """Outputs of the frozen stages, computed once: (N, views, ...) in half precision."""

    values: np.ndarray
    labels: np.ndarray
    where: str

    def batch(self, indices: np.ndarray, epoch: int) -> Tensor:
        taken = self.values[indices, view_of(indices, epoch, self.values.shape[1])]
        return torch.from_numpy(np.ascontiguousarray(taken)).float()

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass
class Sampled:
    """Some of the images of `whole`."""

    whole: Inputs
    chosen: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        return self.whole.labels[self.chosen]

    def batch(self, indices: np.ndarray, epoch: int) -> Tensor:
        return self.whole.batch(self.chosen[indices], epoch)


def sampled(whole: Inputs, most: int, seed: int) -> Inputs:
    """`whole`, or at most `most` of its images, drawn by `seed`."""
    if len(whole.labels) <= most:
        return whole
    return Sampled(whole, np.sort(np.random.default_rng(seed).permutation(len(whole.labels))[:most]))


@dataclass(frozen=True)
class CacheRequest:
    """Where to keep cached outputs, and what they are a function of: their key in the cache folder."""

    mode: str
    views: int
    identity: dict

    def key(self, source: Streamed) -> str:
        named = {
            **self.identity,
            "images": source.images.digest(),
            "preprocess": source.preprocess.to_dict(),
            "augment": source.augment,
            "views": self.views,
            "seed": source.seed if source.augment != "none" else None,
        }
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:24]


def cached(source: Streamed, request: CacheRequest, say: Callable[[str], None], what: str) -> Inputs:
    """Compute the frozen stages' outputs for all images and views once, or return `source` where none may be kept.

    In memory where a quarter of what is free suffices, else in a memory-mapped file in the cache folder, whose size
    is said before it is written. An existing file of the same key is used again.

    Raises:
        PliantError: a cache was demanded and does not fit; a value does not fit into half precision.
    """
    path = cache_folder() / "features" / f"{request.key(source)}.npy"
    if path.is_file() and request.mode in ("auto", "file"):
        return Cached(np.load(path, mmap_mode="r", allow_pickle=False), source.labels, "file")
    first = source.batch(np.arange(min(source.chunk, len(source.labels))), 0)
    # fp16 ends at 65,504: leave room for larger values than the first images show.
    kind = np.float16 if float(first.abs().max()) < 16_000 else np.float32
    shape = (len(source.labels), request.views, *first.shape[1:])
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
    where = request.mode if request.mode != "auto" else _where(size)
    if where == "none":
        say(f"{what}: a cache of {human(size)} fits neither memory nor disk; computing everything each epoch")
        return source
    if where == "memory":
        if size > psutil.virtual_memory().available:
            raise PliantError(f"--cache memory: {human(size)} do not fit into what is free; take --cache file or off")
        values = np.empty(shape, kind)
        _fill(values, source, what)
        return Cached(values, source.labels, "memory")
    say(f"{what}: caching {human(size)} of frozen outputs in {path}")
    return Cached(_write_file(path, shape, kind, size, source, what), source.labels, "file")


def _fill(values: np.ndarray, source: Streamed, what: str) -> None:
    count, views = values.shape[:2]
    starts = [(view, start) for view in range(views) for start in range(0, count, source.chunk)]
    for view, start in track(starts, f"frozen outputs, {what}", unit=source.chunk):
        indices = np.arange(start, min(start + source.chunk, count))
        part = source.seen(indices, dict.fromkeys(indices.tolist(), view)).cpu().numpy().astype(values.dtype)
        if not np.isfinite(part).all():
            raise PliantError("an output of the frozen part does not fit into half precision; run with --cache off")
        values[indices, view] = part


def _write_file(path: Path, shape: Sequence[int], kind: type, size: int, source: Streamed, what: str) -> np.ndarray:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Reserve the space now: writing to a memory map of a full disk would kill the process.
        remove_orphans(path)
        with temporary.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size + 4096)
        values = np.lib.format.open_memmap(temporary, mode="w+", dtype=kind, shape=tuple(shape))
        _fill(values, source, what)
        values.flush()
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PliantError(
                f"{path.parent}: no space for a cache of {human(size)}; free some, set PLIANT_CACHE to another disk, "
                "or run with --cache off"
            ) from error
        raise PliantError(f"{path.parent}: cannot be written ({error.strerror}); set PLIANT_CACHE") from error
    finally:
        temporary.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _where(size: int) -> str:
    if size <= MEMORY_SHARE * psutil.virtual_memory().available:
        return "memory"
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return "file" if size <= DISK_SHARE * shutil.disk_usage(folder).free else "none"


def _mixed(seed: int, view: int, index: int) -> int:
    """One 63-bit seed from three numbers, well mixed."""
    digest = hashlib.blake2b(f"{seed}.{view}.{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
