"""Pairs of images: which ones, and the distances between their representations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pliant.errors import PliantError

ESTIMATORS = ("paired", "cyclic", "all-pairs")
SHIFTS = 4
"""Pairs an image takes part in under `cyclic`."""

MOST = 64
"""Images a side of a block, where nothing else is said: memory grows with its square."""

_CHUNK = 2**20
"""Numbers that are subtracted at a time, so that a block of large inputs needs no second block of memory."""


def shifts_of(estimator: str, size: int) -> range:
    """Image i of one side meets image i + k, k in the result, of the other side, modulo `size`."""
    return range({"paired": 1, "cyclic": min(SHIFTS, size), "all-pairs": size}[estimator])


def taken_pairs(shifts: range, size: int) -> np.ndarray:
    """Which pairs (i, j) that is, bool (size, size)."""
    distance = (np.arange(size)[None] - np.arange(size)[:, None]) % size
    return np.isin(distance, shifts)


def squared_distances(x: Tensor, y: Tensor, shifts: range) -> Tensor:
    """||x_i - y_j||_F^2 in float64, (B, B); NaN for pairs that are not taken.

    By subtraction: a Gram matrix of a block this small is no faster, and it would cancel for near duplicates.

    Args:
        x, y: (B, ..., width), rows are images.
    """
    return paired_up(lambda a, b: squared_norms(a - b), x, y, shifts)


def paired_up(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, shifts: range) -> Tensor:
    """`function` of pairs of images, (P, ...) and (P, ...) to (P,) or (P, S), laid out as (B, B) or (S, B, B)."""
    size, piece = len(x), max(1, _CHUNK // x[0].numel())
    found: Tensor | None = None
    for k in shifts:
        for start, end in _runs(size, k, piece):
            shifted = (start + k) % size
            values = function(x[start:end], y[shifted : shifted + end - start]).double().cpu()
            if found is None:
                found = torch.full((*values.shape[1:], size, size), torch.nan, dtype=torch.float64)
            rows = torch.arange(start, end)
            found[..., rows, (rows + k) % size] = values.movedim(0, -1)
    assert found is not None
    return found


def _runs(size: int, k: int, piece: int) -> Iterator[tuple[int, int]]:
    """Rows of shift k in runs of at most `piece` whose columns do not wrap around: slices, which copy nothing."""
    for low, high in ((0, size - k), (size - k, size)):
        for start in range(low, high, piece):
            yield start, min(high, start + piece)


def token_norms(x: Tensor) -> Tensor:
    """Norms of tokens, (B, ..., width) to float64 (B, tokens). A token is summed in x's type, all else in float64."""
    return torch.linalg.vector_norm(x, dim=-1).double().reshape(len(x), -1)


def squared_norms(x: Tensor) -> Tensor:
    """||x_i||_F^2 in float64, (B,)."""
    return token_norms(x).square().sum(1)


def blocks_of_pairs(
    x_batches: Iterable[Any], y_batches: Iterable[Any], size: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of as many images of either side, each image in one block.

    Args:
        x_batches, y_batches: batches as data loaders give them: tensors, tuples that begin with one, or the mappings
            of transformers. A tensor in place of batches is one batch.
        size: images a side; None takes the batches as they come, larger ones in pieces of MOST.
    """
    left, right = _Buffer(x_batches), _Buffer(y_batches)
    while True:
        wanted = size or min(MOST, max(left.waiting(), right.waiting()))
        count = min(left.fill(wanted), right.fill(wanted))
        if not count:
            return
        yield left.take(count), right.take(count)


class _Buffer:
    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = iter([batches] if isinstance(batches, Tensor) else batches)
        self.held: list[Tensor] = []

    def waiting(self) -> int:
        """Images at hand; reads a batch where there are none."""
        self.fill(1)
        return sum(len(batch) for batch in self.held)

    def fill(self, count: int) -> int:
        """Read on until `count` images are at hand or none are left; the number at hand, at most `count`."""
        while sum(len(batch) for batch in self.held) < count:
            batch = next(self.batches, None)
            if batch is None:
                break
            self.held.append(inputs_of(batch))
        return min(count, sum(len(batch) for batch in self.held))

    def take(self, count: int) -> Tensor:
        joined = torch.cat(self.held) if len(self.held) > 1 else self.held[0]
        self.held = [joined[count:]] if len(joined) > count else []
        return joined[:count]


def inputs_of(batch: Any) -> Tensor:
    """What a model reads of a batch.

    Raises:
        PliantError: the batch is padded, or holds no tensor.
    """
    if isinstance(batch, (tuple, list)) and batch:
        batch = batch[0]
    if isinstance(batch, Tensor):
        return batch
    if hasattr(batch, "keys"):
        mask = batch.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise PliantError(
                "a batch is padded (its attention_mask has zeros), and padding is no text; give sequences of one "
                "length, cut from the text without padding"
            )
        for name in ("pixel_values", "input_ids"):
            if isinstance(batch.get(name), Tensor):
                return batch[name]
    raise PliantError(f"a batch is a {type(batch).__name__}; give tensors, or mappings with pixel_values or input_ids")
