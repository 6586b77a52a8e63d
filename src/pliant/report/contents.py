"""What a run folder holds, read and checked once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from pliant.errors import PliantError
from pliant.files import read_json

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = ("command", "data", "environment", "learned_bytes", "method", "model", "plan", "test", "training")


@dataclass(frozen=True)
class Contents:
    """One finished run.

    Attributes:
        summary: `summary.json`.
        steps, epochs: the rows of `metrics.jsonl`, in order; empty where there are none.
        settings: `run.yaml`; empty where it is missing.
        predictions: `predictions.parquet`, one row a test image; None where it is missing.
    """

    summary: dict[str, Any]
    steps: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    settings: dict[str, Any]
    predictions: pd.DataFrame | None

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.summary["data"]["classes"]]

    @property
    def trained(self) -> int:
        """Number of trained parameters."""
        return sum(row["parameters"] for row in self.summary["plan"] if row["trained"])

    @property
    def confusion(self) -> np.ndarray:
        """Test images by true class (rows) and predicted class (columns), (C, C)."""
        return np.asarray(self.summary["test"]["confusion"], dtype=np.int64).reshape(len(self.classes), -1)

    def column(self, kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of one logged quantity; a value that was not logged or not a number is NaN."""
        rows = self.steps if kind == "step" else self.epochs
        return _numbers(rows, "step"), _numbers(rows, name)


def read(run: Path) -> Contents:
    """Read the run folder `run`.

    Raises:
        PliantError: it is not the folder of a finished run, or one of its files is damaged.
    """
    run = Path(run)
    if not (run / "summary.json").is_file():
        hint = "; continue it with --resume first" if (run / "run.yaml").is_file() else "; give a run's output folder"
        raise PliantError(f"{run}: holds no finished run, there is no summary.json{hint}")
    summary = read_json(run / "summary.json")
    missing = [name for name in _NEEDED if name not in summary] if isinstance(summary, dict) else list(_NEEDED)
    if missing:
        raise PliantError(f"{run / 'summary.json'}: not the summary of a run, it has no {', '.join(missing)}")
    rows = _log(run / "metrics.jsonl")
    return Contents(
        summary=summary,
        steps=[row for row in rows if row.get("kind") == "step"],
        epochs=[row for row in rows if row.get("kind") == "epoch"],
        settings=_settings(run / "run.yaml"),
        predictions=predictions(run),
    )


def predictions(run: Path) -> pd.DataFrame | None:
    """The table of test predictions, or None where the run has none. Raises PliantError where it is damaged."""
    import pandas as pd

    path = Path(run) / "predictions.parquet"
    if not path.is_file():
        return None
    try:
        return pd.read_parquet(path, columns=["key", "label", "prediction", "confidence", "label_confidence"])
    except (ValueError, KeyError, OSError) as error:  # pyarrow's errors derive from these
        raise PliantError(f"{path}: not readable as the table of predictions ({_first_line(error)})") from error


def _log(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise PliantError(f"{path}: line {number} is not JSON ({error})") from error
    return rows


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PliantError(f"{path}: not readable as YAML ({_first_line(error)})") from error
    return settings if isinstance(settings, dict) else {}


def _numbers(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    # float(None) fails, and a row may lack the quantity.
    values = np.array([np.nan if row.get(name) is None else float(row[name]) for row in rows], dtype=float)
    values[~np.isfinite(values)] = np.nan
    return values


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
