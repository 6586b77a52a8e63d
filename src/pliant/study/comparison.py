"""Several methods on one data set: which is best, and whether the seeds suffice to say so."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from pliant.study.results import GROUP
from pliant.study.selection import Selection
from pliant.study.statistics import paired_tests, smallest_p

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """What `pliant compare` says.

    Attributes:
        best: the method with the highest mean validation accuracy. Test accuracy has no part in naming it, so that the
            one-sided tests that follow are fair.
        table: one row a method, best first: method, val_mean, test_mean, test_std, seeds, trained_parameters, and how
            the best compares on test: difference, wilcoxon and t (one-sided p-values, Holm-corrected).
        sentence: whether the best is significantly better.
    """

    best: str
    table: pd.DataFrame
    sentence: str


def comparison(selection: Selection) -> Comparison:
    """Compare the chosen settings of all methods of a study on one data set and backbone.

    Pairs are seeds: they share split, order and initial values among methods.
    """
    table = selection.table.sort_values("val_mean", ascending=False, kind="stable")
    best, *others = table["method"].tolist()
    sizes = selection.runs.groupby("method")["trained_parameters"].max()
    shown = table[["method", "val_mean", "test_mean", "test_std", "seeds"]].assign(
        trained_parameters=table["method"].map(sizes).astype(int)
    )
    unit = [name for name in GROUP if name != "method"]
    runs = selection.runs.fillna(dict.fromkeys(unit, -1))
    if not others:
        return Comparison(best, shown, f"Only {best} has finished runs, so there is nothing to compare it with.")
    tests = paired_tests(runs, [(best, other) for other in others], [*unit, "seed"])
    columns = {"difference": "difference", "wilcoxon_greater_holm": "wilcoxon", "t_greater_holm": "t"}
    found = tests.set_index("second")[list(columns)].rename(columns=columns)
    return Comparison(best, shown.join(found, on="method").reset_index(drop=True), _sentence(best, _tied(table), tests))


def _tied(table: pd.DataFrame) -> list[str]:
    """Methods that are as good on validation as the first."""
    return table.loc[table["val_mean"] >= table["val_mean"].iloc[0] - 1e-12, "method"].tolist()[1:]


def _sentence(best: str, tied: list[str], tests: pd.DataFrame) -> str:
    begun = f"{best} is best on validation" + (f", tied with {', '.join(tied)}" if tied else "")
    pairs, count = int(tests["pairs"].min()), len(tests)
    if smallest_p(pairs) * count > LEVEL:
        needed = math.ceil(math.log2(count / LEVEL))
        against = "another method" if count == 1 else f"{count} others"
        return (
            f"{begun}. {pairs} seeds are not enough to say whether it is better on test: against {against}, a one-sided "
            f"Wilcoxon test needs {needed} (--seeds {needed})."
        )
    better = tests["wilcoxon_greater_holm"] < LEVEL
    said = [
        f"{'significantly better' if sure else 'not significantly better'} than {', '.join(tests.loc[mask, 'second'])}"
        for sure, mask in ((True, better), (False, ~better))
        if mask.any()
    ]
    return (
        f"{begun}; on test it is {' and '.join(said)} (Wilcoxon over {pairs} seeds, one-sided, Holm-corrected, "
        f"p < {LEVEL}). Seeds share their test images, so this speaks of this data alone."
    )
