"""What was measured, as tables for people and programs; saving and reading it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pliant.errors import PliantError
from pliant.files import read_json, write_atomic, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, SUMMARY = "plasticity.parquet", "summary.json"
COMPONENT, SUBLAYER = "component", "sub-layer"
COLUMNS = (
    "component", "mean", "low", "high", "std", "images", "pairs", "protocol",
    "elasticity", "elasticity_low", "elasticity_high", "largest", "local", "bound",
)  # fmt: skip


@dataclass(frozen=True)
class Plasticity:
    """A measurement of plasticity: P(f) = E ||f(x) - f(y)|| / ||x - y|| (arXiv 2602.06883, section 2).

    Attributes:
        rows: one row a protocol, component and block; block is <NA> for the mean over blocks. Beside COLUMNS: `kind`,
            component or sub-layer.
        differences: of the means of two components, with 95 % intervals: protocol, first, second, difference, low,
            high.
        summary: what was measured and how; becomes `summary.json`.
        rates: under `estimator="paired"`, the single rates (blocks, components, pairs), of the first protocol.
    """

    rows: pd.DataFrame
    differences: pd.DataFrame
    summary: dict[str, Any]
    rates: np.ndarray | None = field(default=None, repr=False)

    @property
    def protocols(self) -> list[str]:
        return list(self.summary["protocols"])

    def table(self, protocol: str | None = None) -> pd.DataFrame:
        """One row a component, means over blocks, in the order of the forward pass.

        Columns: component; mean rate and its 95 % interval low, high; std, the deviation over pairs; images of either
        side; pairs; protocol; then three figures of ours: elasticity with its interval (relative change over relative
        change), and, beside the mean, the largest rate, the local figure (spectral norm of the Jacobian) and the bound.
        """
        return self._pick(COMPONENT, protocol, blocks=False)

    def blocks(self, protocol: str | None = None) -> pd.DataFrame:
        """As `table`, one row a block and component."""
        return self._pick(COMPONENT, protocol, blocks=True)

    def sublayers(self, protocol: str | None = None, blocks: bool = False) -> pd.DataFrame:
        """The same of attention with its norm, and of the MLP with its norm and activation; in situ only."""
        return self._pick(SUBLAYER, protocol, blocks)

    def ranking(self, protocol: str | None = None, by: str = "mean") -> list[str]:
        """Components by falling mean rate (or `elasticity`, `local`, `bound`) under one protocol."""
        table = self.table(protocol or self.protocols[0])
        return table.sort_values(by, ascending=False, kind="stable")["component"].tolist()

    def plot(self, path: str | Path | None = None) -> Figure:
        """Ranking with intervals, curve over depth, bounds on a log scale; written to `path` if given."""
        from pliant.report import plasticity_figure

        return plasticity_figure(self, path)

    def save(self, folder: str | Path) -> Path:
        """Write `plasticity.parquet` and `summary.json`. Raises PliantError where the folder cannot be written."""
        folder = Path(folder)
        table = self.rows.reset_index(drop=True)
        write_atomic(folder / TABLE, lambda path: table.to_parquet(path, index=False))
        differences = self.differences.to_dict("records")
        write_json(folder / SUMMARY, {**self.summary, "differences": differences})
        return folder

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values: table, blocks, sub-layers, differences and what the summary holds."""
        frames = {
            "table": self.table(),
            "blocks": self.blocks(),
            "sublayers": self.sublayers(),
            "differences": self.differences,
        }
        return {**self.summary, **{name: records(frame) for name, frame in frames.items()}}

    def _pick(self, kind: str, protocol: str | None, blocks: bool) -> pd.DataFrame:
        rows = self.rows
        chosen = rows[(rows["kind"] == kind) & (rows["block"].notna() == blocks)]
        if protocol is not None:
            if protocol not in self.protocols:
                raise PliantError(f"protocol {protocol!r} was not measured, only {', '.join(self.protocols)}")
            chosen = chosen[chosen["protocol"] == protocol]
        columns = ["block", *COLUMNS] if blocks else list(COLUMNS)
        return chosen[columns].reset_index(drop=True)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries; what is not a number becomes None, as JSON has no name for it."""
    return [
        {str(name): None if pd.isna(value) or value in (np.inf, -np.inf) else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


def load(folder: str | Path) -> Plasticity:
    """Read what `Plasticity.save` wrote. Raises PliantError where it is missing or damaged."""
    folder = Path(folder)
    if not (folder / TABLE).is_file():
        raise PliantError(f"{folder}: holds no {TABLE}; give a folder that `pliant plasticity --out` wrote")
    summary = read_json(folder / SUMMARY)
    try:
        rows = pd.read_parquet(folder / TABLE)
        differences = pd.DataFrame(summary.pop("differences"))
        rows["block"] = rows["block"].astype("Int64")
        missing = {*COLUMNS, "kind"} - set(rows.columns)
    except (ValueError, OSError, KeyError, AttributeError) as error:
        raise PliantError(f"{folder}: not readable as a measurement ({str(error).splitlines()[0]})") from error
    if missing or "protocols" not in summary:
        raise PliantError(
            f"{folder / TABLE}: not the table of a measurement, it lacks {', '.join(sorted(missing)) or 'protocols'}"
        )
    return Plasticity(rows, differences, summary)


def compare(first: Plasticity, second: Plasticity) -> pd.DataFrame:
    """Two measurements side by side, one row a protocol and component that both have.

    Columns: protocol, kind, component, first and second mean with their intervals, ratio second / first with a 95 %
    interval. The interval takes the two as independent; where both saw the same images it is wider than it need be.

    Raises:
        PliantError: the two share no protocol.
    """
    keys = ["protocol", "kind", "component"]
    frames = [each.rows[each.rows["block"].isna()][[*keys, "mean", "low", "high"]] for each in (first, second)]
    both = frames[0].merge(frames[1], on=keys, suffixes=("_first", "_second"), sort=False)
    if both.empty:
        raise PliantError(
            f"the two measurements share no protocol ({', '.join(first.protocols)}; {', '.join(second.protocols)}); "
            "measure both with --protocol both"
        )
    ratio = both["mean_second"] / both["mean_first"]
    relative = (
        sum(((both[f"high_{n}"] - both[f"mean_{n}"]) / both[f"mean_{n}"]) ** 2 for n in ("first", "second")) ** 0.5
    )
    return both.assign(ratio=ratio, ratio_low=ratio * np.exp(-relative), ratio_high=ratio * np.exp(relative))
