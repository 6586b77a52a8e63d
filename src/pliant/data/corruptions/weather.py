"""Snow, frost, fog and light."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from pliant.data.corruptions.blur import trail, zoom_matrix
from pliant.data.corruptions.table import SIDE, corruption
from pliant.errors import PliantError

_LUMA = np.array([0.299, 0.587, 0.114])


@corruption(
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
def snow(pixels: np.ndarray, weather: tuple, rng: np.random.Generator) -> np.ndarray:
    """Falling flakes over a whitened image.

    Flakes are normal noise of `mean` and `deviation`, enlarged by `size`, kept above `least`, and blurred as they fall.
    """
    mean, deviation, size, least, radius, blur, clear = weather
    zoom = zoom_matrix(size)
    flakes = zoom @ rng.normal(mean, deviation, (SIDE, SIDE)) @ zoom.T
    flakes = np.floor(255 * np.clip(np.where(flakes < least, 0, flakes), 0, 1))
    flakes = np.floor(trail(flakes, radius, blur, rng.uniform(-135, -45)))
    whitened = np.maximum(pixels, (1.5 * (pixels @ _LUMA) + 127.5)[..., None])
    return clear * pixels + (1 - clear) * whitened + (flakes + np.rot90(flakes, 2))[..., None]


@corruption((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
def frost(pixels: np.ndarray, shares: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """A sum of the image and a piece of a photograph of frost."""
    photographs = _frost_photographs()
    photograph = photographs[rng.integers(len(photographs))]
    top, left = (int(rng.integers(side - SIDE)) for side in photograph.shape[:2])
    return shares[0] * pixels + shares[1] * photograph[top : top + SIDE, left : left + SIDE]


@lru_cache
def _frost_photographs() -> tuple[np.ndarray, ...]:
    """The five photographs that CIFAR-10-C was made with, at a fifth of their size: uint8 (H, W, 3).

    Raises:
        PliantError: the package that they come with is not installed.
    """
    # Found and not imported: only its pictures are wanted, and its corruptions are made for 224 pixels.
    found = importlib.util.find_spec("imagecorruptions")
    if found is None or found.origin is None:
        raise PliantError(
            "frost: its photographs come with the package imagecorruptions; pip install 'pliant[corruptions]'"
        )
    folder = Path(found.origin).parent / "frost"
    try:
        files = [folder / name for name in ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")]
        # Every fifth pixel, from the middle of its neighbours: what bilinear sampling at a fifth takes.
        return tuple(np.asarray(Image.open(file).convert("RGB"))[2::5, 2::5] for file in files)
    except OSError as error:
        raise PliantError(f"frost: {folder} cannot be read ({error}); reinstall imagecorruptions") from error


@corruption((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
def fog(pixels: np.ndarray, weather: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """A plasma fractal of some `density`, scaled so that the brightest value stays."""
    density, smoothness = weather
    brightest = pixels.max() / 255
    haze = 255 * density * _plasma(smoothness, rng)
    return (pixels + haze[..., None]) * (brightest / (brightest + density))


def _plasma(smoothness: float, rng: np.random.Generator) -> np.ndarray:
    """A periodic height map by diamonds and squares, (32, 32) from 0 to 1.

    Each halving of the distance between known points divides the random part by `smoothness` squared.
    """
    heights = np.zeros((SIDE, SIDE))
    step, range_ = SIDE, 100.0

    def jittered(sums: np.ndarray) -> np.ndarray:
        return sums / 4 + range_ * rng.uniform(-range_, range_, sums.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = centres = jittered(pairs + np.roll(pairs, -1, axis=1))
        across = corners + np.roll(corners, -1, axis=1) + centres + np.roll(centres, 1, axis=0)
        heights[::step, half::step] = jittered(across)
        heights[half::step, ::step] = jittered(pairs + centres + np.roll(centres, 1, axis=1))
        step, range_ = half, range_ / smoothness
    heights -= heights.min()
    return heights / heights.max()


@corruption(0.05, 0.1, 0.15, 0.2, 0.3)
def brightness(pixels: np.ndarray, more: float, rng: np.random.Generator) -> np.ndarray:
    """The value of HSV raised: hue and saturation stay when all three colours are scaled alike."""
    value = pixels.max(axis=-1, keepdims=True).astype(np.float64)
    raised = np.minimum(value + 255 * more, 255)
    return np.where(value > 0, pixels * (raised / np.maximum(value, 1)), raised)
