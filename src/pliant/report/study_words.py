"""What a study found, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pliant.report.words import percent, whole

if TYPE_CHECKING:
    import pandas as pd

    from pliant.study.tables import Tables

_MARK_FEWEST = 3


def headline(tables: Tables) -> str:
    """Which method is best, and whether its lead is real."""
    best = tables.favourite
    if not tables.methods:
        return "No run has finished, so there is no accuracy to compare."
    if best is None:
        return "No method has finished on every data set, so that there is no best one overall; the table tells each."
    row = tables.average.set_index("method").to_dict("index")[best]
    count = len(tables.units)
    where = f"on average over {count} data sets" if count > 1 else f"on {tables.units['unit'].iloc[0]}"
    interval = (
        f" (95 % interval {_number(row['low'])} to {_number(row['high'])} %)" if math.isfinite(row["low"]) else ""
    )
    accuracy = f"{percent(row['mean'], 2)} {where}{interval}"
    if len(tables.methods) == 1:
        return f"{best} reaches a test accuracy of {accuracy}. It is the only method with finished runs: nothing to compare."
    how = "on validation" if tables.by_validation else "by its mean test accuracy"
    means = tables.average.set_index("method")["mean"]
    top = str(means.idxmax())
    ahead = f" On test {top} has the highest mean, {percent(means[top], 2)}." if means[top] > means[best] else ""
    return f"{best} is best {how}, and reaches a test accuracy of {accuracy}.{ahead}"


def significance(tables: Tables) -> list[str]:
    """What the tests say of the favourite against the other methods; nothing where there is nothing to compare."""
    tests = tables.tests
    if tests.empty:
        return []
    better = tests[tests["p"] < _alpha()]
    unclear = tests[tests["test"].notna() & ~(tests["p"] < _alpha())]
    unknown = tests[tests["test"].isna()]
    said = []
    if len(better):
        said.append(f"It is significantly better than {_listed(better)}.")
    if len(unclear):
        said.append(
            f"It cannot be told from {_listed(unclear)}: such differences may be chance, or point the other way."
        )
    if len(unknown):
        pairs = int(unknown["pairs"].max())
        said.append(
            f"Against {_listed(unknown)} there is no test: {pairs} pair{'s' if pairs != 1 else ''} of runs with the same "
            "data and seed. Run more seeds to know whether the difference is real."
        )
    if len(better) + len(unclear):
        said.append(_how_tested(tables, tests))
    return said


def _how_tested(tables: Tables, tests: pd.DataFrame) -> str:
    tested = tests[tests["test"].notna()]
    low, high = int(tested["pairs"].min()), int(tested["pairs"].max())
    pairs = f"{low}" if low == high else f"{low} to {high}"
    names = " or ".join(dict.fromkeys("Wilcoxon" if name == "Wilcoxon" else "paired t" for name in tested["test"]))
    correction = f", Holm-corrected over {len(tests)} comparisons" if len(tests) > 1 else ""
    said = f"One-sided {names} test over {pairs} pairs of runs with the same data and seed{correction}, p < {_alpha():.2g}."
    if (tested["test"] == "t").any():
        needed = math.ceil(math.log2(len(tests) / _alpha()))
        said += f" A Wilcoxon test, which takes nothing for granted, would need {needed} pairs; t takes differences as normal."
    if len(tables.units) > 1:
        by_unit = tables.tests_over_units
        sure = int((by_unit["p"] < _alpha()).sum())
        said += (
            f" Seeds of one data set are not independent: over the {len(tables.units)} data sets alone, {sure} of "
            f"{len(by_unit)} differences are significant."
        )
    else:
        said += " Seeds share their test images, so this speaks of this data alone."
    return said


def marks(tables: Tables) -> str:
    """How the marks of the accuracy table were made."""
    said = "Bold: the highest mean of the column. "
    if not tables.accuracy["test"].notna().any():
        few = "one seed" if tables.accuracy["seeds"].max() <= 1 else "too few pairs of runs"
        return f"{said}Nothing is marked as not significantly worse, since {few} allows no test."
    said += (
        "≈: not significantly worse than that, by one-sided paired tests over the seeds that both have, Holm-corrected "
        f"over the column's methods, p ≥ {_alpha():.2g} (Wilcoxon where so few pairs can be significant at all, else t), or "
        "for lack of pairs not tested. "
    )
    if 1 < tables.accuracy["seeds"].max() <= _MARK_FEWEST:
        said += "With so few seeds only large differences can be told from chance, so that ≈ is no proof of equality. "
    if len(tables.units) > 1:
        said += "The average's mark is tested over data sets and seeds together."
    return said.strip()


def chosen_from(tables: Tables) -> str:
    """What may make methods' choices unequal."""
    counts = tables.selection.table["settings"]
    if counts.nunique() <= 1:
        return ""
    return (
        f"Methods had {counts.min()} to {counts.max()} settings to choose from; the more there are, the likelier that the "
        "best one on validation was lucky there."
    )


def elbows(tables: Tables) -> list[str]:
    """Where each rank curve bends."""
    said = []
    for method, part in tables.elbows.groupby("method", sort=False):
        found = {row["unit"]: row["elbow"] for row in part.to_dict("records")}
        overall = part.loc[part["unit"].isna(), "elbow"].iloc[0]
        begun = f"{method}: " + ("no elbow" if math.isnan(overall) else f"the elbow is at rank {overall:.0f}")
        units = [
            f"{unit} {'none' if math.isnan(at) else f'{at:.0f}'}" for unit, at in found.items() if isinstance(unit, str)
        ]
        by_data = f" (by data set: {', '.join(units)})" if len(units) > 1 else ""
        said.append(f"{begun}{by_data}.")
    return said


def sizes(tables: Tables) -> str:
    """How many images were trained on."""
    if "n_train" not in tables.units or tables.units["n_train"].isna().all():
        return "not stated"
    low, high = tables.units["n_train"].min(), tables.units["n_train"].max()
    return whole(float(low)) if low == high else f"{whole(float(low))} to {whole(float(high))}"


def _listed(tests: pd.DataFrame) -> str:
    return ", ".join(f"{row['second']} ({_difference(row['difference'])})" for row in tests.to_dict("records"))


def _difference(share: float) -> str:
    return f"{100 * share:+.2f} points" if math.isfinite(share) else "no pairs"


def _number(share: float) -> str:
    return f"{100 * share:.2f}"


def _alpha() -> float:
    from pliant.study.tables import ALPHA

    return round(ALPHA, 10)
