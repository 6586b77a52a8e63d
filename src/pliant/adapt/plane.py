"""The plane of the two main directions of a training path (Li et al. 2018, arXiv 1712.09913, section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pliant.errors import PliantError

_COLUMNS = 2**18
"""Parameters whose whole path is held in float64 at a time."""
_FLAT = 1e-10
"""Share of the variance below which a second direction is rounding alone."""


@dataclass(frozen=True)
class Plane:
    """A plane in parameter space with its origin at the path's last point, and the path seen in it.

    Attributes:
        points: (T, 2), the path's coordinates; the last is (0, 0). Distances are Euclidean ones of parameters.
        off: (T,), each point's distance from the plane.
        shares: of the path's variance that lie along the two directions.
        weights: (2, T), the directions as combinations of the path's points minus the last one.
    """

    points: np.ndarray
    off: np.ndarray
    shares: tuple[float, float]
    weights: np.ndarray


def find_plane(products: np.ndarray) -> Plane:
    """Principal components of a path, from the (T, T) inner products of its points minus the last one.

    The points are centred, as principal components are, and the plane is put through the last point. All follows from
    the inner products K: with H = I - 1/T, the eigenvectors w of HKH give the directions (points^T H w) / sqrt(value).
    Signs, which are arbitrary, are chosen so that the path begins on the left and reaches furthest upwards.

    Raises:
        PliantError: fewer than three points, or all on one line: they span no plane.
    """
    count = len(products)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(centring @ products @ centring)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    if count < 3 or values[1] <= _FLAT * values[0]:
        raise PliantError("the training path is a straight line, which spans no plane; train for more steps")
    weights = (centring @ vectors[:, :2] / np.sqrt(values[:2])).T
    points = products @ weights.T
    furthest = points[np.abs(points[:, 1]).argmax(), 1]
    signs = np.where([points[0, 0] > 0, furthest < 0], -1.0, 1.0)
    points, weights = points * signs, weights * signs[:, None]
    off = np.sqrt(np.maximum(np.diag(products) - (points**2).sum(axis=1), 0))
    first, second = values[:2] / values.sum()
    return Plane(points, off, (float(first), float(second)), weights)


def inner_products(tensors: Iterable[Sequence[Tensor]]) -> np.ndarray:
    """Inner products (T, T) of a path's points minus the last one, in float64.

    Args:
        tensors: for each parameter, its T values along the path.
    """
    total: np.ndarray | float = 0.0
    for path in tensors:
        stacked = torch.stack([value.flatten() for value in path])
        for part in stacked.split(_COLUMNS, dim=1):
            moved = part.double() - part[-1].double()
            total = total + (moved @ moved.T).numpy()
    return np.asarray(total)


def directions(
    plane: Plane, named: Iterable[tuple[str, Sequence[Tensor]]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The plane's two orthonormal directions, parameter by parameter, in float32.

    Args:
        named: names of the parameters, and for each its T values along the path.
    """
    found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    weights = torch.from_numpy(plane.weights)
    for name, path in named:
        moved = torch.stack([value.double().flatten() for value in path]) - path[-1].double().flatten()
        for direction, row in zip(found, weights @ moved, strict=True):
            direction[name] = row.view(path[-1].shape).float()
    return found


def at(end: Mapping[str, Tensor], both: Sequence[Mapping[str, Tensor]], x: float, y: float) -> dict[str, Tensor]:
    """The parameters at a point of the plane."""
    first, second = both
    return {name: value + x * first[name] + y * second[name] for name, value in end.items()}


def axes_around(points: np.ndarray, count: int, margin: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """`count` coordinates along each direction, which cover the path (T, 2) with a share of its extent on each side."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = margin * (high - low)
    x, y = (np.linspace(a, b, count) for a, b in zip(low - room, high + room, strict=True))
    return x, y
