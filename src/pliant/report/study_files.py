"""The tables of a study's page as files: CSV with all digits, and LaTeX to paste into a paper (needs booktabs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.files import write_text
from pliant.report.figures import drawable

if TYPE_CHECKING:
    import pandas as pd

    from pliant.study.claims import Verdict
    from pliant.study.tables import Tables

NAMES = ("accuracy", "average", "tests", "selected", "robustness", "gap", "ranks", "costs", "claims", "failures")
ALIKE = "≈"
_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    ALIKE: r"$\approx$", "±": r"$\pm$", "−": "--", "×": r"$\times$",
}  # fmt: skip


_Column = tuple[str, str, Callable[[Any], str]]
"""Its title, the name in the table, and how a value is written."""


class Latex(str):
    """A cell that is LaTeX already."""


def write_tables(folder: Path, tables: Tables, claims: Sequence[Verdict]) -> None:
    """Write every table that has rows, and remove those of an earlier report that have none any more."""
    found = _frames(tables, claims)
    typeset = _typeset(tables, claims)
    for name in NAMES:
        for suffix, content in ((".csv", _csv(found.get(name))), (".tex", typeset.get(name))):
            path = folder / f"{name}{suffix}"
            if content is None:
                path.unlink(missing_ok=True)
            else:
                write_text(path, drawable(content))


def _frames(tables: Tables, claims: Sequence[Verdict]) -> dict[str, pd.DataFrame]:
    import pandas as pd

    said = [
        {"claim": each.claim.id, "source": each.claim.source, "says": each.claim.says, "outcome": each.outcome,
         "paper": each.paper, "ours": each.ours, "test": each.test, "sentence": each.sentence}
        for each in claims
    ]  # fmt: skip
    always = {"claims": pd.DataFrame(said), "failures": tables.failures.drop(columns=["unit", "failed", "base"])}
    if not tables.methods:
        return always
    tests = [
        table.assign(over=over)
        for over, table in (("units and seeds", tables.tests), ("units", tables.tests_over_units))
        if len(table)
    ]
    return always | {
        "accuracy": tables.accuracy,
        "average": tables.overall,
        "tests": pd.concat(tests, ignore_index=True) if tests else pd.DataFrame(),
        "selected": tables.selection.table,
        "robustness": tables.robustness,
        "gap": tables.gap,
        "ranks": tables.ranks,
        "costs": tables.costs,
    }


def _csv(table: pd.DataFrame | None) -> str | None:
    return None if table is None or table.empty else table.to_csv(index=False, lineterminator="\n")


def _typeset(tables: Tables, claims: Sequence[Verdict]) -> dict[str, str]:
    found = {"claims": latex(["claim", "the paper", "ours", "outcome"],
                             [[each.claim.says, each.paper, each.ours, each.outcome] for each in claims])}  # fmt: skip
    if not tables.methods:
        return found
    found["accuracy"] = _accuracy(tables)
    chosen = [(name, name, _value) for name in tables.selection.axes]
    unit = [("data set", "unit", str), ("method", "method", str)]
    columns: dict[str, tuple[pd.DataFrame, list[_Column]]] = {
        "average": (tables.average, [("method", "method", str), ("accuracy (%)", "mean", _points),
                                     ("low", "low", _points), ("high", "high", _points), ("gain (%)", "gain", _value)]),
        "tests": (tables.tests, [("better", "first", str), ("than", "second", str), ("pairs", "pairs", _value),
                                   ("points", "difference", _points), ("test", "test", _value), ("p (Holm)", "p", _p)]),
        "selected": (tables.selection.table, [*unit, *chosen, ("validation (%)", "val_mean", _points),
                                              ("test (%)", "test_mean", _points),
                                              ("best on test (%)", "claimed_mean", _points)]),
        "robustness": (tables.robustness, [*unit, ("spread over rates", "spread", _points), ("rates", "rates", _value),
                                           ("failed", "failed", _value), ("deviation over seeds", "deviation", _points)]),
        "gap": (tables.gap, [*unit, ("training (%)", "train", _points), ("test (%)", "test", _points),
                             ("gap (points)", "gap", _points)]),
        "costs": (tables.costs, [("method", "method", str), ("rank", "rank", _value),
                                 ("trained parameters", "parameters", _whole), ("accuracy (%)", "mean", _points),
                                 ("front", "front", _value)]),
        "ranks": (tables.ranks, [("method", "method", str), ("rank", "rank", _value), ("accuracy (%)", "mean", _points),
                                 ("low", "low", _points), ("high", "high", _points)]),
    }  # fmt: skip
    for name, (table, shown) in columns.items():
        if len(table):
            rows = [[say(row[column]) for _, column, say in shown] for row in table.to_dict("records")]
            found[name] = latex([title for title, _, _ in shown], rows)
    return found


def _accuracy(tables: Tables) -> str:
    units = list(tables.units["unit"])
    cells = {(row["unit"], row["method"]): row for row in tables.accuracy.to_dict("records")}
    overall = tables.overall.set_index("method").to_dict("index")
    rows = []
    for method in tables.methods:
        row: list[Any] = [method, *(_cell(cells.get((unit, method))) for unit in units)]
        rows.append([*row, _cell(overall[method])] if len(units) > 1 else row)
    return latex(["method", *units, *(["average"] if len(units) > 1 else [])], rows)


def _cell(row: Mapping[Any, Any] | None) -> str:
    if row is None or not math.isfinite(row["mean"]):
        return "--"
    number = Latex(rf"\textbf{{{_points(row['mean'])}}}" if row["best"] else escaped(_points(row["mean"])))
    deviation = row.get("std", math.nan)
    spread = rf" {{\scriptsize $\pm$ {_points(deviation)}}}" if math.isfinite(deviation) else ""
    return Latex((r"$\approx$ " if row["alike"] else "") + number + spread)


def latex(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A tabular of booktabs; every cell but a `Latex` one is escaped."""
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule", _line(columns), r"\midrule"]
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _line(cells: Sequence[Any]) -> str:
    return " & ".join(cell if isinstance(cell, Latex) else escaped(str(cell)) for cell in cells) + r" \\"


def escaped(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def _points(share: float) -> str:
    return f"{100 * share:.2f}" if math.isfinite(share) else "--"


def _p(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "--"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "--"


def _value(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "--"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)
