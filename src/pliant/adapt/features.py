"""What the trained part of a model reads. Everything before it is frozen, so its output is computed once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from pliant.adapt.batches import view_of
from pliant.adapt.shelf import Cached, Shelf
from pliant.data import ImageSet, Preprocess, cache_folder, load_batch
from pliant.errors import PliantError
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
    """Where to keep cached outputs, and what they are a function of: their key.

    Attributes:
        mode: auto, memory or file.
        identity: whatever the outputs depend on besides images, pixels and views.
        shelf: a folder whose files several runs share; None for the user's cache folder.
        exact: keep float32, where half precision would do.
    """

    mode: str
    views: int
    identity: dict
    shelf: Path | None = None
    exact: bool = False

    def key(self, source: Streamed) -> str:
        augmented = source.augment != "none"
        named = {
            **self.identity,
            "preprocess": source.preprocess.to_dict(),
            "augment": source.augment,
            "views": self.views,
            "exact": self.exact,
            # An augmented view depends on the image's place in its set, a plain one on nothing but the image.
            "set": [source.images.digest(), source.seed] if augmented else None,
        }
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:24]

    def place(self, source: Streamed) -> Shelf:
        folder = self.shelf or cache_folder() / "features"
        return Shelf(folder / self.key(source))


def cached(source: Streamed, request: CacheRequest, say: Callable[[str], None], what: str) -> Inputs:
    """Compute the frozen stages' outputs for all images and views once, or return `source` where none may be kept.

    In memory where a quarter of what is free suffices, else memory-mapped in the cache folder, whose size is said
    before it is written; always so where runs share a folder. Outputs that are there already are used again.

    Raises:
        PliantError: a cache was demanded and does not fit; a value does not fit into half precision.
    """
    shelf, ids = request.place(source), source.images.ids
    missing = shelf.missing(ids)
    if not len(missing) and request.mode in ("auto", "file"):
        return shelf.inputs(ids, source.labels)
    first = source.batch(np.arange(min(source.chunk, len(source.labels))), 0)
    # fp16 ends at 65,504: leave room for larger values than the first images show.
    kind = np.float16 if float(first.abs().max()) < 16_000 and not request.exact else np.float32
    shape = (request.views, *first.shape[1:])
    each = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
    whole, size = each * len(ids), each * len(missing)  # memory holds all, a file what is not there yet
    where = request.mode if request.mode != "auto" else _where(whole, size, request.shelf)
    if where == "none":
        say(f"{what}: a cache of {human(size)} fits neither memory nor disk; computing everything each epoch")
        return source
    if where == "memory":
        if whole > psutil.virtual_memory().available:
            raise PliantError(f"--cache memory: {human(whole)} do not fit into what is free; take --cache file or off")
        values = np.empty((len(ids), *shape), kind)
        _fill(values, source, np.arange(len(ids)), what)
        return Cached.of(values, source.labels)
    say(f"{what}: caching {human(size)} of frozen outputs in {shelf.folder}")
    shelf.add(ids, shape, kind, lambda values, indices: _fill(values, source, indices, what))
    return shelf.inputs(ids, source.labels)


def _fill(values: np.ndarray, source: Streamed, images: np.ndarray, what: str) -> None:
    """Compute the outputs of `images` (n,) of the set, all views of them, into `values` (n, views, ...)."""
    views = values.shape[1]
    starts = [(view, start) for view in range(views) for start in range(0, len(images), source.chunk)]
    for view, start in track(starts, f"frozen outputs, {what}", unit=source.chunk):
        indices = images[start : start + source.chunk]
        # Always a whole chunk: rounding depends on a batch's size, and must not depend on who computes an output.
        whole = np.pad(indices, (0, source.chunk - len(indices)), mode="edge")
        part = source.seen(whole, dict.fromkeys(indices.tolist(), view))[: len(indices)]
        rounded = part.cpu().numpy().astype(values.dtype)
        if not np.isfinite(rounded).all():
            raise PliantError("an output of the frozen part does not fit into half precision; run with --cache off")
        values[start : start + len(indices), view] = rounded


def _where(whole: int, size: int, shelf: Path | None) -> str:
    if shelf is None and whole <= MEMORY_SHARE * psutil.virtual_memory().available:
        return "memory"
    folder = shelf or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return "file" if size <= DISK_SHARE * shutil.disk_usage(folder).free else "none"


def _mixed(seed: int, view: int, index: int) -> int:
    """One 63-bit seed from three numbers, well mixed."""
    digest = hashlib.blake2b(f"{seed}.{view}.{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
