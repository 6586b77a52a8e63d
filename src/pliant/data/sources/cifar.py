"""CIFAR-10 and CIFAR-100 from their binary files, or from the Python ones: pickles, which are read but never run."""

from __future__ import annotations

import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources.named import Named
from pliant.data.sources.registry import Opened
from pliant.data.stores import ArrayStore

_PIXELS = 3 * 32 * 32
_SITE = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class _Layout:
    """Where one of the two data sets keeps what, in its binary and in its Python version."""

    name: str
    archive: str
    md5: str
    binary: str
    python: str
    files: dict[str, tuple[str, ...]]
    names_text: str
    names_pickle: tuple[str, str]
    label_bytes: int
    label_key: str


_CIFAR10 = _Layout(
    "cifar10", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin", "cifar-10-batches-py",
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "batches.meta.txt", ("batches.meta", "label_names"), 1, "labels",
)  # fmt: skip
_CIFAR100 = _Layout(
    "cifar100", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary", "cifar-100-python",
    {"train": ("train",), "test": ("test",)},
    "fine_label_names.txt", ("meta", "fine_label_names"), 2, "fine_labels",
)  # fmt: skip


def _read(layout: _Layout, root: Path) -> Opened:
    if (root / layout.binary).is_dir():
        folder, read = root / layout.binary, _read_binary
        names = (folder / layout.names_text).read_text(encoding="utf-8").split()
    else:
        folder, read = root / layout.python, _read_python
        file, key = layout.names_pickle
        names = [str(value) for value in _list_in_pickle(folder / file, key, str)]
    parts = {}
    for part, files in layout.files.items():
        pixels, labels = read(layout, [folder / file for file in files])
        if len(labels) and labels.max() >= len(names):
            raise ValueError(f"label {labels.max()} beyond its {len(names)} class names")
        name = f"{layout.name}/{part}"
        parts[part] = ImageSet(name, names, labels, ArrayStore(pixels, name))
    return Opened(parts)


def _read_binary(layout: _Layout, files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 (N, 32, 32, 3) and labels int64 (N,): each record is one or two label bytes, then three planes."""
    size = layout.label_bytes + _PIXELS
    raw = [np.fromfile(file.with_name(file.name + ".bin"), dtype=np.uint8) for file in files]
    if any(len(values) % size for values in raw):
        raise ValueError(f"a file in {files[0].parent} is no whole number of {size}-byte records")
    records = np.concatenate(raw).reshape(-1, size)
    return _channels_last(records[:, layout.label_bytes :]), records[:, layout.label_bytes - 1].astype(np.int64)


def _read_python(layout: _Layout, files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.concatenate([_pixels_in_pickle(file) for file in files])
    labels = [label for file in files for label in _list_in_pickle(file, layout.label_key, int)]
    if len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} images and {len(labels)} labels in {files[0].parent}")
    return _channels_last(pixels), np.array(labels, dtype=np.int64)


def _channels_last(flat: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _list_in_pickle(file: Path, key: str, kind: type) -> list:
    """The values of the list that follows the string `key`, read off the opcodes without running any."""
    found: list | None = None
    with file.open("rb") as stream:
        for opcode, value, _ in pickletools.genops(stream):
            if found is None:
                found = [] if _text(value) == key else None
            elif opcode.name in ("MARK", "EMPTY_LIST", "APPENDS", "APPEND", "MEMOIZE") or opcode.name.endswith("PUT"):
                continue
            elif kind is int and type(value) is int and "INT" in opcode.name:
                found.append(value)
            elif kind is str and isinstance(value, str | bytes):
                text = _text(value)
                # Class names end where the dictionary's next key begins.
                if text in ("num_cases_per_batch", "num_vis", "coarse_label_names", "fine_label_names"):
                    break
                found.append(text)
            else:
                break
    if not found:
        raise ValueError(f"{file} has no list {key}")
    return found


def _pixels_in_pickle(file: Path) -> np.ndarray:
    """The one large array of a batch, uint8 (N, 3072), read off the opcodes without running any."""
    fortran = False
    with file.open("rb") as stream:
        for opcode, value, _ in pickletools.genops(stream):
            # NumPy's state ends with whether the order is Fortran's, and the raw bytes.
            if opcode.name in ("NEWTRUE", "NEWFALSE"):
                fortran = opcode.name == "NEWTRUE"
            elif isinstance(value, str | bytes) and len(value) >= _PIXELS and len(value) % _PIXELS == 0:
                raw = value.encode("latin-1") if isinstance(value, str) else value
                flat = np.frombuffer(raw, dtype=np.uint8)
                return flat.reshape(_PIXELS, -1).T if fortran else flat.reshape(-1, _PIXELS)
    raise ValueError(f"{file} has no array of 32x32 images")


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None


def _download(layout: _Layout, folder: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(_SITE + layout.archive, str(folder), md5=layout.md5, remove_finished=True)


class Cifar(Named):
    """Either version counts as there; the binary one is downloaded."""

    def _unpacked(self, root: Path) -> bool:
        return any((root / mark).is_dir() for mark in self.marks)


def _named(layout: _Layout, classes: int) -> Cifar:
    return Cifar(
        layout.name,
        classes,
        f"CIFAR-{classes}, 50,000 + 10,000 of 32x32",
        (layout.binary, layout.python),
        partial(_read, layout),
        partial(_download, layout),
        f"unpack {_SITE}{layout.archive}",
    )


SETS = (_named(_CIFAR10, 10), _named(_CIFAR100, 100))
