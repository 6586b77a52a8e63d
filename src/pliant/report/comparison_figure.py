"""Two measurements of plasticity as one picture: both rates of each component, and their ratio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pliant.report import looks, terms
from pliant.report.figures import INK, divide, drawable, names_down, new_figure, save_figure, scale, tidy, title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pliant.measure import Plasticity


def comparison_figure(
    first: Plasticity, second: Plasticity, names: tuple[str, str], path: str | Path | None = None
) -> Figure:
    """Two panels a protocol: the rates of both as dumbbells, and the ratio second / first with its 95 % interval.

    Args:
        names: what the two are called.
        path: where to write it, as .png, .svg or .pdf; None writes nothing.

    Raises:
        PliantError: the two share no protocol; `path` has another ending or cannot be written.
    """
    from pliant.measure import compare

    table = compare(first, second)
    groups = list(table.groupby("protocol", sort=False))
    figure = new_figure(11, 1.0 + 3.6 * len(groups))
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (protocol, rows), (rates, ratios) in zip(groups, panels, strict=True):
        _rates(rates, rows, names)
        _ratios(ratios, rows)
        rates.set_title(f"{terms.protocol_title(str(protocol))}: mean over blocks", fontsize=10, loc="left")
        ratios.set_title("change", fontsize=10, loc="left")
    shown = [terms.shortened(name) for name in names]
    title(figure, f"Plasticity: {shown[0]} and {shown[1]}\nintervals of 95 %, the two taken as independent")
    if path is not None:
        save_figure(figure, path)
    return figure


def _rates(axes: Axes, table: pd.DataFrame, names: tuple[str, str]) -> None:
    tidy(axes)
    for place, row in enumerate(table.to_dict("records")):
        axes.plot([row["mean_first"], row["mean_second"]], [place, place], color="#a9b1ba", linewidth=2.5, zorder=1)
    for which, name, look in zip(("first", "second"), names, (looks.FIRST, looks.SECOND), strict=True):
        means = table[f"mean_{which}"]
        axes.errorbar(
            means, range(len(means)), xerr=[means - table[f"low_{which}"], table[f"high_{which}"] - means],
            linestyle="none", color=look.colour, marker=look.marker, markersize=6 * look.size, capsize=4,
            markerfacecolor="white" if look.hollow else look.colour, label=drawable(terms.shortened(name, 30)),
        )  # fmt: skip
    names_down(axes, table["component"])
    divide(axes)
    scale(axes, "x", [*table["mean_first"], *table["mean_second"], 1], margin=0.1)
    axes.set_xlabel(f"{terms.RATE}\nbelow 1 contracts, above 1 amplifies")
    legend = axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.06))
    for text in legend.get_texts():
        text.set_parse_math(False)


def _ratios(axes: Axes, table: pd.DataFrame) -> None:
    tidy(axes)
    ratio = table["ratio"]
    axes.errorbar(
        ratio, range(len(ratio)), xerr=[ratio - table["ratio_low"], table["ratio_high"] - ratio], linestyle="none",
        color=INK, marker="D", markersize=5, capsize=5,
    )  # fmt: skip
    names_down(axes, table["component"])
    divide(axes)
    scale(axes, "x", [*ratio, 1], margin=0.12)
    axes.set_xlabel("ratio of the rates, second / first\nbelow 1 fell, above 1 rose")
