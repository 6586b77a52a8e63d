"""Pairs of images: which ones, and the distances between their representations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pliant.errors import PliantError

ESTIMATORS = ("paired", "cyclic", "all-pairs")
SHIFTS = 4
"""Pairs an image takes part in under `cyclic`."""

_CHUNK = 2**18
"""Numbers that are subtracted at a time: few enough to stay in a core's cache."""
_NEAR = 1e-6
"""Squared distance over squared norms below which a Gram matrix is not trusted."""


def shifts_of(estimator: str, size: int) -> range:
    """Image i of one side meets images i + k, k in the result, of the other side, modulo `size`."""
    return range({"paired": 1, "cyclic": min(SHIFTS, size), "all-pairs": size}[estimator])


def squared_distances(x: Tensor, y: Tensor, shifts: range) -> Tensor:
    """||x_i - y_j||_F^2 in float64, (B, B); NaN for pairs that are not taken.

    All pairs of a large block go through a Gram matrix of centred values in float64, which costs as much as a few
    shifts by subtraction; pairs that are nearly equal are subtracted after all.

    Args:
        x, y: (B, ...), rows are images.
    """
    x, y = x.flatten(1), y.flatten(1)
    if len(shifts) > SHIFTS and len(shifts) == len(x):
        return _by_gram(x, y)
    found = torch.full((len(x), len(x)), torch.nan, dtype=torch.float64)
    rows = torch.arange(len(x))
    for k in shifts:
        columns = (rows + k) % len(x)
        found[rows, columns] = _by_subtraction(x, y, rows, columns)
    return found


def _by_subtraction(x: Tensor, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    size = max(1, _CHUNK // x.shape[1])
    pieces = [squared_norms(x[r] - y[c]) for r, c in zip(rows.split(size), columns.split(size), strict=True)]
    return torch.cat(pieces)


def _by_gram(x: Tensor, y: Tensor) -> Tensor:
    gram = torch.zeros(len(x), len(y), dtype=torch.float64, device=x.device)
    squares = [torch.zeros(len(side), dtype=torch.float64, device=x.device) for side in (x, y)]
    for a, b in zip(x.split(4096, dim=1), y.split(4096, dim=1), strict=True):
        a, b = a.double(), b.double()
        centre = (a.mean(0) + b.mean(0)) / 2
        a, b = a - centre, b - centre
        gram += a @ b.T
        squares[0] += a.square().sum(1)
        squares[1] += b.square().sum(1)
    scale = squares[0][:, None] + squares[1]
    found = scale - 2 * gram
    rows, columns = torch.nonzero(found <= _NEAR * scale, as_tuple=True)
    if len(rows):
        found[rows, columns] = _by_subtraction(x, y, rows, columns).to(found)
    return found.cpu()


def squared_norms(x: Tensor) -> Tensor:
    """||x_i||_F^2 in float64, (B,): rows summed in float32 in pieces of 64, pieces in float64."""
    flat = x.flatten(1)
    whole = flat.shape[1] // 64 * 64
    squares = flat[:, :whole].reshape(len(flat), -1, 64).square().sum(-1).sum(-1, dtype=torch.float64)
    return (squares + flat[:, whole:].square().sum(-1, dtype=torch.float64)).cpu()


def blocks_of_pairs(x_batches: Iterable[Any], y_batches: Iterable[Any], size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of as many images of either side, each image in one block.

    Args:
        x_batches, y_batches: batches as data loaders give them: tensors, tuples that begin with one, or the mappings
            of transformers.
        size: images a side; None takes the batches as they come.
    """
    left, right = _Buffer(x_batches), _Buffer(y_batches)
    while True:
        wanted = size or max(left.waiting(), right.waiting())
        count = min(left.fill(wanted), right.fill(wanted))
        if not count:
            return
        yield left.take(count), right.take(count)


class _Buffer:
    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = iter(batches)
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
