"""What the pictures share: a canvas of their own, their look, and bytes that depend on the numbers alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pliant.errors import PliantError
from pliant.files import write_atomic
from pliant.report.scales import log_ticks, spans_decades
from pliant.report.svg import tick as axis_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, INK, GREY = "#35608a", "#16191d", "#a9b1ba"
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": (0, (1.5, 2.5)), "zorder": 1}
"""The look of a line at 1."""
_UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""What each format would say about the time and the program of its making."""


def new_figure(width: float, height: float) -> Figure:
    # The objects themselves: pyplot would keep every figure and change the caller's backend.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format of its name. Raises PliantError for names other than .png, .svg and .pdf."""
    from matplotlib import rc_context

    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _UNDATED:
        raise PliantError(f"{path}: not a kind of picture that can be written; end the name in .png, .svg or .pdf")
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "pliant"}):
        # A name in a script that the font lacks is drawn as boxes; no reason to trouble the user.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        write_atomic(path, lambda file: figure.savefig(file, format=kind, dpi=160, metadata=_UNDATED[kind]))
    return path


def drawable(text: str) -> str:
    """A text as the fonts take it: a file name that is not valid UTF-8 reaches us with surrogates, which they do not."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def title(figure: Figure, text: str) -> None:
    """A title of the whole figure; whatever stands in it is drawn as it is."""
    figure.suptitle(drawable(text), fontsize=12, color=INK, parse_math=False)


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e8ebee", linewidth=0.8)
    axes.set_axisbelow(True)


def divide(axes: Axes) -> None:
    """A line at 1, where neither side is larger."""
    axes.axvline(1, **REFERENCE)


def names_down(axes: Axes, names: Iterable[str]) -> None:
    """One row a name, from top to bottom."""
    shown = list(names)
    axes.set_yticks(range(len(shown)), shown, parse_math=False)
    axes.set_ylim(len(shown) - 0.5, -0.6)


def scale(axes: Axes, which: Literal["x", "y"], values: Iterable[float], margin: float, log: bool = False) -> None:
    """Limits around `values` and, where they span decades, a logarithmic axis with plain numbers on it."""
    axes.margins(x=margin if which == "x" else None, y=margin if which == "y" else None)
    found = np.array([value for value in values if math.isfinite(value)])
    if not len(found) or found.max() <= 0 or not (log or spans_decades(found)):
        return
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = float(found[found > 0].min()), float(found.max())
    room = (high / low) ** margin * 1.1
    axes.set(**{f"{which}lim": (low / room, high * room)})
    shown = [tick for tick in log_ticks(low / room, high * room) if low / room <= tick <= high * room]
    axis.set_ticks(shown, [axis_number(tick) for tick in shown])
    axes.minorticks_off()
