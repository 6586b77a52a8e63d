"""The few statistics that the page adds to a run's own metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

BINS = 15
"""Of the reliability diagram; as many as the expected calibration error in `summary.json` uses."""


def wilson(share: float | None, n: int) -> tuple[float, float] | None:
    """The 95 % Wilson score interval of an observed `share` among `n` trials; None where there is none."""
    if share is None or not n or not math.isfinite(share):
        return None
    z = 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounding may leave the bound of a perfect score a hair inside it.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


@dataclass(frozen=True)
class Reliability:
    """Predictions grouped by confidence into `BINS` equal bins, each array (BINS,); accuracy is NaN in an empty one."""

    edges: np.ndarray
    images: np.ndarray
    accuracy: np.ndarray
    confidence: np.ndarray


def reliability(table: pd.DataFrame) -> Reliability:
    """How often predictions made with a certain confidence are right. Rows without a finite confidence are left out."""
    table = table[np.isfinite(table["confidence"])]
    confidence = table["confidence"].to_numpy(dtype=float)
    correct = (table["label"] == table["prediction"]).to_numpy(dtype=float)
    edges = np.linspace(0, 1, BINS + 1)
    which = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, BINS - 1)
    images = np.bincount(which, minlength=BINS)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(which, weights=correct, minlength=BINS) / images
        mean = np.bincount(which, weights=confidence, minlength=BINS) / images
    return Reliability(edges, images, accuracy, mean)


def mistakes(table: pd.DataFrame) -> pd.DataFrame:
    """The wrong predictions, the most confident first; equal ones in the order of their keys."""
    wrong = table[(table["label"] != table["prediction"]) & np.isfinite(table["confidence"])]
    return wrong.sort_values(["confidence", "key"], ascending=[False, True], kind="stable")


def most_confused(confusion: np.ndarray, count: int) -> list[tuple[int, int, int, int]]:
    """The most frequent mistakes of a confusion matrix (C, C): (true, predicted, images, images of the true class)."""
    off = confusion.copy()
    np.fill_diagonal(off, 0)
    totals = confusion.sum(axis=1)
    true, predicted = np.nonzero(off)
    order = np.lexsort((predicted, true, -off[true, predicted]))[:count]
    return [(int(t), int(p), int(off[t, p]), int(totals[t]))
            for t, p in zip(true[order], predicted[order], strict=True)]  # fmt: skip
