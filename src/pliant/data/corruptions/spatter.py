"""Drops of water and of mud on the lens."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from pliant.data.corruptions.table import SIDE, corruption

_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


@corruption(
    (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
    (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
    (0.65, 0.3, 1, 0.69, 0.5, "water"),
    (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
    (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
)
def spatter(pixels: np.ndarray, liquid: tuple, rng: np.random.Generator) -> np.ndarray:
    """Drops where smoothed normal noise exceeds a threshold: water adds light, mud covers."""
    mean, deviation, smooth, least, strength, what = liquid
    level = ndimage.gaussian_filter(rng.normal(mean, deviation, (SIDE, SIDE)), smooth, mode="nearest")
    if what == "water":
        lit = _relief(np.where(level < least, 0, np.clip(level, 0, 1)))
        return pixels + 255 * strength * lit[..., None] * _WATER
    cover = ndimage.gaussian_filter((level > least).astype(np.float64), strength, mode="nearest")
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return pixels * (1 - cover) + 255 * cover * _MUD


def _relief(level: np.ndarray) -> np.ndarray:
    """Light on drops, (32, 32) from 0 to 1: their distance from the nearest edge, embossed.

    Args:
        level: of the liquid, 0..1, 0 where there is none.
    """
    drops = np.floor(255 * level)
    edges = _edges(drops)
    if not edges.any():
        return np.zeros_like(level)
    depth = np.minimum(ndimage.distance_transform_edt(~edges), 20)
    depth = _equalized(np.floor(ndimage.uniform_filter(depth, 3, mode="mirror")).astype(int))
    relief = np.clip(ndimage.correlate(depth, _EMBOSS, mode="mirror"), 0, 255)
    lit = drops * np.rint(ndimage.uniform_filter(relief.astype(np.float64), 3, mode="mirror"))
    return lit / max(lit.max(), 1)


def _edges(image: np.ndarray, low: float = 50, high: float = 150) -> np.ndarray:
    """Canny's edges, bool (H, W): ridges of the gradient above `low` that touch one above `high`."""
    right, down = (ndimage.sobel(image, axis, mode="nearest") for axis in (1, 0))
    size = np.abs(right) + np.abs(down)
    around = np.pad(size, 1)

    def beside(dy: int, dx: int) -> np.ndarray:
        return around[1 + dy : 1 + dy + len(image), 1 + dx : 1 + dx + image.shape[1]]

    flat, steep = np.abs(down) < np.tan(np.pi / 8) * np.abs(right), np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(right)
    falling = right * down >= 0
    # The gradient's own direction, rounded to a quarter turn's half, decides which two neighbours must be smaller.
    ridge = np.select(
        [flat, steep, falling],
        [
            (size > beside(0, -1)) & (size >= beside(0, 1)),
            (size > beside(-1, 0)) & (size >= beside(1, 0)),
            (size > beside(-1, -1)) & (size > beside(1, 1)),
        ],
        (size > beside(-1, 1)) & (size > beside(1, -1)),
    )
    groups, _ = ndimage.label(ridge & (size > low), structure=np.ones((3, 3)))
    strong = np.unique(groups[ridge & (size > high)])
    return np.isin(groups, strong[strong > 0])


def _equalized(values: np.ndarray) -> np.ndarray:
    """Histogram equalisation of small whole numbers to 0..255."""
    counts = np.bincount(values.ravel())
    lowest = counts[values.min()]
    if lowest == values.size:
        return values
    table = np.rint((np.cumsum(counts) - lowest) * (255 / (values.size - lowest))).astype(int)
    return table[values]
