"""The charts of a study's page, from its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.report.figures import INK
from pliant.report.looks import PLAIN, Look
from pliant.report.study_svg import Box, Spot, Trace, box_chart, looks_of, scatter_chart, trace_chart
from pliant.report.svg_rates import Point, Row, dot_chart
from pliant.report.terms import shortened

if TYPE_CHECKING:
    import pandas as pd

    from pliant.study.tables import Tables

ACCURACY = "test top-1 accuracy (%)"
BINS = 60
"""Points of a curve over steps: the mean of each run's steps in a bin."""
_LONGEST = 20
_TRAINING = Look(INK, marker="s", hollow=True)


def averages(tables: Tables) -> Any:
    """The mean of every method with its interval."""
    rows = [
        Row(shortened(row["method"], _LONGEST),
            [Point(100 * row["mean"], PLAIN, 100 * row["low"], 100 * row["high"])])
        for row in tables.average.to_dict("records")
    ]  # fmt: skip
    return dot_chart(rows, ACCURACY, sides=None) if rows else None


def boxes_over_rates(tables: Tables) -> Any:
    """Points lost by each rate against the best one of the same unit and method."""
    means = tables.over_rates
    best = means.groupby(["unit", "method"])["mean"].transform("max")
    several = means.groupby(["unit", "method"])["mean"].transform("count") > 1
    return _boxes(tables, means.assign(value=means["mean"] - best)[several], "points from the best rate", 0)


def boxes_over_seeds(tables: Tables) -> Any:
    """Points of each seed from the mean over seeds of the same unit and method."""
    runs = tables.chosen
    groups = runs.groupby(["unit", "method"])["test_top1"]
    runs = runs.assign(value=runs["test_top1"] - groups.transform("mean"))[groups.transform("count") > 1]
    return _boxes(tables, runs, "points from the mean over seeds")


def boxes_of_units(tables: Tables) -> list[tuple[str, Any, Any]]:
    """Names of units, and the accuracy itself over rates and over seeds."""
    found = []
    for unit in tables.units["unit"]:
        rates = tables.over_rates[tables.over_rates["unit"] == unit].rename(columns={"mean": "value"})
        several = rates.groupby("method")["value"].transform("count") > 1
        runs = tables.chosen[tables.chosen["unit"] == unit].rename(columns={"test_top1": "value"})
        repeated = runs.groupby("method")["value"].transform("count") > 1
        over_rates, over_seeds = (_boxes(tables, part, ACCURACY, 100) for part in (rates[several], runs[repeated]))
        found.append((str(unit), over_rates, over_seeds))
    return found


def _boxes(tables: Tables, values: pd.DataFrame, label: str, most: float = math.inf) -> Any:
    boxes = [
        Box(method, 100 * values.loc[values["method"] == method, "value"].to_numpy(dtype=float))
        for method in tables.methods
    ]
    return box_chart(boxes, label, most)


def gaps(tables: Tables) -> Any:
    """Training and test accuracy of every method on one line, means over the units that tell both."""
    means = 100 * tables.gap.groupby("method")[["train", "test"]].mean()
    train, test = (dict(means[name].astype(float)) for name in ("train", "test"))
    rows = [
        Row(shortened(method, _LONGEST), [Point(test[method], PLAIN), Point(train[method], _TRAINING)])
        for method in tables.methods
        if method in test
    ]
    legend = [("test", PLAIN), ("training", _TRAINING)]
    return dot_chart(rows, "top-1 accuracy (%)", legend=legend, joined=True, sides=None) if rows else None


def costs(tables: Tables) -> Any:
    """Accuracy against trained parameters."""
    rows = tables.costs.to_dict("records")
    single = len(tables.units) == 1  # of several, intervals tell how data sets differ, and would hide the points
    names = [point_name(row) for row in rows]
    looks = looks_of(names)
    width = 100 if single else math.nan
    spots = [
        Spot(
            name,
            looks[name],
            row["parameters"],
            100 * row["mean"],
            width * row["low"],
            width * row["high"],
            row["front"],
        )
        for name, row in zip(names, rows, strict=True)
    ]
    return scatter_chart(spots, "trained parameters, log scale", ACCURACY, 100)


def point_name(row: Mapping[Any, Any]) -> str:
    """A method, with its rank where that was varied."""
    return f"{row['method']} r={row['rank']:.0f}" if math.isfinite(row["rank"]) else str(row["method"])


def ranks(tables: Tables) -> Any:
    """Accuracy over ranks, with the elbows, and for one unit with bands of 95 % intervals."""
    table = tables.ranks
    if len(tables.units) > 1:  # where intervals tell how data sets differ, and would press the curve flat
        table = table.assign(low=np.nan, high=np.nan)
    names = list(table["method"].unique())
    looks = looks_of(names)
    traces = [
        Trace(str(name), looks[str(name)], part["rank"].to_numpy(dtype=float),
              *(100 * part[column].to_numpy(dtype=float) for column in ("mean", "low", "high")))
        for name, part in table.groupby("method", sort=False)
    ]  # fmt: skip
    whole = tables.elbows[tables.elbows["unit"].isna() & tables.elbows["elbow"].notna()]
    several = len(whole) > 1
    marks = [
        (f"elbow of {row['method']}: {row['elbow']:.0f}" if several else f"elbow: {row['elbow']:.0f}", row["elbow"])
        for row in whole.to_dict("records")
    ]
    shown = sorted(table["rank"].unique().tolist())
    return trace_chart(traces, "rank, log scale", ACCURACY, most=100, log_x=True, x_ticks=shown, marks=marks)


def curves(tables: Tables, steps: Mapping[str, pd.DataFrame]) -> list[tuple[str, Any, Any]]:
    """Names of units, with the loss and the gradient norm over steps of every method's chosen setting."""
    looks = looks_of(tables.methods)
    found = []
    for unit in tables.units["unit"]:
        runs = tables.chosen[tables.chosen["unit"] == unit]
        logged = {
            method: [steps[key] for key in runs.loc[runs["method"] == method, "run"] if key in steps]
            for method in tables.methods
        }
        loss, norm = (
            trace_chart(
                [_trace(method, looks[method], tables_of, column) for method, tables_of in logged.items() if tables_of],
                "training step (one optimizer update)", label,
            )
            for column, label in (("loss", "training loss (nats)"), ("grad_norm", "gradient norm before clipping"))
        )  # fmt: skip
        if loss or norm:
            found.append((str(unit), loss, norm))
    return found


def _trace(name: str, look: Look, logged: list[pd.DataFrame], column: str) -> Trace:
    """Median and range over runs of their means in bins of steps."""
    last = max(float(table["step"].max()) for table in logged)
    edges = np.linspace(0, last, BINS + 1)
    rows = np.full((len(logged), BINS), np.nan)
    for number, table in enumerate(logged):
        if column not in table:
            continue
        values = table[["step", column]].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
        which = np.clip(np.searchsorted(edges, values["step"], side="left") - 1, 0, BINS - 1)
        counts = np.bincount(which, minlength=BINS)
        sums = np.bincount(which, weights=values[column], minlength=BINS)
        rows[number, counts > 0] = sums[counts > 0] / counts[counts > 0]
    known = np.isfinite(rows).any(axis=0)
    rows, middles = rows[:, known], ((edges[:-1] + edges[1:]) / 2)[known]
    if not known.any():
        return Trace(name, look, middles, middles)
    return Trace(name, look, middles, *(each(rows, axis=0) for each in (np.nanmedian, np.nanmin, np.nanmax)))
