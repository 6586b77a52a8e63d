"""Which images a step sees, and mixing them: pure functions of seed, epoch and step, so that resuming is exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def epoch_order(labels: np.ndarray, seed: int, epoch: int, balanced: bool = False) -> np.ndarray:
    """Order of the training images in an epoch: a permutation or, if `balanced`, a draw with replacement in which
    every class is equally likely. Shape (N,)."""
    rng = np.random.default_rng([seed, epoch])
    if not balanced:
        return rng.permutation(len(labels))
    weights = 1.0 / np.bincount(labels)[labels]
    return rng.choice(len(labels), size=len(labels), p=weights / weights.sum())


def epoch_batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """The last batch of an epoch may be smaller; no image is dropped."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def view_of(indices: np.ndarray, epoch: int, views: int | None) -> np.ndarray:
    """Which view of each image an epoch shows: a new one each time or, of `views` fixed ones, each in its turn.

    Neighbours take different views in the same epoch, and each image cycles through all of its own.
    """
    return np.full(len(indices), epoch) if views is None else (epoch + indices) % views


def mix(inputs: Tensor, targets: Tensor, mixup: float, cutmix: float, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Mixup (arXiv 1710.09412) or CutMix (arXiv 1905.04899), one of both at random where both are on.

    Args:
        inputs: images (B, C, H, W).
        targets: class probabilities (B, classes).
        mixup, cutmix: alpha of the Beta distribution of the mixing weight; 0 is off.
    """
    if not mixup and not cutmix:
        return inputs, targets
    rng = np.random.default_rng([seed, step, 0x313])
    use_cutmix = bool(cutmix) and (not mixup or rng.random() < 0.5)
    alpha = cutmix if use_cutmix else mixup
    weight = float(rng.beta(alpha, alpha))
    other = torch.from_numpy(rng.permutation(len(inputs))).to(inputs.device)
    if use_cutmix:
        height, width = inputs.shape[-2:]
        side = (1 - weight) ** 0.5
        y, x = rng.integers(height), rng.integers(width)
        top, bottom = max(0, int(y - side * height / 2)), min(height, int(y + side * height / 2))
        left, right = max(0, int(x - side * width / 2)), min(width, int(x + side * width / 2))
        inputs = inputs.clone()
        inputs[..., top:bottom, left:right] = inputs[other][..., top:bottom, left:right]
        weight = 1 - (bottom - top) * (right - left) / (height * width)
    else:
        inputs = weight * inputs + (1 - weight) * inputs[other]
    return inputs, weight * targets + (1 - weight) * targets[other]


def one_hot(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Class probabilities (B, classes), smoothed as in torch's cross-entropy."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes
