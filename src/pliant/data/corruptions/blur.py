"""Blurs of lenses, glass and movement."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import ndimage

from pliant.data.corruptions.table import SIDE, corruption


@corruption((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
def defocus_blur(pixels: np.ndarray, lens: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """A disc of a radius, its edge softened by a Gaussian of a deviation; both in pixels."""
    return ndimage.correlate(pixels.astype(np.float64), _disc(*lens)[..., None], mode="mirror")


@lru_cache
def _disc(radius: float, softness: float) -> np.ndarray:
    """The kernel (5, 5), summing to 1."""
    offsets = np.arange(-2, 3)
    disc = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float64)
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    soft = ndimage.correlate(disc, np.outer(taps, taps), mode="constant")
    return soft / soft.sum()


@corruption((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
def glass_blur(pixels: np.ndarray, glass: tuple[float, int], rng: np.random.Generator) -> np.ndarray:
    """Blurred by a deviation, scattered to neighbours some times, and blurred again.

    The published code means to swap a pixel with a neighbour, but swaps two views of one array, which only copies the
    neighbour; and since it goes from the last pixel to the first and takes neighbours above and to the left, every
    copy is of an untouched pixel. So one step is a gather.
    """
    deviation, times = glass
    image = _gaussian(pixels, deviation).astype(np.uint8)
    inner = np.arange(2, SIDE)
    for _ in range(times):
        up, left = rng.integers(0, 2, size=(2, len(inner), len(inner)))
        image[2:, 2:] = image[inner[:, None] - up, inner - left]
    return _gaussian(image, deviation)


@corruption((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
def motion_blur(pixels: np.ndarray, motion: tuple[int, float], rng: np.random.Generator) -> np.ndarray:
    """A comet's tail in a direction of up to 45 degrees from the horizontal."""
    return trail(pixels, *motion, rng.uniform(-45, 45))


def trail(image: np.ndarray, radius: int, deviation: float, degrees: float) -> np.ndarray:
    """Mean along a half-line of 2 * radius + 1 steps, weighted by half a Gaussian: ImageMagick's motion blur.

    Args:
        image: (H, W) or (H, W, C); repeats at its edges.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    weights /= weights.sum()
    angle = math.radians(degrees)
    right = np.ceil(steps * math.cos(angle) - 0.5).astype(int)
    down = np.ceil(steps * math.sin(angle) - 0.5).astype(int)
    rows, columns = (np.arange(side) for side in image.shape[:2])
    blurred = np.zeros(image.shape)
    for weight, dx, dy in zip(weights, right, down, strict=True):
        moved = image.take(rows + dy, axis=0, mode="clip").take(columns + dx, axis=1, mode="clip")
        blurred += weight * moved
    return blurred


@corruption(1.06, 1.11, 1.16, 1.21, 1.26)
def zoom_blur(pixels: np.ndarray, end: float, rng: np.random.Generator) -> np.ndarray:
    """The mean of the image and of its enlargements by 1, 1.01, ... `end`, about the centre."""
    zooms = _zooms(end)
    # The sum over zooms of Z @ channel @ Z.T, in two products of matrices.
    right = pixels.transpose(0, 2, 1).reshape(-1, SIDE) @ zooms.reshape(-1, SIDE).T
    stacked = right.reshape(SIDE, 3, len(zooms), SIDE).transpose(2, 0, 3, 1).reshape(-1, SIDE * 3)
    enlarged = zooms.transpose(1, 0, 2).reshape(SIDE, -1) @ stacked
    return (pixels + enlarged.reshape(pixels.shape)) / (len(zooms) + 1)


@lru_cache
def _zooms(end: float) -> np.ndarray:
    """Enlargements by 1, 1.01, ... `end`, (zooms, 32, 32)."""
    return np.stack([zoom_matrix(float(factor)) for factor in np.arange(1, end, 0.01)])


@lru_cache
def zoom_matrix(factor: float) -> np.ndarray:
    """Z (32, 32), so that Z @ image @ Z.T is the middle of the image, enlarged bilinearly and cut to size."""
    kept = math.ceil(SIDE / factor)
    first = (SIDE - kept) // 2
    enlarged = ndimage.zoom(np.eye(SIDE)[first : first + kept], (factor, 1), order=1)
    cut = (len(enlarged) - SIDE) // 2
    return enlarged[cut : cut + SIDE]


@corruption(0.4, 0.6, 0.7, 0.8, 1)
def gaussian_blur(pixels: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return _gaussian(pixels, deviation)


def _gaussian(pixels: np.ndarray, deviation: float) -> np.ndarray:
    return ndimage.gaussian_filter(pixels.astype(np.float64), (deviation, deviation, 0), mode="nearest")
