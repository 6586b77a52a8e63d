"""What checks of claims share: the methods' names, what is enough to test on, and how a figure is put."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.claims import Claim, Verdict, listed, verdict
from pliant.study.selection import Results
from pliant.study.statistics import LEVEL, paired

HIGH, LOW = ("mha", "fc1", "fc2"), ("ln2", "ln1")
"""Components of high and low plasticity, as the paper ranks them; by measurement they may rank otherwise."""
COMPONENTS = (*HIGH, *LOW)
PROBE, HEAD, FULL, LORA, NORMS = "probe", "head", "full", "lora", "ln1,ln2"
ALPHA = 1 - LEVEL
FEWEST = 3
"""Pairs of data set and backbone below which a count of them says nothing."""


def enough(pairs: int, family: int = 1) -> None:
    """Raises PliantError where even differences of one sign throughout would not be significant."""
    if family * statistics.smallest_p(pairs) > ALPHA:
        needed = math.ceil(math.log2(family / ALPHA))
        raise PliantError(f"{pairs} pairs of runs cannot give a significant Wilcoxon test, the claim needs {needed}")


def parameters_of(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Trained parameters: one row a unit, one column a method."""
    parameters = results.means(runs, "trained_parameters")
    if parameters.isna().any(axis=None):
        raise PliantError("some runs do not tell how many parameters they trained")
    return parameters


def several(means: pd.DataFrame, what: str) -> None:
    if len(means) < FEWEST:
        raise PliantError(f"too few {what}: {len(means)}, the claim needs {FEWEST}")


def count_better(
    claim: Claim, means: pd.DataFrame, first: str, second: str, least: float, strictly: bool, where: str
) -> Verdict:
    """Is `first` better than `second` often enough?"""
    better = means[first] > means[second]
    share = better.mean()
    worse = [unit_name(unit) for unit in means.index[means[first] < means[second]]]
    test = paired(means[first], means[second])
    return verdict(
        claim, bool(share > least if strictly else share >= least - 1e-9), f"{better.sum()} of {len(better)}",
        f"better mean on {'more than' if strictly else 'at least'} {least:.0%} of data sets and backbones {where}".rstrip(),
        f"{first} beats {second} on {better.sum()} of {len(better)}, by {100 * test.difference:+.2f} points on average (Wilcoxon, "
        f"one-sided: {told(test.wilcoxon_greater, test.difference)}); {second} wins on {', '.join(worse) or 'none'}.",
    )  # fmt: skip


def unit_name(unit: Any) -> str:
    """Data set and backbone."""
    return f"{unit[0]} with {unit[1]}"


def points(values: pd.Series) -> str:
    return listed((100 * values).to_dict())


def told(p: float, difference: float) -> str:
    """What a one-sided test says of a difference: real, not told from chance, or pointing the other way."""
    said = "significant" if p < ALPHA else "in the other direction" if difference < 0 else "not significant"
    return f"{said}, p = {p:.2g}"
