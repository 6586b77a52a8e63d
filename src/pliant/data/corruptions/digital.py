"""What processing does: contrast, geometry, resolution, compression, colour."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from scipy import ndimage

from pliant.data.corruptions.table import SIDE, corruption


@corruption(0.75, 0.5, 0.4, 0.3, 0.15)
def contrast(pixels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Differences from each colour's mean, shrunk."""
    means = pixels.mean(axis=(0, 1))
    return (pixels - means) * share + means


@corruption((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
def elastic_transform(pixels: np.ndarray, shares: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """A random affine map, then random displacements `far` at most, smoothed over `smooth`; shares of the side.

    The affine map moves three points, each by `shift` at most. As severity rises, it weakens and displacements grow.
    """
    far, smooth, shift = (share * SIDE for share in shares)
    middle, arm = SIDE // 2, SIDE // 3
    before = np.array([[middle + arm, middle + arm], [middle + arm, middle - arm], [middle - arm, middle - arm]], float)
    after = before + rng.uniform(-shift, shift, before.shape)
    # Affine coordinates (x, y, 1) of the source by those of the result, (3, 2).
    back = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(float)
    source = np.stack([columns, rows, np.ones_like(rows)], axis=-1) @ back
    mapped = _sampled(pixels, source[..., 1], source[..., 0], "mirror")
    across, down = rng.uniform(-1, 1, (2, SIDE, SIDE))
    right, below = (far * ndimage.gaussian_filter(noise, smooth, truncate=3) for noise in (across, down))
    return _sampled(mapped, rows + below, columns + right, "reflect")


def _sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, mode: str) -> np.ndarray:
    """Bilinear samples (32, 32, 3) of an image (32, 32, 3)."""
    channels = np.moveaxis(image.astype(np.float64), -1, 0)
    return np.stack([ndimage.map_coordinates(channel, (rows, columns), order=1, mode=mode) for channel in channels], -1)


@corruption(0.95, 0.9, 0.85, 0.75, 0.65)
def pixelate(pixels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Resized to a share of the side and back, both with a box filter."""
    small = int(SIDE * share)
    box = Image.Resampling.BOX
    return np.asarray(Image.fromarray(pixels).resize((small, small), box).resize((SIDE, SIDE), box))


@corruption(80, 65, 58, 50, 40)
def jpeg_compression(pixels: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


@corruption((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
def saturate(pixels: np.ndarray, change: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """The saturation of HSV multiplied and raised; hue and value stay. Grey has the hue of red."""
    value = pixels.max(axis=-1, keepdims=True).astype(np.float64)
    lack = value - pixels
    saturation = lack.max(axis=-1, keepdims=True) / np.maximum(value, 1)
    changed = np.clip(saturation * change[0] + change[1], 0, 1)
    coloured = value - lack * (changed / np.maximum(saturation, 1 / 255))
    grey = value * (1 - changed * np.array([0, 1, 1]))
    return np.where(saturation > 0, coloured, grey)
