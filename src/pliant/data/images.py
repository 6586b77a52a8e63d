"""A labelled set of images, and batches of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from pliant.data.stores import Store
from pliant.data.wording import counted, shown
from pliant.errors import PliantError

if TYPE_CHECKING:
    from torch import Tensor

Transform = Callable[[Image.Image, int], "Tensor"]
"""An image and its index in the set, to a tensor (3, S, S)."""


class ImageSet:
    """One split: images, decoded when asked for, and their labels. Immutable.

    Attributes:
        name: what people call it, such as `cifar10/train`.
        classes: class names; labels index into them.
        labels: int64 (N,).
        store: where the images lie.
        rows: int64 (N,), the images' rows in the store.
    """

    def __init__(
        self, name: str, classes: Sequence[str], labels: np.ndarray, store: Store, rows: np.ndarray | None = None
    ):
        self.name = name
        self.classes = tuple(classes)
        self.store = store
        self.rows = _frozen(np.arange(len(store)) if rows is None else rows)
        self.labels = _frozen(labels)
        if len(self.rows) != len(self.labels):
            raise ValueError(f"{name}: {counted(len(self.rows), 'image')} and {counted(len(self.labels), 'label')}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageSet({self.name!r}, {len(self)} images, {len(self.classes)} classes)"

    def image(self, index: int) -> Image.Image:
        """The image in RGB, upright. Raises PliantError, naming it, where it cannot be decoded."""
        return self.store.read(int(self.rows[index]))

    def key(self, index: int) -> str:
        """A stable name for people: a relative path, or `train.parquet#123`."""
        return self.store.key(int(self.rows[index]))

    def subset(self, indices: Sequence[int] | np.ndarray) -> ImageSet:
        """The images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return ImageSet(self.name, self.classes, self.labels[chosen], self.store, self.rows[chosen])

    def named(self, name: str) -> ImageSet:
        return ImageSet(name, self.classes, self.labels, self.store, self.rows)

    def with_classes(self, classes: Sequence[str]) -> ImageSet:
        """The same images with labels that index into `classes`, matched by name.

        Raises:
            PliantError: an image's class is not among `classes`.
        """
        if tuple(classes) == self.classes:
            return self
        index = {name: position for position, name in enumerate(classes)}
        used = np.unique(self.labels)
        unknown = [self.classes[label] for label in used if self.classes[label] not in index]
        if unknown:
            what = "class" if len(unknown) == 1 else "classes"
            raise PliantError(
                f"{self.name}: {what} {shown(unknown)} unknown to training, which has {shown(classes)}; "
                "rename or remove, or add to the training images"
            )
        lookup = np.array([index.get(name, -1) for name in self.classes], dtype=np.int64)
        return ImageSet(self.name, classes, lookup[self.labels], self.store, self.rows)

    def counts(self) -> np.ndarray:
        """Images of each class, int64 (classes,)."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def digest(self) -> str:
        """SHA-256 over classes, keys, labels and the identity of the images' content; for keys of caches."""
        return self._digest

    @cached_property
    def ids(self) -> np.ndarray:
        """What tells every image's content from that of others in its source: uint8 (N, 16)."""
        keys = map(self.store.key, self.rows.tolist())
        found = zip(keys, self.store.signatures(self.rows, True), strict=True)
        marks = [
            hashlib.blake2b(f"{key}\0{mark}".encode("utf-8", "surrogateescape"), digest_size=16) for key, mark in found
        ]
        return np.frombuffer(b"".join(mark.digest() for mark in marks), np.uint8).reshape(-1, 16)

    @cached_property
    def _digest(self) -> str:
        return content_digest(self, times=True)


def content_digest(images: ImageSet, times: bool) -> str:
    """SHA-256 over classes, keys, labels and sizes of images; and times of change, if `times`."""
    keys = map(images.store.key, images.rows.tolist())
    found = zip(keys, images.labels.tolist(), images.store.signatures(images.rows, times), strict=True)
    text = "\n".join([repr(images.classes), *(f"{key}\0{label}\0{signature}" for key, label, signature in found)])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def load_batch(images: ImageSet, indices: Sequence[int] | np.ndarray, transform: Transform) -> Tensor:
    """Decode and transform the images at `indices` in a few threads.

    Args:
        transform: takes an image and its index in `images`, gives a tensor (3, S, S).

    Returns:
        (B, 3, S, S), in the order of `indices` whatever the threads do.

    Raises:
        PliantError: an image cannot be decoded.
    """
    import torch

    return torch.stack(map_images(lambda i: transform(images.image(i), i), [int(i) for i in indices]))


def map_images(function: Callable[[int], object], indices: Sequence[int]) -> list:
    """`[function(i) for i in indices]` in threads: Pillow and NumPy release the interpreter's lock as they work."""
    workers = _workers()
    # One piece a thread: handing over single thumbnails would cost as much as decoding them.
    size = max(4, -(-len(indices) // workers))
    pieces = [indices[start : start + size] for start in range(0, len(indices), size)]
    if len(pieces) < 2:
        return [function(i) for i in indices]
    done = _pool(os.getpid()).map(lambda piece: [function(i) for i in piece], pieces)
    return list(chain.from_iterable(done))


def _workers() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, available)


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Kept between batches; keyed by the process, for threads do not survive a fork."""
    return ThreadPoolExecutor(_workers(), thread_name_prefix="pliant-data")


def _frozen(values: np.ndarray) -> np.ndarray:
    copy = np.array(values, dtype=np.int64)
    copy.setflags(write=False)
    return copy
