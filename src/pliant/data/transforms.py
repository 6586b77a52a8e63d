"""Image to tensor, as the model was trained to see it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pliant.errors import PliantError

if TYPE_CHECKING:
    from torch import Tensor

POLICIES = ("none", "flip", "crop")
"""Augmentations: nothing; a mirrored half; RandomResizedCrop and a mirrored half, as in both papers."""

_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocess:
    """How a model wants its images.

    Attributes:
        size: side S of the square that the model sees, pixels.
        mean, std: of the colour channels, for values in 0..1.
        interpolation: nearest, bilinear, bicubic or lanczos.
        crop_pct: share of the resized image's short side that the centre crop keeps.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_pct: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if self.size < 1 or not 0 < self.crop_pct <= 1:
            raise PliantError(f"preprocessing: size {self.size} must be positive, crop_pct {self.crop_pct} in (0, 1]")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise PliantError(f"preprocessing: mean {self.mean} and std {self.std} must be three numbers, std positive")
        if self.interpolation not in _INTERPOLATIONS:
            known = ", ".join(_INTERPOLATIONS)
            raise PliantError(f"preprocessing: interpolation {self.interpolation!r} is none of {known}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Preprocess:
        """Raises PliantError for keys that are missing or unknown."""
        known = {field.name for field in fields(cls)}
        if not {"size", "mean", "std"} <= stored.keys() <= known:
            raise PliantError(f"preprocessing: has {', '.join(stored)} and not just {', '.join(sorted(known))}")
        return cls(**stored)

    def evaluate(self, image: Image.Image) -> Tensor:
        """Resize the short side, crop the centre, normalise: float32 (3, S, S). Equals torchvision's, bit for bit."""
        return self._tensor(self._centre(image))

    def augment(self, image: Image.Image, policy: str, seed: int) -> Tensor:
        """A random view, float32 (3, S, S): a function of image, policy and seed alone.

        Raises:
            PliantError: an unknown policy.
        """
        if policy not in POLICIES:
            raise PliantError(f"augmentation {policy!r} is none of {', '.join(POLICIES)}")
        if policy == "none":
            return self.evaluate(image)
        rng = np.random.default_rng(seed)
        if policy == "crop":
            view = image.crop(_random_box(*image.size, rng)).resize((self.size, self.size), self._filter)
        else:
            view = self._centre(image)
        if rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self._tensor(view)

    @property
    def _filter(self) -> Image.Resampling:
        return _INTERPOLATIONS[self.interpolation]

    def _centre(self, image: Image.Image) -> Image.Image:
        image = _middle(image)
        width, height = image.size
        short = math.floor(self.size / self.crop_pct)
        resized = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        if resized != image.size:
            image = image.resize(resized, self._filter)
        left, top = (round((side - self.size) / 2.0) for side in resized)
        return image.crop((left, top, left + self.size, top + self.size))

    def _tensor(self, image: Image.Image) -> Tensor:
        import torch

        # A table and NumPy: three times faster than arithmetic, and torch would start threads inside the loader's.
        pixels = np.asarray(image)
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel, table in enumerate(self._table):
            np.take(table, pixels[..., channel], out=values[channel], mode="clip")
        return torch.from_numpy(values)

    @cached_property
    def _table(self) -> np.ndarray:
        """What each byte is normalised to, float32 (3, 256)."""
        values = np.arange(256, dtype=np.float32) / np.float32(255)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return (values - mean[:, None]) / std[:, None]


def _middle(image: Image.Image, most: int = 16) -> Image.Image:
    """The middle of an image more than `most` times as long as it is wide: resizing all of it could fill the memory."""
    width, height = image.size
    if max(width, height) <= most * min(width, height):
        return image
    wide, high = min(width, most * height), min(height, most * width)
    left, top = (width - wide) // 2, (height - high) // 2
    return image.crop((left, top, left + wide, top + high))


def _random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box (arXiv 1409.4842): 8 to 100 % of the area, aspect 3/4 to 4/3.

    Where ten draws do not fit, the largest box of such an aspect in the centre.
    """
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1))
            return left, top, left + wide, top + high
    wide = min(width, round(height * 4 / 3))
    high = min(height, round(width * 4 / 3))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
