"""Parquet files, and folders of them, with Hugging Face's Image and ClassLabel columns or plain ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources.arrow_columns import columns, features_of, labels_of
from pliant.data.sources.image_folder import SPLIT_NAMES
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.data.stores import ArrowStore, JoinedStore, Store
from pliant.data.wording import counted
from pliant.errors import PliantError


class Parquet:
    def matches(self, spec: str) -> bool:
        path = Path(spec).expanduser()
        if path.is_dir():
            return bool(files_below(path))
        return path.is_file() and path.suffix.lower() == ".parquet"

    def open(self, spec: str) -> Opened:
        return open_parquet(Path(spec).expanduser(), spec)

    def catalogue(self) -> list[SourceInfo]:
        what = "an image and a label column, or a folder of such files"
        return [SourceInfo("FILE.parquet", None, what, "your own data", None)]


def files_below(folder: Path) -> list[Path]:
    """Parquet files at most three folders deep, as the hub lays them out, sorted."""
    found = [path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}.parquet")]
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def open_parquet(path: Path, spec: str) -> Opened:
    """Images of a parquet file, or of a folder whose files or folders are named after splits.

    Raises:
        PliantError: an unreadable file, no image or label column, files of splits beside files of none.
    """
    if path.is_file():
        images, notes = _joined([path], path.parent, spec)
        return Opened({"all": images}, notes)
    groups: dict[str, list[Path]] = {}
    for file in files_below(path):
        groups.setdefault(_split_of(file.relative_to(path)), []).append(file)
    if "all" in groups and len(groups) > 1:
        raise PliantError(
            f"{spec}: {groups['all'][0].name} belongs to no split (train, val or test) but others do; rename or move it"
        )
    parts, notes = {}, []
    for part, files in groups.items():
        images, ignored = _joined(files, path, spec if part == "all" else f"{spec}/{part}")
        notes += ignored
        if len(images):
            parts[part] = images
    if not parts:
        read = ", ".join(file.relative_to(path).as_posix() for file in files_below(path))
        raise PliantError(f"{spec}: no labelled image in {read}")
    return Opened(parts, notes)


def _split_of(relative: Path) -> str:
    """`train-00000-of-00002.parquet`, `train.parquet` and `train/0000.parquet` are all of `train`."""
    for name in (relative.stem, *reversed(relative.parts[:-1])):
        word = re.split(r"[-_.]", name.lower())[0]
        if word in SPLIT_NAMES:
            return SPLIT_NAMES[word]
    return "all"


def _joined(files: Sequence[Path], root: Path, name: str) -> tuple[ImageSet, list[str]]:
    """Shards as one set; classes are matched by name, in the order of the first file that has them."""
    stores: list[Store] = []
    read = []
    for file in files:
        store, labels, names = _read(file, file.relative_to(root).as_posix())
        stores.append(store)
        read.append((labels, names))
    return labelled(JoinedStore(stores) if len(stores) > 1 else stores[0], read, name)


def labelled(store: Store, read: Sequence[tuple[np.ndarray, list[str]]], name: str) -> tuple[ImageSet, list[str]]:
    """A set from its shards' labels and class names, without the images that have no label; and a note on those."""
    classes = list(dict.fromkeys(class_name for _, names in read for class_name in names))
    index = {class_name: position for position, class_name in enumerate(classes)}
    lookups = [np.array([*(index[class_name] for class_name in names), -1], dtype=np.int64) for _, names in read]
    labels = np.concatenate([lookup[labels] for lookup, (labels, _) in zip(lookups, read, strict=True)])
    rows = np.flatnonzero(labels >= 0)
    without = len(labels) - len(rows)
    notes = [f"{name}: {counted(without, 'image')} without a label ignored"] if without else []
    return ImageSet(name, classes, labels[rows], store, rows), notes


def _read(file: Path, key: str) -> tuple[ArrowStore, np.ndarray, list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
        features = features_of(schema)
        image, label = columns(schema, features, str(file))
        table: Any = pq.read_table(file, columns=[image, label], partitioning=None)
        state = file.stat()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PliantError(f"{file}: not readable as parquet ({reason})") from error
    labels, names = labels_of(table.column(label), features.get(label), str(file))
    store = ArrowStore(table.column(image), key, f"{state.st_size}.{state.st_mtime_ns}", file.parent)
    return store, labels, names
