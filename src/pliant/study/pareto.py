"""What accuracy costs: the Pareto front over trained parameters, and the elbow of a curve over ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pliant.errors import PliantError

_ROUNDING = 1e-12


def pareto_front(accuracy: ArrayLike, parameters: ArrayLike) -> np.ndarray:
    """Which of n methods no other one beats: with no less accuracy for no more parameters, and one of the two better.

    Args:
        accuracy, parameters: (n,) each. Equal points share their place on the front; NaN is never on it.

    Returns:
        Booleans (n,).

    Raises:
        ValueError: lengths differ.
    """
    gain = np.asarray(accuracy, dtype=float)
    cost = np.asarray(parameters, dtype=float)
    if gain.shape != cost.shape or gain.ndim != 1:
        raise ValueError(f"accuracy and parameters must be of one length, got {gain.shape} and {cost.shape}")
    no_worse = (gain[None] >= gain[:, None]) & (cost[None] <= cost[:, None])
    better = (gain[None] > gain[:, None]) | (cost[None] < cost[:, None])
    return ~(no_worse & better).any(axis=1) & np.isfinite(gain) & np.isfinite(cost)


def elbow(ranks: ArrayLike, accuracy: ArrayLike) -> float | None:
    """The rank after which more rank gains less than before, as Kneedle finds it (Satopää et al. 2011).

    It is the rank whose accuracy lies furthest above the chord from the lowest to the highest rank, with ranks on a log
    scale, since they double. Scaling either axis does not move it. Equal distances: the lower rank.

    Args:
        ranks, accuracy: (n,) each, in any order; ranks differ and are positive.

    Returns:
        The rank, or None where no point lies above the chord: the curve is straight, flat or bends upwards.

    Raises:
        PliantError: fewer than three ranks, of which no curve has an elbow.
        ValueError: ranks repeat or are not positive, or values are not finite.
    """
    rank = np.asarray(ranks, dtype=float)
    values = np.asarray(accuracy, dtype=float)
    if rank.shape != values.shape or not (np.isfinite(rank).all() and np.isfinite(values).all()):
        raise ValueError("ranks and accuracy must be finite and of one length")
    if len(np.unique(rank)) != len(rank) or (rank <= 0).any():
        raise ValueError("ranks must be positive and differ; take means over seeds first")
    if len(rank) < 3:
        raise PliantError(
            f"an elbow needs at least three ranks, the study has {len(rank)}; add some to the axis `rank`"
        )
    order = np.argsort(rank)
    x, y = np.log2(rank[order]), values[order]
    above = y - np.interp(x, x[[0, -1]], y[[0, -1]])
    best = int(np.flatnonzero(above >= above.max() - _ROUNDING)[0])
    return float(rank[order][best]) if above.max() > _ROUNDING else None
