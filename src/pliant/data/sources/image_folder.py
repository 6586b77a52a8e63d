"""Folders of images: `class/img`, or `train|val|test/class/img`."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.listing import Ignored, hidden, images_below
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.data.stores import FileStore
from pliant.data.wording import counted
from pliant.errors import PliantError

SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""What people call the parts of a data set, in lower case."""


class ImageFolders:
    def matches(self, spec: str) -> bool:
        return Path(spec).expanduser().is_dir()

    def open(self, spec: str) -> Opened:
        return open_folder(Path(spec).expanduser(), spec)

    def catalogue(self) -> list[SourceInfo]:
        return [SourceInfo("FOLDER", None, "class/img, or train|val|test/class/img", "your own images", None)]


def open_folder(root: Path, spec: str) -> Opened:
    """Images of class folders below `root`, or below its split folders.

    Raises:
        PliantError: no images, images outside class folders, two folders for the same split.
    """
    folders = _subfolders(root)
    splits = {name: SPLIT_NAMES[name.lower()] for name in folders if name.lower() in SPLIT_NAMES}
    if not _is_split_root(root, folders, splits):
        images, notes = class_folders(root, root, spec)
        return Opened({"all": images}, notes)
    parts: dict[str, ImageSet] = {}
    notes = [f"{spec}: folder {name}/ is no split and was ignored" for name in folders if name not in splits]
    for name, part in splits.items():
        if part in parts:
            both = ", ".join(other for other in splits if splits[other] == part)
            raise PliantError(f"{spec}: has two folders for {part} ({both}); keep one")
        images, ignored = class_folders(root / name, root, f"{spec}/{name}")
        parts[part] = images
        notes += ignored
    return Opened(parts, notes)


def class_folders(folder: Path, root: Path, name: str) -> tuple[ImageSet, list[str]]:
    """Images of `folder`'s class folders, at any depth; keys are relative to `root`. And notes on what was ignored.

    Raises:
        PliantError: no images at all, or none in class folders.
    """
    ignored = Ignored()
    inside = images_below(folder, ignored)
    loose = [path for path in inside if "/" not in path]
    sorted_in = [path for path in inside if "/" in path]
    if not sorted_in:
        if loose:
            raise PliantError(
                f"{name}: {counted(len(loose), 'image')} loose in it (such as {loose[0]}) and no class folders; "
                "put each image into a folder with its class's name"
            )
        found = "".join(f"; {note}" for note in ignored.notes(name))
        raise PliantError(f"{name}: a folder without images{found}; expected one folder of images a class")
    notes = ignored.notes(name)
    if loose:
        notes.append(f"{name}: {counted(len(loose), 'image')} outside class folders ignored (such as {loose[0]})")
    names = [_class_name(path) for path in sorted_in]
    classes = sorted(set(names))
    empty = [f"{sub}/" for sub in _subfolders(folder) if _class_name(sub) not in classes]
    if empty:
        notes.append(f"{name}: {counted(len(empty), 'class folder')} without images ignored ({', '.join(empty)})")
    index = {class_name: position for position, class_name in enumerate(classes)}
    labels = np.array([index[class_name] for class_name in names], dtype=np.int64)
    prefix = folder.relative_to(root).as_posix()
    paths = tuple(path if prefix == "." else f"{prefix}/{path}" for path in sorted_in)
    return ImageSet(name, classes, labels, FileStore(root, paths)), notes


def _class_name(path: str) -> str:
    """The first folder of a path. Composed, since macOS stores names decomposed and they must agree across machines."""
    return unicodedata.normalize("NFC", path.split("/", 1)[0])


def _is_split_root(root: Path, folders: list[str], splits: dict[str, str]) -> bool:
    """A class may be called `train`: beside folders that are no splits, it must itself hold folders to be one."""
    if not splits:
        return False
    if len(splits) == len(folders):
        return True
    return "train" in splits.values() and all(_subfolders(root / name) for name in splits)


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not hidden(entry.name))
    except OSError as error:
        raise PliantError(f"{folder}: cannot be read ({error.strerror})") from error
