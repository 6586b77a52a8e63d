"""The loss over the plane of a training path, for one component or two, on one colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pliant.report.figures import INK, new_figure, save_figure, title
from pliant.report.looks import RUST
from pliant.report.words import compact, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure

    from pliant.adapt.landscape import Landscape

_LEVELS = 12
_DECADES = 10.0
"""Ratio of the largest to the smallest loss from which levels are spaced by ratios, not by differences."""


def landscape_figure(found: Sequence[Landscape], subject: str, paths: Sequence[str | Path] = ()) -> Figure:
    """One panel a landscape: filled and labelled contours of the loss on one scale, and the path from start to end.

    Contours are labelled lines, so that they can be read without colour. The same landscapes give the same bytes.

    Args:
        subject: what was trained on what, for the title.
        paths: where to write it, as .png, .svg or .pdf.

    Raises:
        PliantError: a path has another ending, or cannot be written.
    """
    levels = levels_of(np.concatenate([each.loss.ravel() for each in found]))
    figure = new_figure(5.6 * len(found) + 1, 5.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, each in zip(panels, found, strict=True):
        drawn = _surface(axes, each, levels)
        _path(axes, each)
    bar = figure.colorbar(drawn, ax=list(panels), shrink=0.9, pad=0.02)
    bar.set_ticks(levels.tolist(), labels=[compact(level, 2) for level in levels])
    bar.set_label(f"training loss, mean over {found[0].images} images")
    title(figure, f"Loss along the path of training, {subject}")
    for path in paths:
        save_figure(figure, path)
    return figure


def levels_of(losses: np.ndarray) -> np.ndarray:
    """Levels from the smallest to the largest finite loss: by equal ratios where they span a decade, else equal steps."""
    finite = losses[np.isfinite(losses)]
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high > _DECADES * low:
        return np.geomspace(low, high, _LEVELS)
    return np.linspace(low, high if high > low else low + 1, _LEVELS)


def _surface(axes: Axes, found: Landscape, levels: np.ndarray) -> QuadContourSet:
    from matplotlib.colors import BoundaryNorm
    from matplotlib.patheffects import withStroke

    # A little inside the ends, so that rounding leaves neither the lowest nor the highest point white.
    loss = np.clip(np.nan_to_num(found.loss, nan=levels[-1], posinf=levels[-1]), levels[0], levels[-1])
    norm = BoundaryNorm(levels, 256, extend="neither")
    drawn = axes.contourf(found.x, found.y, loss, levels=levels, cmap="YlGnBu", norm=norm)
    lines = axes.contour(found.x, found.y, loss, levels=levels[1:-1], colors=INK, linewidths=0.6, alpha=0.7)
    for label in axes.clabel(lines, fmt=lambda level: compact(level, 2), fontsize=7.5, colors=INK):
        label.set(alpha=1, path_effects=[withStroke(linewidth=2.5, foreground="white")])
    first, second = found.shares
    axes.set_xlabel(f"first direction, {percent(first)} of the path's variance")
    axes.set_ylabel(f"second direction, {percent(second)}")
    name = found.component.upper()
    axes.set_title(f"{name}: loss {compact(found.start, 3)} to {compact(found.end, 3)}, "
                   f"test accuracy {percent(found.test_top1)}", fontsize=10, loc="left")  # fmt: skip
    return drawn


def _path(axes: Axes, found: Landscape) -> None:
    from matplotlib.patheffects import withStroke

    x, y = found.path["x"].to_numpy(), found.path["y"].to_numpy()
    halo = [withStroke(linewidth=4, foreground="white")]
    axes.plot(x, y, color=RUST, linewidth=1.8, marker=".", markersize=5, path_effects=halo)
    for place, name, marker in ((0, "start", "o"), (-1, "end", "X")):
        axes.plot(
            x[place], y[place], marker=marker, markersize=10, color=RUST, markeredgecolor="white", linestyle="none"
        )
        axes.annotate(name, (x[place], y[place]), (8, 8), textcoords="offset points", fontsize=9.5, color=INK,
                      path_effects=[withStroke(linewidth=3, foreground="white")])  # fmt: skip
