"""What the pictures share: a canvas of their own, their look, and bytes that depend on the numbers alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.errors import PliantError
from pliant.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, INK, GREY = "#35608a", "#16191d", "#a9b1ba"
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


def title(figure: Figure, text: str) -> None:
    """A title of the whole figure; whatever stands in it is drawn as it is."""
    drawable = text.encode("utf-8", errors="replace").decode("utf-8")
    figure.suptitle(drawable, fontsize=12, color=INK, parse_math=False)


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e8ebee", linewidth=0.8)
    axes.set_axisbelow(True)
