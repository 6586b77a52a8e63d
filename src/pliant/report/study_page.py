"""The page of a study: what stands on it, and writing it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.data.wording import counted
from pliant.files import write_text
from pliant.report import study_charts as charts
from pliant.report import study_words as words
from pliant.report.claims_document import NAME as CLAIMS
from pliant.report.claims_document import Document, claims_document
from pliant.report.figures import drawable
from pliant.report.study_files import write_tables
from pliant.report.templates import render, write_page

if TYPE_CHECKING:
    import pandas as pd

    from pliant.study.claims import Verdict
    from pliant.study.tables import Tables

NAME = "report.html"
COLUMNS = 8
"""Data sets of the accuracy table that stand side by side; more go to further tables, so that all fit on paper."""
FAILURES = 40
"""Failed runs that are listed on the page; all are in failures.csv."""
UNITS = 4
"""Data sets whose charts are shown at once; the others wait behind a fold."""
ROWS = 16
"""Choices that are listed at once; more wait behind a fold."""
HEADLINE = 80
"""Letters of data sets' names that are a headline; more are counted instead."""
VALUES = 12
"""Values of an axis that are listed."""


def write_study(
    folder: Path, results: pd.DataFrame, *, steps: Mapping[str, pd.DataFrame] | None = None,
    measurements: Mapping[str, pd.DataFrame] | None = None, title: str = "", command: str | None = None,
    notes: Sequence[str] = (), document: Document | None = None,
) -> Path:  # fmt: skip
    """Write `report.html` and its tables (`accuracy.csv`, `accuracy.tex`, ...) into `folder`; returns the page's path.

    The page stands alone, and the same arguments give the same bytes, in whatever order the rows are.

    Args:
        results: one row a run (`pliant.study`); `run` names it, and `error`, where there is such a column, says why a
            run failed.
        steps: what runs logged, by their `run`: tables of step, loss and grad_norm.
        measurements: further tables that claims are about, see `pliant.study.claims.judge`.
        notes: sentences that the reader should know.
        document: also write the verdicts on its paper's claims as `claims.md`.

    Raises:
        PliantError: the table lacks what every run has, is empty, or mixes settings; the files cannot be written.
    """
    from pliant.study.claims import judge_all
    from pliant.study.tables import Tables

    tables = Tables(results)
    claims = judge_all(results, {**_stacked(steps), **(measurements or {})})
    html = _render(tables, claims, steps, title, command, notes)
    write_tables(Path(folder), tables, claims)
    if document is not None:
        counts = f"{len(tables.table):,} runs, {len(tables.failures):,} of them failed"
        text = claims_document(claims, document, title, command, counts, notes)
        write_text(Path(folder) / CLAIMS, drawable(text))
    return write_page(Path(folder) / NAME, html)


def _stacked(steps: Mapping[str, pd.DataFrame] | None) -> dict[str, pd.DataFrame]:
    """The runs' steps as the one table that claims are judged by."""
    import pandas as pd

    return {"steps": pd.concat([table.assign(run=name) for name, table in steps.items()])} if steps else {}


def _render(
    tables: Tables, claims: Sequence[Verdict], steps: Mapping[str, pd.DataFrame] | None, title: str,
    command: str | None, notes: Sequence[str],
) -> str:  # fmt: skip
    found: dict[str, Any] = {}
    if tables.methods:
        found = {
            "accuracy": _accuracy(tables),
            "tests": _tests(tables),
            "selection": _selection(tables),
            "robustness": _robustness(tables),
            "gap": _gap(tables),
            "costs": _costs(tables),
            "ranks": _ranks(tables),
            "curves": charts.curves(tables, steps) if steps else [],
        }
    return render(
        "study.html",
        title=title or f"Study of {counted(len(tables.methods) or tables.table['method'].nunique(), 'method')}",
        subject=_subject(tables),
        headline=words.headline(tables),
        significance=words.significance(tables) if tables.methods else [],
        facts_rows=_facts(tables),
        claims=_claims(claims),
        settings=_settings(tables),
        failures=_failures(tables),
        shown_failures=FAILURES,
        shown_units=UNITS,
        most_rows=ROWS,
        command=command,
        notes=notes,
        words=words,
        tables=tables,
        found=found,
    )


def _subject(tables: Tables) -> str:
    names = list(tables.units["unit"])
    said = ", ".join(names)
    return said if len(said) <= HEADLINE else f"{len(names)} data sets"


def _facts(tables: Tables) -> list[tuple[str, str]]:
    seeds = tables.table["seed"].dropna().nunique()
    models = tables.units["model"].nunique()
    return [
        ("Runs", f"{len(tables.table):,}"),
        ("Failed", f"{len(tables.failures):,}"),
        ("Methods", str(tables.table["method"].nunique())),
        ("Data sets" if models <= 1 else "Data sets × backbones", str(len(tables.units))),
        ("Seeds", str(seeds) if seeds else "not stated"),
        ("Training images", words.sizes(tables)),
    ]


def _accuracy(tables: Tables) -> dict[str, Any]:
    units = tables.units.to_dict("records")
    cells = {(row["method"], row["unit"]): row for row in tables.accuracy.to_dict("records")}
    overall = tables.overall.set_index("method").to_dict("index")
    parts = [units[start : start + COLUMNS] for start in range(0, len(units), COLUMNS)]
    return {
        "parts": parts,
        "cells": cells,
        "overall": overall,
        "averaged": len(units) > 1,
        "gain": tables.average["gain"].notna().any(),
        "chart": charts.averages(tables),
        "incomplete": [name for name, row in overall.items() if math.isnan(row["mean"])],
        "most_seeds": int(tables.accuracy["seeds"].max()),
    }


def _tests(tables: Tables) -> list[dict[Any, Any]]:
    """The favourite against the others, over units and seeds, and p over units alone."""
    tests = tables.tests
    if tests.empty:
        return []
    alone = tables.tests_over_units.set_index("second")
    return [
        {**row, "units": int(alone.loc[row["second"], "pairs"]), "p_units": alone.loc[row["second"], "p"]}
        for row in tests.to_dict("records")
    ]


def _selection(tables: Tables) -> dict[str, Any]:
    table, axes = tables.selection.table, _telling(tables)
    order = {name: number for number, name in enumerate(tables.methods)}
    units = {name: number for number, name in enumerate(tables.units["unit"])}
    rows = sorted(table.to_dict("records"), key=lambda row: (units[row["unit"]], order.get(row["method"], len(order))))
    for row in rows:
        row["chosen"] = _values(row, axes)
        row["claimed"] = _values(row, axes, "claimed_") if math.isfinite(row["claimed_mean"]) else ""
    return {"rows": rows, "axes": axes, "sentence": tables.selection.sentence, "unequal": words.chosen_from(tables)}


def _telling(tables: Tables) -> list[str]:
    """The axes, without a head's rate that is everywhere the body's."""
    table, axes = tables.table, tables.axes
    if {"lr", "head_lr"} <= set(axes) and (table["lr"].eq(table["head_lr"]) | table["lr"].isna()).all():
        return [name for name in axes if name != "head_lr"]
    return axes


def _values(row: Mapping[Any, Any], axes: Sequence[str], prefix: str = "") -> str:
    said = [f"{name} {_value(row[prefix + name])}" for name in axes if _value(row[prefix + name])]
    return ", ".join(said) or "the only setting"


def _value(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _robustness(tables: Tables) -> dict[str, Any]:
    table = tables.robustness
    means = table.groupby("method").agg(
        spread=("spread", "mean"), worst=("spread", "max"), rates=("rates", "max"), failed=("failed", "sum"),
        deviation=("deviation", "mean"), seeds=("seeds", "max"),
    )  # fmt: skip
    return {
        "rows": [(method, means.loc[method].to_dict()) for method in tables.methods],
        "rates": charts.boxes_over_rates(tables),
        "seeds": charts.boxes_over_seeds(tables),
        "units": charts.boxes_of_units(tables),
    }


def _gap(tables: Tables) -> dict[str, Any] | None:
    if tables.gap.empty:
        return None
    means = tables.gap.groupby("method").agg(
        train=("train", "mean"), test=("test", "mean"), gap=("gap", "mean"), std=("std", "mean"), units=("unit", "size")
    )
    rows = [(method, means.loc[method].to_dict()) for method in tables.methods if method in means.index]
    return {"rows": rows, "chart": charts.gaps(tables)}


def _costs(tables: Tables) -> dict[str, Any] | None:
    if tables.costs.empty:
        return None
    rows = [{**row, "name": charts.point_name(row)} for row in tables.costs.to_dict("records")]
    return {"rows": rows, "chart": charts.costs(tables)}


def _ranks(tables: Tables) -> dict[str, Any] | None:
    if tables.ranks.empty:
        return None
    table = tables.ranks
    change = table.groupby("method")["mean"].diff()
    return {"rows": table.assign(change=change).to_dict("records"), "chart": charts.ranks(tables),
            "elbows": words.elbows(tables)}  # fmt: skip


def _claims(claims: Sequence[Verdict]) -> dict[str, Any]:
    outcomes = [each.outcome for each in claims]
    return {
        "tested": [each for each in claims if each.outcome != "not tested"],
        "untested": [each for each in claims if each.outcome == "not tested"],
        "counts": {name: outcomes.count(name) for name in ("holds", "does not hold", "not tested")},
    }


def _settings(tables: Tables) -> dict[str, list[tuple[str, str]]]:
    """What was varied, and what all runs share."""
    shared: list[tuple[str, str]] = []
    varied: list[tuple[str, str]] = []
    for name in tables.settings:
        values = sorted({_value(value) for value in tables.table[name]} - {""}, key=_number)
        if not values:
            continue
        said = ", ".join(values[:VALUES]) + (f", … ({len(values)} values)" if len(values) > VALUES else "")
        (varied if len(values) > 1 else shared).append((name, said))
    return {"varied": varied, "shared": shared}


def _number(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _failures(tables: Tables) -> list[dict[str, Any]]:
    axes = _telling(tables)
    return [
        {"method": row["method"], "unit": row["unit"], "setting": _values(row, axes), "seed": _value(row["seed"]),
         "error": _value(row["error"]) or "no message was recorded"}
        for row in tables.failures.to_dict("records")
    ]  # fmt: skip
