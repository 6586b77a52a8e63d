"""Logarithmic axes: when they are needed, and where their ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

_MOST_TICKS = 6
_BETWEEN = {1: (1, 2, 5), 2: (1, 2, 5), 3: (1, 3)}
"""Ticks within a decade, by the number of decades."""


def spans_decades(values: Iterable[float], times: float = 20.0) -> bool:
    """Do positive values differ by so much that a linear axis would press the small ones flat?"""
    found = np.asarray(list(values), dtype=float)
    found = found[np.isfinite(found)]
    return len(found) > 0 and bool((found > 0).all()) and found.max() / found.min() > times


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose positive `low` to `high`: powers of ten, and some between where decades are few."""
    if high < low * 1.01:
        low, high = low / 2, high * 2
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if between := _BETWEEN.get(last - first):
        return _enclosing([m * 10.0**e for e in range(first, last + 1) for m in between], low, high)
    step = math.ceil((last - first) / _MOST_TICKS)
    first, last = math.floor(first / step) * step, math.ceil(last / step) * step
    return [10.0**exponent for exponent in range(first, last + 1, step)]


def _enclosing(found: list[float], low: float, high: float) -> list[float]:
    inner = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    below = [tick for tick in found if tick <= low * (1 + 1e-9)]
    above = [tick for tick in found if tick >= high * (1 - 1e-9)]
    return sorted({*below[-1:], *inner, *above[:1]})
