"""Checks of measured plasticity and of upper bounds (arXiv 2602.06883), which need no runs."""

from __future__ import annotations

import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.checks.common import COMPONENTS, HIGH, LOW
from pliant.study.claims import Claim, Measurements, Verdict, measured_check_of, verdict


@measured_check_of("plasticity-ranking")
def _ranking(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "mean", "low", "high")
    passed = [
        _in_order(part["mean"]) and part.loc["mha", "low"] > part.loc[list(LOW), "high"].max()
        for part in found.values()
    ]
    return verdict(
        claim, all(passed), "; ".join(f"{name}: {_ranked(part['mean'])}" for name, part in found.items()),
        "order of the means over blocks, FC1 and FC2 in either order; MHA's 95 % interval above those of the LayerNorms",
        f"{sum(passed)} of {len(passed)} measurements rank MHA, FC1 and FC2, LN2, LN1 with MHA apart from the LayerNorms.",
    )  # fmt: skip


@measured_check_of("plasticity-threshold")
def _threshold(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "mean", "low", "high")
    above = {name: part.index[part["low"] > 1] for name, part in found.items()}
    below = {name: part.index[part["high"] < 1] for name, part in found.items()}
    passed = [set(HIGH) <= set(above[name]) and set(LOW) <= set(below[name]) for name in found]
    return verdict(
        claim, all(passed), "; ".join(f"{name}: {_ranked(part['mean'])}" for name, part in found.items()),
        "95 % intervals of the means over blocks: above 1 for MHA, FC1, FC2, below 1 for LN1, LN2",
        "; ".join(
            f"{name}: {', '.join(above[name]) or 'nothing'} above 1, {', '.join(below[name]) or 'nothing'} below" for name in found
        ) + ".",
    )  # fmt: skip


@measured_check_of("bounds-order")
def _bounds(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "bound", "largest", blocks=True)
    orders = {name: part["bound"].groupby(level=0).mean() for name, part in found.items()}
    broken = sum(int((part["largest"] > part["bound"]).sum()) for part in found.values())
    total = sum(len(part) for part in found.values())
    passed = [_in_order(order) for order in orders.values()]
    return verdict(
        claim, all(passed) and not broken, "; ".join(f"{name}: {_ranked(order)}" for name, order in orders.items()),
        "every block's bound at least the largest rate measured; order of the bounds' means, FC1 and FC2 in either order",
        f"{broken} of {total} bounds are broken by a measured pair; {sum(passed)} of {len(passed)} measurements have the order.",
    )  # fmt: skip


def _plasticity(measurements: Measurements, *columns: str, blocks: bool = False) -> dict[str, pd.DataFrame]:
    """Measured rates by name of the measurement, indexed by component: means over blocks, or every block's.

    Of the paper's protocol (shared-input) where that was measured.

    Raises:
        PliantError: there are none, or a component or a figure is missing.
    """
    if "plasticity" not in measurements:
        raise PliantError("no plasticity was measured")
    table = measurements["plasticity"]
    statistics.check_columns(table, ["component", *columns], "plasticity table")
    if blocks and ("block" not in table or table["block"].isna().all()):
        raise PliantError("the plasticity table has means over blocks only, not every block's rates")
    table = table.assign(component=table["component"].str.lower())
    if "block" in table:
        table = table[table["block"].notna() == blocks]
    if "protocol" in table and (table["protocol"] == "shared-input").any():
        table = table[table["protocol"] == "shared-input"]
    table = table[table["component"].isin(COMPONENTS)]
    names = [name for name in ("model", "data", "protocol") if name in table]
    parts = (
        [(", ".join(map(str, key)), part) for key, part in table.groupby(names, sort=False)]
        if names
        else [("measured", table)]
    )
    found = {name: part.set_index("component") for name, part in parts}
    for name, part in found.items():
        if set(part.index) != set(COMPONENTS) or part[list(columns)].isna().any(axis=None):
            raise PliantError(f"{name}: the plasticity table lacks {' or '.join(columns)} of a component")
        if not blocks and not part.index.is_unique:
            raise PliantError(
                f"{name}: the plasticity table has two rows of a component; tell measurements apart by model and data"
            )
    if not found:
        raise PliantError("the plasticity table has no component")
    return found


def _in_order(values: pd.Series) -> bool:
    """MHA > FC1, FC2 > LN2 > LN1, with FC1 and FC2 in either order."""
    linear = values[["fc1", "fc2"]]
    return bool(values["mha"] > linear.max() and linear.min() > values["ln2"] > values["ln1"])


def _ranked(values: pd.Series) -> str:
    return " > ".join(f"{name} {value:.3g}" for name, value in values.sort_values(ascending=False).items())
