"""Measurements of plasticity as `pliant.plasticity` gives them, made of random numbers with a fixed seed."""

from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from pliant.measure import COMPONENTS, Plasticity
from pliant.measure.result import COMPONENT, SUBLAYER

SUBLAYERS = ("LN1 to MHA", "LN2 to FC2")
_LEVELS = dict(zip((*COMPONENTS, *SUBLAYERS), (19.0, 0.066, 24.8, 0.77, 0.24, 1.17, 0.9), strict=True))
NAMED = {
    "model": "vit_small_patch14_dinov2", "weights": "weights/vit_small.safetensors", "img_size": 112,
    "pretrain": "data/imagenet_sample", "downstream": "data/cifar10", "seconds": 73.1, "notes": ["2 images were skipped"],
    "command": "pliant plasticity vit_small_patch14_dinov2 --pretrain data/imagenet_sample --downstream data/cifar10",
}  # fmt: skip


def fake_measurement(protocols=("in-situ",), depth=4, images=64, factor=1.0, seed=0, **summary) -> Plasticity:
    """A measurement whose rates are those of a small ViT, times `factor`; `summary` adds to what every one has."""
    draw = np.random.default_rng(seed)
    rows = pd.concat([_rows(draw, protocol, depth, images, factor) for protocol in protocols], ignore_index=True)
    differences = pd.DataFrame([row for protocol in protocols for row in _differences(rows, protocol)])
    known = {
        "protocols": list(protocols), "estimator": "paired", "images": images, "pairs": images, "dropped": 0,
        "precision": 0.05, "reached": 0.031, "stopped": False, "family": "timm-vit", "depth": depth, "width": 384,
        "tokens": 65, "radius": "max", "local_images": 8,
    }  # fmt: skip
    return Plasticity(rows, differences, {**known, **summary}, draw.normal(1, 0.1, (depth, len(COMPONENTS), images)))


def _rows(draw, protocol, depth, images, factor) -> pd.DataFrame:
    series = [*COMPONENTS, *(SUBLAYERS if protocol == "in-situ" else ())]
    level = factor * np.array([_LEVELS[name] for name in series]) * draw.uniform(0.7, 1.4, (depth, len(series)))
    frames = [_frame(level.mean(axis=0), [pd.NA]), _frame(level, list(range(depth)))]
    rows = pd.concat(frames, ignore_index=True)
    rows["component"] = series * (depth + 1)
    rows["kind"] = np.where(rows["component"].isin(SUBLAYERS), SUBLAYER, COMPONENT)
    rows["protocol"], rows["images"], rows["pairs"] = protocol, images, images
    if protocol != "in-situ":
        rows["local"] = np.nan
    return rows


def _frame(mean: np.ndarray, blocks: list) -> pd.DataFrame:
    mean = np.atleast_2d(mean)
    values, size = mean.flatten(), mean.shape[1]
    return pd.DataFrame({
        "block": pd.array(np.repeat(np.array(blocks, dtype=object), size), dtype="Int64"),
        "mean": values, "low": 0.97 * values, "high": 1.03 * values, "std": 0.2 * values, "largest": 1.5 * values,
        "local": 3 * values, "bound": 9 * values, "elasticity": 0.9 + 0.01 * np.tile(np.arange(size), len(mean)),
        "elasticity_low": 0.898 + 0.01 * np.tile(np.arange(size), len(mean)),
        "elasticity_high": 0.902 + 0.01 * np.tile(np.arange(size), len(mean)),
    })  # fmt: skip


def _differences(rows, protocol):
    means = rows[rows["block"].isna() & (rows["protocol"] == protocol)].set_index("component")["mean"]
    for first, second in combinations(COMPONENTS, 2):
        value = means[first] - means[second]
        yield {"protocol": protocol, "first": first, "second": second, "difference": value, "low": value - 0.05,
               "high": value + 0.05}  # fmt: skip


def neighbours(measured: Plasticity, protocol: str) -> list[tuple[str, str]]:
    return list(pairwise(measured.ranking(protocol)))
