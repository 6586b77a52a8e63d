"""One compact figure of a run, for a README or a slide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pliant.report import contents, words
from pliant.report.contents import Contents
from pliant.report.figures import BLUE, GREY, INK, new_figure, save_figure, tidy, title
from pliant.report.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "result.png"
_GRID_LIMIT = 12
_BARS = 24


def picture(run: Path) -> Path:
    """Write `result.png` into the run folder `run`: curves on the left, classes on the right, the result above.

    Up to 12 classes the right half is the confusion matrix, above that the accuracy by class (the 24 lowest where
    there are more). The same run gives the same bytes.

    Raises:
        PliantError: `run` is not the folder of a finished run, or one of its files is damaged.
    """
    run = Path(run)
    return save_figure(_figure(contents.read(run)), run / NAME)


def _figure(run: Contents) -> Figure:
    figure = new_figure(10.5, 4.8)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.2, 1))
    loss = figure.add_subplot(grid[0, 0])
    accuracy = figure.add_subplot(grid[1, 0], sharex=loss)
    right = figure.add_subplot(grid[:, 1])
    _loss(loss, run)
    _accuracy(accuracy, run)
    (_confusion if len(run.classes) <= _GRID_LIMIT else _bars)(right, run)
    title(figure, _headline(run))
    return figure


def _headline(run: Contents) -> str:
    summary, test = run.summary, run.summary["test"]
    interval = wilson(test.get("top1"), test.get("images", 0))
    spread = f" (95 % interval {100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
    return (
        f"{summary['model']['name']} on {Path(summary['data']['spec']).name}, {summary['method']['name']}: "
        f"{words.percent(test['top1'])} test top-1{spread}\n"
        f"{words.whole(summary['data']['train'])} training and {words.whole(test['images'])} test images, "
        f"{words.whole(run.trained)} trained parameters, {words.duration(summary['training'].get('seconds'))}"
    )


def _loss(axes: Axes, run: Contents) -> None:
    tidy(axes)
    axes.plot(*run.column("step", "loss"), color=GREY, linewidth=0.9, label="each step")
    axes.plot(*run.column("epoch", "train_loss"), color=BLUE, marker="o", markersize=4, label="training")
    axes.plot(*run.column("epoch", "val_loss"), color=INK, linestyle="--", marker="s", markersize=4,
              markerfacecolor="white", label="validation")  # fmt: skip
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_ylim(bottom=0)
    axes.tick_params(labelbottom=False)
    axes.legend(frameon=False, fontsize=8.5)


def _accuracy(axes: Axes, run: Contents) -> None:
    tidy(axes)
    steps, top1 = run.column("epoch", "val_top1")
    axes.plot(steps, 100 * top1, color=INK, linestyle="--", marker="s", markersize=4, markerfacecolor="white")
    axes.set_ylabel("validation top-1 (%)")
    axes.set_xlabel("training step")


def _confusion(axes: Axes, run: Contents) -> None:
    counts = run.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=8,
                  color="white" if share > 0.55 else INK)  # fmt: skip
    names = [_short(name) for name in run.classes]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8.5, parse_math=False)
    axes.set_yticks(range(len(names)), names, fontsize=8.5, parse_math=False)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title("test images; shade: share of the row", fontsize=9.5)


def _bars(axes: Axes, run: Contents) -> None:
    tidy(axes)
    accuracy = [(value, name) for value, name in zip(run.summary["test"]["per_class"], run.classes, strict=True)
                if value is not None]  # fmt: skip
    shown = sorted(accuracy)[:_BARS]
    axes.barh(range(len(shown)), [100 * value for value, _ in shown], color=BLUE, height=0.7)
    axes.set_yticks(range(len(shown)), [_short(name) for _, name in shown], fontsize=7.5, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("test accuracy (%)")
    which = f"the {len(shown)} lowest of {len(accuracy)} classes" if len(accuracy) > len(shown) else "by class"
    axes.set_title(f"accuracy, {which}", fontsize=9.5)


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"
