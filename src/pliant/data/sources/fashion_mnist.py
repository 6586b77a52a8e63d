"""Fashion-MNIST from its four idx files: Debian's package, or torchvision's folder."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources.named import Named
from pliant.data.sources.registry import Opened
from pliant.data.stores import ArrayStore
from pliant.errors import PliantError

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_TORCHVISION = "FashionMNIST/raw"
_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_PARTS = {"train": "train", "test": "t10k"}


class FashionMnist(Named):
    def _unpacked(self, root: Path) -> bool:
        return _folder(root) is not None


def _folder(root: Path) -> Path | None:
    """Where all four files are, compressed or not."""
    names = [name for prefix in _PARTS.values() for name in _names(prefix)]
    folders = (root / _TORCHVISION, _DEBIAN)
    return next((folder for folder in folders if all(_file(folder, name) for name in names)), None)


def _names(prefix: str) -> tuple[str, str]:
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read(root: Path) -> Opened:
    folder = _folder(root)
    assert folder is not None
    parts = {}
    for part, prefix in _PARTS.items():
        images, labels = (_array(folder, name) for name in _names(prefix))
        if len(images) != len(labels) or labels.max(initial=0) >= len(_CLASSES):
            raise PliantError(f"fashion-mnist: images and labels of {part} in {folder} do not fit; install them again")
        name = f"fashion-mnist/{part}"
        parts[part] = ImageSet(name, _CLASSES, labels, ArrayStore(images, name))
    return Opened(parts)


def _array(folder: Path, name: str) -> np.ndarray:
    """An idx file: a magic number whose last byte counts the dimensions, those as big-endian words, then bytes."""
    file = _file(folder, name)
    assert file is not None
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        dimensions = 3 if "idx3" in name else 1
        header = np.frombuffer(raw, ">u4", count=1 + dimensions)
        if header[0] != 0x800 + dimensions:
            raise ValueError("no idx file of bytes")
        return np.frombuffer(raw, np.uint8, offset=header.nbytes).reshape(header[1:].tolist())
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise PliantError(f"fashion-mnist: {file} is damaged ({error}); install it again") from error


def _download(folder: Path) -> None:
    from torchvision.datasets import FashionMNIST

    FashionMNIST(str(folder), download=True)


SET = FashionMnist(
    "fashion-mnist",
    10,
    "Fashion-MNIST, 60,000 + 10,000 clothes, 28x28 grey",
    (_TORCHVISION,),
    _read,
    _download,
    f"install Debian's package dataset-fashion-mnist, or put its four idx files into {_TORCHVISION}",
)
