"""A measurement of plasticity as one picture: who ranks where, how it changes with depth, how tight the bounds are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pliant.report import looks, terms
from pliant.report.figures import REFERENCE, divide, names_down, new_figure, save_figure, scale, tidy, title
from pliant.report.words import compact, rate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pliant.measure import Plasticity


def plasticity_figure(measured: Plasticity, path: str | Path | None = None) -> Figure:
    """Three panels a protocol: the ranking with 95 % intervals, the curve over depth, and measured against bound.

    The same measurement gives the same bytes.

    Args:
        path: where to write it, as .png, .svg or .pdf; None writes nothing.

    Raises:
        PliantError: `path` has another ending, or cannot be written.
    """
    protocols = measured.protocols
    figure = new_figure(14, 1.1 + 3.9 * len(protocols))
    panels = figure.subplots(len(protocols), 3, squeeze=False, width_ratios=(1, 1.25, 1))
    for protocol, (ranking, depth, columns) in zip(protocols, panels, strict=True):
        table = measured.table(protocol)
        _ranking(ranking, table.sort_values("mean", ascending=False, kind="stable"))
        _depth(depth, measured.blocks(protocol))
        _columns(columns, table)
        ranking.set_title(f"{terms.protocol_title(protocol)}: ranking, mean over blocks", fontsize=10, loc="left")
        depth.set_title("over depth", fontsize=10, loc="left")
        columns.set_title("measured, local, bound; mean over blocks", fontsize=10, loc="left")
    title(figure, _headline(measured))
    if path is not None:
        save_figure(figure, path)
    return figure


def _headline(measured: Plasticity) -> str:
    summary = measured.summary
    names = " and ".join(terms.protocol_title(protocol).lower() for protocol in measured.protocols)
    subject = ": ".join(filter(None, (terms.shortened(terms.model(summary)), terms.data(summary))))
    return f"Plasticity of {subject}\n{names}, {terms.sample(summary)}, intervals of 95 %"


def _ranking(axes: Axes, table: pd.DataFrame) -> None:
    tidy(axes)
    for place, row in enumerate(table.to_dict("records")):
        look, half = looks.look_of(row["component"]), row["high"] - row["mean"]
        axes.errorbar(
            row["mean"], place, xerr=[[row["mean"] - row["low"]], [half]], color=look.colour, marker=look.marker,
            markersize=6, capsize=6, linewidth=1.6,
        )  # fmt: skip
        axes.annotate(
            f"{rate(row['mean'])} ± {compact(half, 2)}", (row["mean"], place), (0, 9), textcoords="offset points",
            ha="center", fontsize=8, color="#555d66",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    names_down(axes, table["component"])
    divide(axes)
    scale(axes, "x", np.append(table["mean"], 1), margin=0.2)
    axes.set_xlabel(f"{terms.RATE}\nbelow 1 contracts, above 1 amplifies")


def _depth(axes: Axes, blocks: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    tidy(axes)
    for component, rows in blocks.groupby("component", sort=False):
        look, x = looks.look_of(str(component)), rows["block"].to_numpy(dtype=float)
        axes.plot(
            x, rows["mean"], color=look.colour, marker=look.marker, markersize=5, linewidth=1.5, label=str(component),
            linestyle=(0, look.dash) if look.dash else "-", markevery=max(1, len(x) // 12),
        )  # fmt: skip
        axes.fill_between(x, rows["low"], rows["high"], color=look.colour, alpha=0.18, linewidth=0)
    axes.axhline(1, **REFERENCE)
    scale(axes, "y", np.append(blocks["mean"], 1), margin=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("block (0 is the first)")
    axes.set_ylabel(terms.RATE)
    _legend(axes, handlelength=3.2, columnspacing=1.2)


def _columns(axes: Axes, table: pd.DataFrame) -> None:
    tidy(axes)
    shown = [name for name in looks.FIGURES if np.isfinite(table[name].astype(float)).any()]
    for number, name in enumerate(shown):
        look, values = looks.FIGURES[name], table[name].to_numpy(dtype=float)
        # One below the other: where two agree, both are still seen.
        places = np.arange(len(values)) + 0.17 * (number - (len(shown) - 1) / 2)
        axes.plot(
            values, places, linestyle="none", color=look.colour, marker=look.marker, markersize=6,
            markerfacecolor="white" if look.hollow else look.colour, label=looks.FIGURE_NAMES[name],
        )  # fmt: skip
    for edge in np.arange(len(table) - 1) + 0.5:
        axes.axhline(edge, color="#d9dde2", linewidth=0.8)
    axes.grid(visible=False, axis="y")
    names_down(axes, table["component"])
    scale(axes, "x", table[shown].to_numpy(dtype=float).ravel(), margin=0.06, log=True)
    axes.set_xlabel(f"{terms.RATE}, log scale")
    _legend(axes, handletextpad=0.2, columnspacing=1.0)


def _legend(axes: Axes, **spacing: float) -> None:
    axes.legend(frameon=False, fontsize=8.5, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.06), **spacing)
