"""Decoding every image once before it is relied on, and remembering the outcome."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pliant.data.images import ImageSet, map_images
from pliant.data.places import cache_folder
from pliant.data.stores import Store, decoded_by
from pliant.errors import PliantError
from pliant.files import read_json, write_json
from pliant.progress import track

_PIECE = 256
"""Images decoded between two updates of the progress line."""


def drop_unreadable(
    parts: Mapping[str, ImageSet], max_corrupt: float, spec: str
) -> tuple[dict[str, ImageSet], list[str]]:
    """The parts without images that cannot be decoded, and why not, one line an image.

    What was decoded before is known from the cache folder, until the data changes.

    Raises:
        PliantError: more than a share of `max_corrupt` of all images cannot be decoded.
    """
    kept, skipped = {}, []
    for name, images in parts.items():
        bad = unreadable(images)
        skipped += [bad[index] for index in sorted(bad)]
        kept[name] = images.subset([i for i in range(len(images)) if i not in bad]) if bad else images
    total = sum(len(images) for images in parts.values())
    if len(skipped) > max_corrupt * total:
        first = "; ".join(skipped[:3]) + ("; ..." if len(skipped) > 3 else "")
        raise PliantError(
            f"{spec}: {len(skipped)} of {total} images cannot be decoded, more than --max-corrupt {max_corrupt:g} "
            f"allows: {first}. Repair or remove them, or raise --max-corrupt"
        )
    return kept, skipped


def unreadable(images: ImageSet) -> dict[int, str]:
    """Which images cannot be decoded, by index, and why."""
    # What is computed from images is not computed to check them, and is known to be good where they are.
    store = decoded_by(images.store)
    path = cache_folder() / "verified" / f"{_identity(store)}.json"
    # Only successes are remembered: a failure may be of the moment (memory, a network disk) or of an older decoder.
    readable = _remembered(path, len(store))
    todo = [row for row in images.rows.tolist() if not readable[row]]
    bad: dict[int, str] = {}
    pieces = [todo[start : start + _PIECE] for start in range(0, len(todo), _PIECE)]
    for piece in track(pieces, f"checking {images.name}", unit=_PIECE):
        reasons = map_images(lambda row: _reason(store, row), piece)
        bad |= {row: reason for row, reason in zip(piece, reasons, strict=True) if reason}
        readable[piece] = [not reason for reason in reasons]
    if len(todo) > len(bad):
        bits = base64.b64encode(np.packbits(readable).tobytes()).decode()
        # Nothing depends on it: where the cache folder cannot be written, images are checked again next time.
        with contextlib.suppress(PliantError, OSError):
            write_json(path, {"readable": bits})
    return {index: bad[row] for index, row in enumerate(images.rows.tolist()) if row in bad}


def _reason(store: Store, row: int) -> str | None:
    try:
        store.read(row)
    except PliantError as error:
        return str(error)
    return None


def _identity(store: Store) -> str:
    rows = np.arange(len(store))
    lines = zip(map(store.key, rows.tolist()), store.signatures(rows, times=True), strict=True)
    text = "\n".join(f"{key}\0{signature}" for key, signature in lines)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _remembered(path: Path, rows: int) -> np.ndarray:
    """Which rows were decoded before, bool (rows,); none if the record is missing or damaged."""
    with contextlib.suppress(PliantError, OSError, KeyError, TypeError, ValueError):
        bits = np.frombuffer(base64.b64decode(read_json(path)["readable"]), np.uint8)
        if len(bits) == -(-rows // 8):
            return np.unpackbits(bits, count=rows).astype(bool)
    return np.zeros(rows, dtype=bool)
