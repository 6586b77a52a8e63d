"""How curves and points look, on the page and in pictures: each differs by colour, by dash and by marker."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.report.figures import BLUE, INK

RUST, SKY, SAND = "#b5541c", "#7c9dbd", "#d99a5b"


@dataclass(frozen=True)
class Look:
    """`dash` in points, on and off by turns, empty for a solid line; `marker` as matplotlib names it: o s ^ D X."""

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = "o"
    hollow: bool = False
    size: float = 1.0


COMPONENTS = {
    "LN1": Look(BLUE, (), "o"),
    "MHA": Look(INK, (), "s"),
    "LN2": Look(SKY, (6, 3), "^"),
    "FC1": Look(RUST, (2, 2.5), "D"),
    "FC2": Look(SAND, (8, 2, 2, 2), "X"),
}
PLAIN = Look(BLUE)
FIRST, SECOND = Look(INK, marker="s", hollow=True, size=1.3), Look(BLUE, size=0.8)
"""Of two that are compared; where they agree, the second is seen within the first."""
FIGURES = {
    "mean": Look(BLUE, marker="o"),
    "largest": Look(INK, marker="s", hollow=True),
    "local": Look(RUST, marker="^"),
    "bound": Look(INK, marker="D"),
}
"""The columns that stand side by side: two that were measured, and two that limit them."""
FIGURE_NAMES = {"mean": "mean rate", "largest": "largest rate", "local": "local figure", "bound": "upper bound"}


def look_of(component: str) -> Look:
    return COMPONENTS.get(component, PLAIN)
