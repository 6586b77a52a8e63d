"""The page of a measurement of plasticity: what stands on it, and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.report import looks, terms
from pliant.report.comparison_page import compared
from pliant.report.plasticity_figure import plasticity_figure
from pliant.report.svg import bar_chart
from pliant.report.svg_rates import Curve, Point, Row, depth_chart, dot_chart
from pliant.report.templates import render, write_page

if TYPE_CHECKING:
    import pandas as pd

    from pliant.measure import Plasticity

NAME, PICTURE = "report.html", "plasticity.png"
BINS = 16


def write_plasticity(folder: Path, base: Plasticity | None = None, rates: np.ndarray | None = None) -> Path:
    """Write `report.html` and `plasticity.png` into the folder of a saved measurement; returns the page's path.

    The page stands alone, and the same arguments give the same bytes.

    Args:
        base: another measurement to compare with, such as of the model before it was tuned.
        rates: single rates (blocks, components, pairs) of the first protocol, which are not saved with a measurement;
            their distribution is drawn.

    Raises:
        PliantError: `folder` holds no measurement or a damaged one, `base` shares no protocol with it, or the files
            cannot be written.
    """
    from pliant.measure import load

    folder = Path(folder)
    measured = load(folder)
    html = _render(measured, base, rates)
    plasticity_figure(measured, folder / PICTURE)
    return write_page(folder / NAME, html)


def _render(measured: Plasticity, base: Plasticity | None, rates: np.ndarray | None) -> str:
    views = [_view(measured, protocol) for protocol in measured.protocols]
    return render(
        "plasticity.html",
        summary=measured.summary,
        terms=terms,
        views=views,
        components=[(name, terms.COMPONENTS.get(name, "")) for name in measured.table()["component"].unique()],
        histograms=_histograms(measured, rates),
        compared=None if base is None else compared(base, measured, ("before", "after")),
    )


def _view(measured: Plasticity, protocol: str) -> dict[str, Any]:
    """What the page says of one protocol."""
    from pliant.measure.words import scale_warning, sentences

    table, blocks, sublayers = measured.table(protocol), measured.blocks(protocol), measured.sublayers(protocol)
    ranked = table.sort_values("mean", ascending=False, kind="stable")
    warning = scale_warning(measured, protocol)
    return {
        "protocol": protocol,
        "title": terms.protocol_title(protocol),
        "explained": terms.PROTOCOLS.get(protocol, ("", ""))[1],
        "sentences": [sentence for sentence in sentences(measured, protocol) if sentence != warning],
        "warning": warning,
        "rows": [_row(row) for row in ranked.to_dict("records")],
        "forward": [_row(row) for row in table.to_dict("records")],
        "sublayers": [_row(row) for row in sublayers.to_dict("records")],
        "ranking": dot_chart(_points(ranked, "mean", "low", "high"), terms.RATE),
        "depth": depth_chart(_curves(blocks), terms.RATE),
        "columns": _columns(table),
        "elasticity": dot_chart(
            _points(table.sort_values("elasticity", ascending=False, kind="stable"), "elasticity", "elasticity_low",
                    "elasticity_high"), terms.ELASTICITY,
        ),
        "sublayer_chart": dot_chart(_points(sublayers, "mean", "low", "high"), terms.RATE),
        "neighbours": _neighbours(measured, protocol, ranked["component"].tolist()),
        "soundness": _soundness(blocks),
        "blocks": _by_block(blocks),
    }  # fmt: skip


def _row(row: Mapping[Any, Any]) -> dict[Any, Any]:
    verdict = "above 1" if row["low"] > 1 else "below 1" if row["high"] < 1 else "not clear"
    largest, bound = row["largest"], row["bound"]
    return {**row, "verdict": verdict, "images": int(row["images"]), "pairs": int(row["pairs"]),
            "tightness": bound / largest if largest > 0 else None}  # fmt: skip


def _points(table: pd.DataFrame, value: str, low: str, high: str) -> list[Row]:
    return [
        Row(row["component"], [Point(row[value], looks.look_of(row["component"]), row[low], row[high])])
        for row in table.to_dict("records")
    ]


def _curves(blocks: pd.DataFrame) -> list[Curve]:
    return [
        Curve(
            str(component),
            looks.look_of(str(component)),
            *(rows[name].to_numpy(dtype=float) for name in ("mean", "low", "high")),
        )
        for component, rows in blocks.sort_values("block", kind="stable").groupby("component", sort=False)
    ]


def _columns(table: pd.DataFrame) -> Any:
    shown = [name for name in looks.FIGURES if np.isfinite(table[name].astype(float)).any()]
    rows = [
        Row(row["component"], [Point(row[name], looks.FIGURES[name]) for name in shown])
        for row in table.to_dict("records")
    ]
    legend = [(looks.FIGURE_NAMES[name], looks.FIGURES[name]) for name in shown]
    return dot_chart(rows, f"{terms.RATE}, log scale", legend=legend, log=True, sides=None)


def _neighbours(measured: Plasticity, protocol: str, ranked: list[str]) -> list[dict[str, Any]]:
    """The difference of each component and the next in rank, with its interval."""
    from pliant.measure.words import apart

    found = measured.differences
    rows = found[found["protocol"] == protocol].to_dict("records") if len(found) else []
    known = {(row["first"], row["second"]): (row["difference"], row["low"], row["high"]) for row in rows}
    known |= {(second, first): (-value, -high, -low) for (first, second), (value, low, high) in known.items()}
    return [
        {"upper": upper, "lower": lower, "interval": known[upper, lower],
         "apart": apart(measured, protocol, upper, lower)}
        for upper, lower in zip(ranked, ranked[1:], strict=False) if (upper, lower) in known
    ]  # fmt: skip


def _soundness(blocks: pd.DataFrame) -> tuple[int, int]:
    """In how many of the components of all blocks the largest measured rate is within the bound, and of how many."""
    known = blocks[np.isfinite(blocks["bound"].astype(float)) & np.isfinite(blocks["largest"].astype(float))]
    return int((known["largest"] <= known["bound"] * (1 + 1e-6)).sum()), len(known)


def _by_block(blocks: pd.DataFrame) -> tuple[list[str], list[list[Any]]]:
    """Names of the components, and rows of a block's number and its mean rates."""
    names = list(blocks["component"].unique())
    wide = blocks.pivot(index="block", columns="component", values="mean")[names]
    return names, [[int(block), *values] for block, *values in wide.itertuples()]


def _histograms(measured: Plasticity, rates: np.ndarray | None) -> list[tuple[str, Any]]:
    """How the rates of single pairs, each the mean over blocks, are spread."""
    if rates is None or not rates.size:
        return []
    names = measured.table(measured.protocols[0])["component"]
    found = []
    for name, values in zip(names, rates.mean(axis=0, dtype=float), strict=True):
        values = values[np.isfinite(values)]
        if len(values):
            counts, edges = np.histogram(values, bins=min(BINS, max(1, len(values) // 4)))
            chart = bar_chart(edges, 100 * counts / len(values), "rate of a pair, mean over blocks", "pairs (%)")
            found.append((name, chart))
    return found
