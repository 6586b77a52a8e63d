"""Means, intervals and paired tests over the seeds and data sets of a results table (see `pliant.study`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from pliant.errors import PliantError

LEVEL = 0.95
RESAMPLES = 9999
UNIT = ("data", "model")
"""What a paired test takes for one observation: methods are compared on the same data with the same backbone."""
_DIGITS = 12
"""Decimals to which differences count: accuracies are ratios of counts, so that a closer miss is a rounding error."""

Number = TypeVar("Number", float, np.ndarray, pd.Series)


class Interval(NamedTuple):
    """A 95 % interval; both ends are NaN where there is too little to resample."""

    low: float
    high: float


def check_columns(results: pd.DataFrame, columns: Iterable[str], what: str = "results table") -> None:
    """Raises PliantError where the table is empty or lacks one of `columns`."""
    if missing := [column for column in columns if column not in results.columns]:
        raise PliantError(f"the {what} has no column {missing[0]!r}; it has {', '.join(map(str, results.columns))}")
    if results.empty:
        raise PliantError(f"the {what} has no rows")


def check_single_runs(results: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raises PliantError where two runs agree in all of `columns`, so that a mean would mix different settings."""
    twice = results.duplicated(list(columns), keep=False)
    if not twice.any():
        return
    first = results.loc[twice, list(columns)].iloc[0]
    named = ", ".join(f"{column} {value}" for column, value in first.items())
    alike = results[(results[list(columns)].eq(first) | (results[list(columns)].isna() & first.isna())).all(axis=1)]
    differing = [
        c for c in results.columns if c not in columns and not c.endswith("_top1") and alike[c].nunique(False) > 1
    ]
    hint = f"; they differ in {', '.join(map(str, differing))}: choose among these first" if differing else ""
    raise PliantError(f"the results table has {len(alike)} runs of {named}{hint}")


def over_seeds(results: pd.DataFrame, by: Sequence[str], value: str = "test_top1") -> pd.DataFrame:
    """Mean and standard deviation (n - 1) over the seeds of one setting.

    Returns:
        One row a combination of `by`: those columns, mean, std (NaN with one seed), and seeds, the number of runs that
        have a `value`.

    Raises:
        PliantError: a column is missing, or `by` leaves two runs with one seed, which are then not one setting.
    """
    check_columns(results, [*by, "seed", value])
    check_single_runs(results, [*by, "seed"])
    return results.groupby(list(by), dropna=False)[value].agg(mean="mean", std="std", seeds="count").reset_index()


def train_test_gap(results: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Train minus test accuracy, as `over_seeds` gives it."""
    check_columns(results, ["train_top1", "test_top1"])
    return over_seeds(results.assign(gap=results["train_top1"] - results["test_top1"]), by, "gap")


def spread(results: pd.DataFrame, axis: str, by: Sequence[str], value: str = "test_top1") -> pd.DataFrame:
    """How much accuracy depends on `axis`, say `lr`: best minus worst mean over seeds.

    Returns:
        One row a combination of `by`: those columns, spread (NaN where fewer than two values of the axis have a
        mean), values, how many were run, and failed, how many runs have no accuracy: one that diverged makes the spread
        worse than the figure tells.

    Raises:
        PliantError: a column is missing, or runs with one seed agree in `by` and `axis`.
    """
    check_columns(results, [*by, axis, "seed", value])
    results = results[results[axis].notna()]
    check_single_runs(results, [*by, axis, "seed"])
    grouped = results.assign(failed=results[value].isna()).groupby([*by, axis], dropna=False)
    means = grouped.agg(mean=(value, "mean"), failed=("failed", "sum")).reset_index().groupby(list(by), dropna=False)
    known = means["mean"].count()
    difference = (means["mean"].max() - means["mean"].min()).where(known > 1)
    return pd.DataFrame({"spread": difference, "values": means.size(), "failed": means["failed"].sum()}).reset_index()


def relative_gain(accuracy: Number, probe: Number) -> Number:
    """Gain over the linear probe in percent of the probe's accuracy: (accuracy - probe) / probe * 100.

    Averages are over the gains of data sets (arXiv 2602.06883), so that hard ones weigh more than in the mean accuracy.

    Raises:
        PliantError: a probe has no accuracy above zero.
    """
    if not np.all(np.asarray(probe) > 0):
        raise PliantError("relative gain needs a linear probe with an accuracy above 0 on every data set")
    return (accuracy - probe) / probe * 100


def bootstrap_interval(values: ArrayLike, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean of independent `values` (n,), such as one setting's seeds.

    NaN for a single value. With very few values it is too narrow: of three, the mean's deviation is 18 % too small.

    Raises:
        ValueError: a value is not finite.
    """
    values = _finite(values)
    if len(values) < 2:
        return Interval(np.nan, np.nan)
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return Interval(float(found.low), float(found.high))


def hierarchical_interval(groups: Sequence[ArrayLike], seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean over data sets of the mean over seeds.

    Resamples data sets, then the seeds of each one drawn: what another choice of data sets and seeds might have given.
    `groups` holds one array of seeds' values a data set. NaN for a single data set; one seed each is allowed.

    Raises:
        ValueError: a group is empty or a value is not finite.
    """
    arrays = [_finite(group) for group in groups]
    if not all(len(array) for array in arrays):
        raise ValueError("a group without values has no mean")
    count = len(arrays)
    if count < 2:
        return Interval(np.nan, np.nan)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(count, size=(RESAMPLES, count))
    means = np.empty((RESAMPLES, count))
    for which, array in enumerate(arrays):
        hits = drawn == which
        means[hits] = rng.choice(array, size=(int(hits.sum()), len(array))).mean(axis=1)
    low, high = np.quantile(means.mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class PairedTest:
    """Whether the first of two methods is better, by paired differences first - second.

    Attributes:
        pairs: number of pairs; zeros: how many of them do not differ.
        difference: mean difference.
        t, t_greater: p-values of Student's paired t test, two-sided and for "the first is greater". NaN where the
            differences have no deviation (one pair, or all equal but not zero); 1 where all are zero.
        wilcoxon, wilcoxon_greater: p-values of Wilcoxon's signed-rank test; differences of zero are dropped (Wilcoxon's
            own way), tied ones share their ranks, and 1 is given where all are zero.
    """

    pairs: int
    zeros: int
    difference: float
    t: float
    t_greater: float
    wilcoxon: float
    wilcoxon_greater: float


def paired(first: ArrayLike, second: ArrayLike) -> PairedTest:
    """Compare two methods on the same n observations, each (n,).

    Raises:
        ValueError: lengths differ, there is no pair, or a value is not finite.
    """
    first, second = _finite(first), _finite(second)
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired tests need as many values of either method, got {len(first)} and {len(second)}")
    differences = np.round(first - second, _DIGITS)
    moved = differences[differences != 0]
    sides = ("two-sided", "greater")
    if not len(moved):
        t = wilcoxon = [1.0, 1.0]
    else:
        varies = len(np.unique(differences)) > 1
        t = [float(stats.ttest_1samp(differences, 0, alternative=side).pvalue) if varies else np.nan for side in sides]
        wilcoxon = [float(stats.wilcoxon(moved, alternative=side).pvalue) for side in sides]
    return PairedTest(len(differences), len(differences) - len(moved), float(differences.mean()), *t, *wilcoxon)


def paired_tests(
    results: pd.DataFrame,
    comparisons: Sequence[tuple[str, str]],
    unit: Sequence[str] = UNIT,
    value: str = "test_top1",
) -> pd.DataFrame:
    """Test pairs of methods over `unit`, and correct for their number (Holm).

    Args:
        results: runs of one setting a method, data set and backbone (`pliant.study.selection.Selection.runs`).
        comparisons: (first, second) by method name; the family that the correction is for.
        unit: columns that make one observation, which is a mean over the seeds that both methods have. With "seed"
            among them every seed counts as one; seeds of one data set are not independent, so p-values are then
            smaller than they would be over fresh data sets.

    Returns:
        One row a comparison: first, second, the fields of `PairedTest`, and the four p-values adjusted, `t_holm`,
        `t_greater_holm`, `wilcoxon_holm`, `wilcoxon_greater_holm`. Without a common unit pairs is 0 and the rest NaN.

    Raises:
        PliantError: a column is missing, or a method has two runs with the same unit and seed.
    """
    check_columns(results, [*unit, "method", "seed", value])
    keys = list(dict.fromkeys([*unit, "seed"]))
    results = results[results[value].notna()]
    check_single_runs(results, [*keys, "method"])
    wide = results.set_index([*keys, "method"])[value].unstack("method")
    rows = []
    for names in comparisons:
        both = wide.reindex(columns=list(names)).dropna().groupby(level=list(unit), dropna=False).mean()
        test = paired(both[names[0]], both[names[1]]) if len(both) else PairedTest(0, 0, *[np.nan] * 5)
        rows.append({"first": names[0], "second": names[1], **vars(test)})
    table = pd.DataFrame(rows)
    for name in ("t", "t_greater", "wilcoxon", "wilcoxon_greater"):
        table[f"{name}_holm"] = holm(table[name])
    return table


def holm(p_values: ArrayLike) -> np.ndarray:
    """p-values (n,) adjusted for their number by Holm's step-down method; NaN ones stay and are not counted.

    Raises:
        ValueError: a value is outside 0..1.
    """
    p_values = np.asarray(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p_values))
    if ((p_values[known] < 0) | (p_values[known] > 1)).any():
        raise ValueError("p-values lie between 0 and 1")
    order = known[np.argsort(p_values[known], kind="stable")]
    adjusted = np.full(len(p_values), np.nan)
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * p_values[order])) if len(order) else 1
    return adjusted


def smallest_p(pairs: int) -> float:
    """The least p-value that a one-sided Wilcoxon test of so many pairs can give: all differences of one sign."""
    return 0.5**pairs


def _finite(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float).ravel()
    if not np.isfinite(array).all():
        raise ValueError("values must be finite; leave out runs that failed")
    return array
