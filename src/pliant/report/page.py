"""The run's page: what stands on it, and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from pliant.errors import PliantError
from pliant.report import contents
from pliant.report.contents import Contents
from pliant.report.statistics import mistakes, most_confused, reliability, wilson
from pliant.report.svg import Line, Mark, bar_chart, line_chart
from pliant.report.templates import render, write_page
from pliant.report.thumbnails import data_uri, is_tiny

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "report.html"
GRID_LIMIT = 30
"""Classes up to which the confusion matrix is drawn in full."""
PAIRS = 20
BARS = 30
"""Classes whose accuracy is shown at once; the others wait behind a fold."""
MISTAKES = 24


def hardest(run: Path, count: int = MISTAKES) -> list[str]:
    """Keys of the `count` most confident wrong test predictions, the most confident first.

    Raises:
        PliantError: the run has no table of predictions, or a damaged one.
    """
    table = contents.predictions(Path(run))
    if table is None:
        raise PliantError(f"{run}: holds no predictions.parquet; give the output folder of a finished run")
    return [str(key) for key in mistakes(table)["key"].head(count)]


def write(run: Path, thumbnails: Mapping[str, Image] | None = None) -> Path:
    """Write `report.html` into the run folder `run`, and return its path.

    The page stands alone: it holds its style, curves and images, and asks for nothing else. The same run and
    thumbnails give the same bytes.

    Args:
        thumbnails: images by key, for the keys that `hardest` names; those that are missing are said to be.

    Raises:
        PliantError: `run` is not the folder of a finished run, one of its files is damaged, or the page cannot be
            written.
    """
    run = Path(run)
    return write_page(run / NAME, _render(contents.read(run), thumbnails or {}))


def _render(run: Contents, thumbnails: Mapping[str, Image]) -> str:
    return render(
        "report.html",
        summary=run.summary,
        classes=run.classes,
        method=_method(run.summary["method"]),
        trained=run.trained,
        interval=wilson(run.summary["test"].get("top1"), run.summary["test"].get("images", 0)),
        splits=_splits(run.summary),
        curves=_curves(run),
        confusion=_confusion(run),
        pairs=_pairs(run),
        bars=_bars(run),
        shown_bars=BARS,
        calibration=_calibration(run),
        mistakes=_mistakes(run, thumbnails),
        settings={name: _plain(value) for name, value in run.settings.items()},
        environment={name: _plain(value) for name, value in run.summary["environment"].items()},
    )


def _method(method: dict[str, Any]) -> str:
    options = [f"{name} {_plain(value)}" for name, value in method.items() if name != "name" and value is not None]
    return ", ".join([str(method["name"]), *options])


def _plain(value: Any) -> str:
    """A setting as YAML would show it, on one line."""
    if isinstance(value, str):
        return value
    if value is None:
        return "not set"
    shown = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return shown.removesuffix("\n...\n").strip()


def _splits(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    names = (("training", "train"), ("validation", "val"), ("test", "test"))
    return [(title, summary[name]) for title, name in names if summary.get(name)]


def _curves(run: Contents) -> list[tuple[str, Any]]:
    """Titles and charts; a chart is None where nothing was logged for it."""
    steps, epochs = "step", "epoch"
    axis = "training step (one optimizer update)"
    best = run.summary["training"].get("best_epoch")
    marks = [Mark(f"best epoch {best + 1}", row["step"]) for row in run.epochs if row.get("epoch") == best][:1]
    x, top1 = run.column(epochs, "val_top1")
    loss = [
        Line("each step", *run.column(steps, "loss"), look="faint"),
        Line("training", *run.column(epochs, "train_loss"), look="first"),
        Line("validation", *run.column(epochs, "val_loss"), look="second"),
    ]
    rate = [Line("learning rate", *run.column(steps, "lr"), look="plain")]
    norm = [Line("gradient norm", *run.column(steps, "grad_norm"), look="plain")]
    accuracy = [Line("validation", x, 100 * top1, look="second")]
    return [
        ("Loss", line_chart(loss, axis, "cross-entropy (nats)", marks=marks)),
        ("Validation accuracy", line_chart(accuracy, axis, "top-1 accuracy (%)", zero=False, most=100, marks=marks)),
        ("Learning rate", line_chart(rate, axis, "learning rate")),
        ("Gradient norm", line_chart(norm, axis, "L2 norm before clipping")),
    ]


def _confusion(run: Contents) -> list[list[tuple[int, float]]] | None:
    """Rows of (images, share of the true class); None where the classes are too many for a grid."""
    if len(run.classes) > GRID_LIMIT:
        return None
    counts = run.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return [list(zip(*row, strict=True)) for row in zip(counts.tolist(), shares.tolist(), strict=True)]


def _pairs(run: Contents) -> list[tuple[str, str, int, int]]:
    names = run.classes
    return [(names[t], names[p], images, total) for t, p, images, total in most_confused(run.confusion, PAIRS)]


def _bars(run: Contents) -> list[dict[str, Any]]:
    """One entry a class that has test images, the least accurate first; then those that have none."""
    counts = run.confusion.sum(axis=1).tolist()
    entries = [
        {"name": name, "accuracy": share, "images": n, "interval": wilson(share, n)}
        for name, share, n in zip(run.classes, run.summary["test"]["per_class"], counts, strict=True)
    ]
    return sorted(entries, key=lambda entry: (entry["interval"] is None, entry["accuracy"] or 0.0, entry["name"]))


def _calibration(run: Contents) -> dict[str, Any] | None:
    if run.predictions is None or run.predictions.empty:
        return None
    bins = reliability(run.predictions)
    filled = [
        (low, high, int(n), sure, right)
        for low, high, n, sure, right in zip(
            bins.edges, bins.edges[1:], bins.images, bins.confidence, bins.accuracy, strict=False
        )
        if n
    ]
    return {
        "rows": filled,
        "diagram": bar_chart(
            100 * bins.edges, 100 * bins.accuracy, "confidence of the prediction (%)", "correct (%)",
            diagonal="perfectly calibrated", top=100,
        ),
        "histogram": bar_chart(
            100 * bins.edges, 100 * bins.images / max(1, bins.images.sum()), "confidence of the prediction (%)",
            "share of the test images (%)",
        ),
    }  # fmt: skip


def _mistakes(run: Contents, thumbnails: Mapping[str, Image]) -> list[dict[str, Any]] | None:
    """The hardest mistakes with their thumbnails; None where the run has no predictions."""
    if run.predictions is None:
        return None
    shown = mistakes(run.predictions).head(MISTAKES).to_dict("records")
    return [
        {
            "key": row["key"],
            "confidence": row["confidence"],
            "label_confidence": row["label_confidence"],
            "true": run.classes[row["label"]],
            "predicted": run.classes[row["prediction"]],
            "image": data_uri(thumbnails[row["key"]]) if row["key"] in thumbnails else None,
            "tiny": row["key"] in thumbnails and is_tiny(thumbnails[row["key"]]),
        }
        for row in shown
    ]
