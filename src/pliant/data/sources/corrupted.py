"""`cifar10c-snow-5`: CIFAR-10 with a common corruption, computed as images are read or from the published files."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pliant.data.images import ImageSet
from pliant.data.sources.registry import Opened, SourceInfo, open_source
from pliant.data.stores import ArrayStore, Store, decoded_by
from pliant.errors import PliantError

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SEED = 0
"""The images are the same whatever the run's seed, so that results compare."""

_ROWS = 10_000
"""Images at each severity in a published file, one severity after the other."""


@dataclass(frozen=True)
class CorruptedStore:
    """Images of `origin`, 32 x 32, corrupted anew whenever they are read.

    The outcome is a function of seed, key, corruption and severity alone: the same in any order, thread and process.
    """

    origin: Store
    corruption: str
    severity: int
    seed: int = _SEED

    def __len__(self) -> int:
        return len(self.origin)

    def key(self, row: int) -> str:
        return self.origin.key(row)

    def read(self, row: int) -> Image.Image:
        from pliant.data.corruptions import SIDE, corrupt

        image = self.origin.read(row)
        if image.size != (SIDE, SIDE):
            wide, high = image.size
            raise PliantError(
                f"{self.key(row)}: is {wide}x{high}; the corruptions of CIFAR-10-C are made for {SIDE}x{SIDE} pixels"
            )
        drawn = hashlib.sha256(f"{self.seed}\0{self.key(row)}\0{self.corruption}\0{self.severity}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(drawn[:16], "little"))
        return Image.fromarray(corrupt(np.asarray(image), self.corruption, self.severity, rng))

    def signatures(self, rows: np.ndarray, times: bool) -> list[str]:
        from pliant.data.corruptions import REVISION

        how = f"{self.corruption}.{self.severity}.{self.seed}.{REVISION}"
        return [f"{signature}.{how}" for signature in self.origin.signatures(rows, times)]


class Corrupted:
    """`cifar10c-<corruption>-<severity>`, of the `cifar10` found by name; or with `:DATA`, of any copy of CIFAR-10, or
    from a folder of the published files."""

    def matches(self, spec: str) -> bool:
        name = spec.partition(":")[0]
        if name != "cifar10c" and not name.startswith("cifar10c-"):
            return False
        return not Path(spec).exists() or _is_name(name)

    def open(self, spec: str) -> Opened:
        name, _, where = spec.partition(":")
        corruption, severity = _parsed(name)
        folder = _published(where, corruption)
        if folder is not None:
            return _read_published(folder, corruption, severity)
        if where:
            clean = open_source(where)
        else:
            try:
                clean = open_source("cifar10")
            except PliantError as error:
                raise PliantError(f"{spec}: {error}; or name a copy of CIFAR-10 that you have: {name}:PATH") from error
        parts = {
            part: _corrupted(images, corruption, severity, f"{name}/{part}") for part, images in clean.parts.items()
        }
        for images in parts.values():
            _try_one(images)
        notes = list(clean.notes)
        if Path(spec).is_dir():
            notes.append(f"{spec}: the data set of that name, not the folder; for the folder write ./{spec}")
        return Opened(parts, notes)

    def catalogue(self) -> list[SourceInfo]:
        from pliant.data.corruptions import CORRUPTIONS

        what = f"CIFAR-10 corrupted at severity 1 to 5; WHAT is {', '.join(sorted(CORRUPTIONS))}"
        how = "computed from cifar10; or write :PATH of a CIFAR-10, or of the published CIFAR-10-C, behind it"
        return [SourceInfo("cifar10c-WHAT-5", 10, what, how, None)]


def _is_name(name: str) -> bool:
    try:
        _parsed(name)
    except PliantError:
        return False
    return True


def _parsed(name: str) -> tuple[str, int]:
    """`cifar10c-snow-5` as `snow` and 5."""
    from pliant.data.corruptions import CORRUPTIONS, SEVERITIES

    corruption, _, severity = name.removeprefix("cifar10c").removeprefix("-").rpartition("-")
    if not severity.isdecimal():  # no severity at all: all of it is the corruption
        corruption = f"{corruption}-{severity}".strip("-")
    if corruption not in CORRUPTIONS:
        near = difflib.get_close_matches(corruption.replace("-", "_"), CORRUPTIONS, n=3, cutoff=0.5)
        known = f"write as in cifar10c-snow-5, with one of {', '.join(sorted(CORRUPTIONS))}"
        offer = f"did you mean {' or '.join(near)}?" if near else known
        raise PliantError(f"{name}: no corruption is called {corruption!r}; {offer}")
    if severity not in map(str, SEVERITIES):
        raise PliantError(f"{name}: needs a severity from 1 to 5, as in cifar10c-{corruption}-5")
    return corruption, int(severity)


def _corrupted(images: ImageSet, corruption: str, severity: int, name: str) -> ImageSet:
    store = CorruptedStore(images.store, corruption, severity)
    return ImageSet(name, images.classes, images.labels, store, images.rows)


def _try_one(images: ImageSet) -> None:
    """Corrupt the first image, so that what is missing or of a wrong size is told now and not during training."""
    for row in images.rows[:10].tolist():
        try:
            decoded_by(images.store).read(row)
        except PliantError:
            continue  # told by the check of all images, which allows for a few
        images.store.read(row)
        return


def _published(where: str, corruption: str) -> Path | None:
    """The folder of the published files that `where` names, or that lies in it."""
    if not where:
        return None
    root = Path(where).expanduser()
    marks = ("labels.npy", f"{corruption}.npy")
    return next((folder for folder in (root, root / "CIFAR-10-C") if any((folder / m).is_file() for m in marks)), None)


def _read_published(folder: Path, corruption: str, severity: int) -> Opened:
    """The 10,000 test images of CIFAR-10 at one severity; there are no corrupted training images in the files."""
    pixels = _array(folder / f"{corruption}.npy", (5 * _ROWS, 32, 32, 3))
    labels = _array(folder / "labels.npy", (5 * _ROWS,))
    chosen = slice((severity - 1) * _ROWS, severity * _ROWS)
    if labels[chosen].max() >= len(_CLASSES):
        raise PliantError(f"{folder / 'labels.npy'}: has labels beyond CIFAR-10's {len(_CLASSES)} classes")
    name = f"CIFAR-10-C/{corruption}-{severity}"
    images = ImageSet(name, _CLASSES, labels[chosen], ArrayStore(pixels[chosen], name))
    return Opened({"all": images}, [f"{folder}: holds CIFAR-10's test images alone; they are split"])


def _array(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A published array, left on disk; never a pickle."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise PliantError(f"{file}: no such file; unpack all of CIFAR-10-C.tar there") from None
    except (OSError, ValueError, EOFError) as error:
        raise PliantError(f"{file}: not readable as a NumPy array ({error}); unpack CIFAR-10-C.tar again") from error
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != np.uint8:
        raise PliantError(f"{file}: is not the published array of bytes {shape}; unpack CIFAR-10-C.tar again")
    return found
