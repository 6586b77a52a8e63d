"""Two measurements of plasticity side by side: how much each component changed, and writing the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.report import looks, terms
from pliant.report.comparison_figure import comparison_figure
from pliant.report.svg_rates import Point, Row, dot_chart
from pliant.report.templates import render, write_page
from pliant.report.words import compact

if TYPE_CHECKING:
    import pandas as pd

    from pliant.measure import Plasticity

NAME, PICTURE = "report.html", "comparison.png"
UNCLEAR = "no clear change"
_SETTINGS = {
    "model": "Model", "weights": "Weights", "img_size": "Image size", "pretrain": "Pretraining data",
    "downstream": "Downstream data", "protocols": "Protocols", "estimator": "Estimator", "images": "Images a side",
    "pairs": "Pairs", "dropped": "Identical pairs dropped", "family": "Family", "depth": "Blocks", "width": "Width",
    "tokens": "Tokens", "command": "Command",
}  # fmt: skip


def write_comparison(first: Plasticity, second: Plasticity, names: tuple[str, str], folder: Path) -> Path:
    """Write `report.html` and `comparison.png` of two measurements into `folder`; returns the page's path.

    The page stands alone, and the same measurements give the same bytes.

    Args:
        names: what the two are called, such as `before` and `after`.

    Raises:
        PliantError: the two share no protocol, or the files cannot be written.
    """
    folder = Path(folder)
    views = compared(first, second, names)
    html = render("comparison.html", names=names, compared=views, settings=_settings(first, second), terms=terms)
    comparison_figure(first, second, names, folder / PICTURE)
    return write_page(folder / NAME, html)


def compared(first: Plasticity, second: Plasticity, names: tuple[str, str]) -> dict[str, Any]:
    """What a page says of two measurements: for each protocol that both have, sentences, charts and rows.

    Raises:
        PliantError: the two share no protocol.
    """
    from pliant.measure import compare

    table = compare(first, second)
    return {
        "names": names,
        "views": [_view(str(protocol), rows, names) for protocol, rows in table.groupby("protocol", sort=False)],
    }


def _view(protocol: str, table: pd.DataFrame, names: tuple[str, str]) -> dict[str, Any]:
    rows = table.to_dict("records")
    components = [row for row in rows if row["kind"] == "component"]
    pairs = [
        Row(row["component"], [
            Point(row["mean_first"], looks.FIRST, row["low_first"], row["high_first"]),
            Point(row["mean_second"], looks.SECOND, row["low_second"], row["high_second"]),
        ])
        for row in rows
    ]  # fmt: skip
    ratios = [
        Row(row["component"], [Point(row["ratio"], looks.SECOND, row["ratio_low"], row["ratio_high"])]) for row in rows
    ]
    legend = [(terms.shortened(name, 24), look) for name, look in zip(names, (looks.FIRST, looks.SECOND), strict=True)]
    return {
        "title": terms.protocol_title(protocol),
        "sentence": change(components),
        "rows": [{**row, "verdict": _verdict(row)} for row in rows],
        "means": dot_chart(pairs, terms.RATE, legend=legend, joined=True),
        "ratios": dot_chart(ratios, "ratio of the rates, second / first", sides=("fell", "rose")),
    }


def change(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Where plasticity rose, fell or did neither for sure, the most changed first, in a sentence."""
    groups: dict[str, list[str]] = {"rose in": [], "fell in": [], "did not clearly change in": []}
    for row in sorted(rows, key=lambda row: -abs(math.log(row["ratio"])) if row["ratio"] > 0 else 0.0):
        if (verdict := _verdict(row)) == UNCLEAR:
            groups["did not clearly change in"].append(row["component"])
        else:
            groups[f"{verdict} in"].append(f"{row['component']} ({_relative(row['ratio'])})")
    said = [f"{verdict} {_listed(names)}" for verdict, names in groups.items() if names]
    return f"Plasticity {'; it '.join(said)}."


def _relative(ratio: float) -> str:
    return f"{compact(ratio, 3)} times" if ratio >= 2 else f"{100 * (ratio - 1):+.2g} %".replace("-", "−")


def _verdict(row: Mapping[Any, Any]) -> str:
    if row["ratio_low"] > 1:
        return "rose"
    return "fell" if row["ratio_high"] < 1 else UNCLEAR


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _settings(first: Plasticity, second: Plasticity) -> list[tuple[str, str, str, bool]]:
    """Title, value of the first and of the second, and whether they differ."""
    rows = []
    for name, title in _SETTINGS.items():
        values = [_plain(each.summary.get(name)) for each in (first, second)]
        if any(values):
            rows.append((title, values[0] or "not stated", values[1] or "not stated", values[0] != values[1]))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
