"""Noise, drawn for every pixel and colour."""

from __future__ import annotations

import numpy as np

from pliant.data.corruptions.table import corruption


@corruption(0.04, 0.06, 0.08, 0.09, 0.10)
def gaussian_noise(pixels: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Normal noise; `deviation` as a share of the full range."""
    return pixels + rng.normal(scale=255 * deviation, size=pixels.shape)


@corruption(500, 250, 100, 75, 50)
def shot_noise(pixels: np.ndarray, photons: int, rng: np.random.Generator) -> np.ndarray:
    """Poisson noise of a sensor that counts `photons` at full brightness."""
    return rng.poisson(pixels * (photons / 255)) * (255 / photons)


@corruption(0.01, 0.02, 0.03, 0.05, 0.07)
def impulse_noise(pixels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A `share` of the values becomes 0 or 255."""
    hit = rng.random(pixels.shape) < share
    return np.where(hit, np.where(rng.random(pixels.shape) < 0.5, 255, 0), pixels)


@corruption(0.06, 0.1, 0.12, 0.16, 0.2)
def speckle_noise(pixels: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Normal noise in proportion to the value."""
    return pixels * (1 + rng.normal(scale=deviation, size=pixels.shape))
