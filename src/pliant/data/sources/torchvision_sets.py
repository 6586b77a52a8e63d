"""SVHN, Oxford-IIIT Pet, Food-101, Flowers-102 and FGVC Aircraft, downloaded and listed by torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources.named import Named
from pliant.data.sources.registry import Opened
from pliant.data.stores import ArrayStore, FileStore

Splits = Mapping[str, str]
"""Our name of a split to torchvision's."""

_TRAIN_TEST = {"train": "train", "test": "test"}
_TRAINVAL_TEST = {"train": "trainval", "test": "test"}
_THREE = {"train": "train", "val": "val", "test": "test"}


def _load(kind: str, root: Path, split: str, download: bool = False) -> Any:
    from torchvision import datasets

    return getattr(datasets, kind)(str(root), split=split, download=download)


def _download(kind: str, splits: Splits, folder: Path) -> None:
    for split in splits.values():
        _load(kind, folder, split, download=True)


def _read_files(kind: str, splits: Splits, name: str, paths: str, root: Path) -> Opened:
    """Sets that are image files; torchvision keeps their `paths` and labels in private attributes."""
    parts = {}
    for part, split in splits.items():
        found = _load(kind, root, split)
        relative = tuple(Path(path).relative_to(root).as_posix() for path in getattr(found, paths))
        labels = np.array(found._labels, dtype=np.int64)
        parts[part] = ImageSet(f"{name}/{part}", found.classes, labels, FileStore(root, relative))
    return Opened(parts)


def _read_svhn(root: Path) -> Opened:
    parts = {}
    for part, split in _TRAIN_TEST.items():
        found = _load("SVHN", root, split)
        pixels = np.ascontiguousarray(found.data.transpose(0, 2, 3, 1))
        names = [str(digit) for digit in range(10)]
        parts[part] = ImageSet(f"svhn/{part}", names, found.labels, ArrayStore(pixels, f"svhn/{part}"))
    return Opened(parts)


def _files(name: str, classes: int, what: str, marks: tuple[str, ...], kind: str, splits: Splits, paths: str) -> Named:
    read: Callable[[Path], Opened] = partial(_read_files, kind, splits, name, paths)
    return Named(name, classes, what, marks, read, partial(_download, kind, splits), f"put {' and '.join(marks)}")


SETS = (
    Named(
        "svhn", 10, "house numbers, 73,257 + 26,032 of 32x32", ("train_32x32.mat", "test_32x32.mat"),
        _read_svhn, partial(_download, "SVHN", _TRAIN_TEST), "put train_32x32.mat and test_32x32.mat",
    ),
    _files(
        "pet", 37, "Oxford-IIIT Pet, 3,680 + 3,669 photographs",
        ("oxford-iiit-pet/images", "oxford-iiit-pet/annotations"), "OxfordIIITPet", _TRAINVAL_TEST, "_images",
    ),
    _files(
        "food101", 101, "Food-101, 75,750 + 25,250 photographs",
        ("food-101/meta", "food-101/images"), "Food101", _TRAIN_TEST, "_image_files",
    ),
    _files(
        "flowers102", 102, "Flowers-102, 1,020 + 1,020 + 6,149 photographs",
        ("flowers-102/jpg", "flowers-102/imagelabels.mat", "flowers-102/setid.mat"), "Flowers102", _THREE,
        "_image_files",
    ),
    _files(
        "aircraft", 100, "FGVC Aircraft variants, 6,667 + 3,333 photographs",
        ("fgvc-aircraft-2013b/data",), "FGVCAircraft", _TRAINVAL_TEST, "_image_files",
    ),
)  # fmt: skip
