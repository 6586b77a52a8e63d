"""Deterministic stratified splits, and storing them so that a run can be reopened on exactly the same images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.data.images import ImageSet, content_digest
from pliant.data.wording import shown
from pliant.errors import PliantError

PARTS = ("train", "val", "test")


@dataclass
class Splits:
    """Training, validation and test images, with the same classes in the same order.

    Attributes:
        notes: what was ignored or decided, one line each.
        skipped: images that could not be decoded and were dropped: key and reason.
        spec: what was opened.
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet
    notes: list[str]
    skipped: list[str]
    spec: str

    def parts(self) -> dict[str, ImageSet]:
        return {name: getattr(self, name) for name in PARTS}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `open_splits(..., stored=...)` reopens the same images."""
        return {
            "classes": list(self.train.classes),
            **{name: _packed(part.key(index) for index in range(len(part))) for name, part in self.parts().items()},
            "content": _content(self.parts()),
            "notes": list(self.notes),
            "skipped": list(self.skipped),
        }


def allocate(counts: np.ndarray, total: int, least: int = 0, spare: int = 0) -> np.ndarray:
    """Share `total` among classes in proportion to `counts`, by largest remainders.

    Each class gets at least `least` while it has as many and `total` allows, and leaves `spare` of what it has.

    Returns:
        int64 (classes,), summing to `total` or, where that is less, to all that may be taken.
    """
    counts = np.asarray(counts, dtype=np.int64)
    most = np.maximum(counts - spare, 0)
    total = min(int(total), int(most.sum()))
    if total <= 0:
        return np.zeros_like(counts)
    quota = counts * (total / counts.sum())
    floor = np.minimum(most, least)
    if floor.sum() > total:
        floor = np.zeros_like(counts)
    shares = np.clip(np.floor(quota).astype(np.int64), floor, most)
    while (gap := total - int(shares.sum())) != 0:
        step = 1 if gap > 0 else -1
        movable = shares < most if gap > 0 else shares > floor
        wish = np.where(movable, step * (quota - shares), -np.inf)
        chosen = np.argsort(-wish, kind="stable")[: min(abs(gap), int(movable.sum()))]
        shares[chosen] += step
    return shares


def sample(labels: np.ndarray, total: int, seed: int, purpose: str, spare: int = 0) -> np.ndarray:
    """Indices (n,) of `total` images, drawn class by class in proportion to the labels, one a class if possible.

    Sorted; the same for the same labels, total, seed and purpose.

    Args:
        labels: (N,).
        purpose: draws for different purposes are independent under the same seed.
        spare: images of every class that are not drawn.
    """
    labels = np.asarray(labels, dtype=np.int64)
    shares = allocate(np.bincount(labels), total, least=1, spare=spare)
    salt = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    order = np.random.default_rng([seed, salt]).permutation(len(labels))
    taken = [order[labels[order] == label][:share] for label, share in enumerate(shares.tolist()) if share]
    return np.sort(np.concatenate(taken)) if taken else np.empty(0, dtype=np.int64)


def hold_out(labels: np.ndarray, fraction: float, seed: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """Stratified (kept, held) indices: `fraction` of the images are held out; of every class one is kept, and one held
    if it has two."""
    total = max(round(fraction * len(labels)), len(np.unique(labels)))
    held = sample(labels, total, seed, purpose, spare=1)
    return np.setdiff1d(np.arange(len(labels)), held), held


def limited(images: ImageSet, limit: int | None, seed: int, part: str) -> ImageSet:
    """At most `limit` images: every class keeps its share, and one image if possible."""
    if limit is None or limit >= len(images):
        return images
    return images.subset(sample(images.labels, limit, seed, f"limit {part}"))


def restore(available: Mapping[str, ImageSet], stored: Mapping[str, Any], spec: str) -> Splits:
    """The splits that `Splits.to_dict` described, of images that are still there and unchanged.

    Raises:
        PliantError: an image is gone, renamed or changed since; or `stored` is no description of splits.
    """
    try:
        classes = [str(name) for name in stored["classes"]]
        keys = {part: list(_unpacked(stored[part])) for part in PARTS}
        content, notes, skipped = stored["content"], list(stored["notes"]), list(stored["skipped"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PliantError(f"{spec}: the run's stored splits are damaged ({error}); start a new run") from error
    where = {images.key(i): (part, i) for part, images in available.items() for i in range(len(images))}
    parts = {}
    for part, wanted in keys.items():
        missing = [key for key in wanted if key not in where]
        if missing:
            raise PliantError(
                f"{spec}: changed since the run began, {shown(missing)} no longer there; restore or start a new run"
            )
        # A split lies in one part of the source: it was cut from it.
        source = available[where[wanted[0]][0]] if wanted else next(iter(available.values()))
        chosen = source.subset([where[key][1] for key in wanted])
        parts[part] = chosen.with_classes(classes).named(f"{spec}/{part}")
    if _content(parts) != content:
        raise PliantError(f"{spec}: images changed since the run began; restore them or start a new run")
    return Splits(**parts, notes=notes, skipped=skipped, spec=spec)


def _content(parts: Mapping[str, ImageSet]) -> str:
    """What must not change between a run and its continuation; without times, for copying changes them."""
    return hashlib.sha256("".join(content_digest(parts[name], times=False) for name in PARTS).encode()).hexdigest()


def _packed(keys: Iterable[str]) -> dict[str, Any]:
    """Keys such as `train.parquet#7` as ranges of rows (`{"train.parquet": "0-8,10"}`), all others as they are."""
    files: list[str] = []
    rows: dict[str, list[int]] = {}
    for key in keys:
        name, mark, row = key.rpartition("#")
        if mark and row.isdecimal():
            rows.setdefault(name, []).append(int(row))
        else:
            files.append(key)
    packed: dict[str, Any] = {name: _ranges(values) for name, values in rows.items()}
    return {"files": files, "rows": packed}


def _ranges(values: list[int]) -> str:
    """[0, 1, 2, 7] -> '0-2,7'; the order is kept."""
    pieces: list[list[int]] = []
    for value in values:
        if pieces and value == pieces[-1][1] + 1:
            pieces[-1][1] = value
        else:
            pieces.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pieces)


def _unpacked(packed: Mapping[str, Any]) -> Iterable[str]:
    yield from packed["files"]
    for name, ranges in packed["rows"].items():
        for piece in re.split(",", ranges):
            first, _, last = piece.partition("-")
            yield from (f"{name}#{row}" for row in range(int(first), int(last or first) + 1))
