"""Charts of rates as inline SVG: points with intervals by name, and curves over depth with bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from pliant.report.looks import Look
from pliant.report.scales import log_ticks, spans_decades
from pliant.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, frame, straight, svg, text, tick, ticks
from pliant.report.words import rate

_ROW, _DODGE = 30, 10
"""Height of a row of one point, and what each further point adds, in the picture's units."""
_LETTER = 8.0
"""Width of a letter of the page's text in the picture, on the safe side."""
_MOST_MARKERS = 16


@dataclass(frozen=True)
class Point:
    """A value with its interval, where it has one."""

    value: float
    look: Look
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Row:
    """The points of one name; what is not finite is left out."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Curve:
    """Values (N,) over blocks 0 to N - 1, with the band of their intervals."""

    name: str
    look: Look
    values: np.ndarray
    low: np.ndarray = field(default_factory=lambda: np.zeros(0))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0))


def dot_chart(
    rows: Sequence[Row], x_label: str, *, legend: Sequence[tuple[str, Look]] = (), log: bool = False,
    joined: bool = False, sides: tuple[str, str] | None = ("contracts", "amplifies"),
) -> Markup | None:  # fmt: skip
    """Points by name, from top to bottom, or None where there is no finite one.

    Args:
        log: a logarithmic axis even where the values would do without.
        joined: draw the points of a row on one line, with a line between the first and the last (a dumbbell).
        sides: what lies left and right of 1, where a line is drawn; None draws none.
    """
    points = [point for row in rows for point in row.points if math.isfinite(point.value)]
    if not points:
        return None
    shown = [point.value for point in points] + ([1.0] if sides else [])
    log = max(shown) > 0 and (log or spans_decades(shown))
    values = np.array([*shown, *(end for point in points for end in (point.low, point.high))])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    x_ticks = log_ticks(values.min(), values.max()) if log else ticks(values.min(), values.max())
    left = 24 + _LETTER * max(len(row.name) for row in rows)
    across = Scale(x_ticks[0], x_ticks[-1], left, WIDTH - RIGHT - 18, log)
    row_height = _ROW + (0 if joined else _DODGE * (max(len(row.points) for row in rows) - 1))
    bottom = TOP + row_height * len(rows)
    parts = [_rows_frame(across, bottom, x_ticks, x_label)]
    if sides:
        parts.append(_divide(across, bottom, sides))
    for number, row in enumerate(rows):
        y = TOP + row_height * (number + 0.5)
        if number and row_height > _ROW:
            parts.append(straight("grid", left, y - row_height / 2, across.end, y - row_height / 2))
        parts.append(text("key", left - 10, y + 4, row.name, "end"))
        parts.append(_row(row, y, across, joined))
    parts.append(_keys(legend, bottom + BOTTOM + 10))
    height = bottom + BOTTOM + (22 if legend else 0)
    return svg(parts, f"{x_label}: {'; '.join(_said(row, legend) for row in rows)}", height)


def depth_chart(curves: Sequence[Curve], y_label: str) -> Markup | None:
    """Curves over the blocks, each with a dash and a marker of its own, and a line at 1."""
    curves = [curve for curve in curves if np.isfinite(curve.values).any()]
    if not curves:
        return None
    values = np.concatenate([curve.values for curve in curves])
    values = np.append(values[np.isfinite(values)], 1.0)
    log = spans_decades(values)
    y_ticks = log_ticks(values.min(), values.max()) if log else ticks(min(0.0, values.min()), values.max())
    last = max(len(curve.values) for curve in curves) - 1
    x_ticks = [float(value) for value in ticks(0.0, float(last or 1), whole=True) if value <= last]
    across = Scale(0.0, float(last or 1), LEFT + 10, WIDTH - RIGHT - 6)
    up = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, log)
    parts = [frame(across, up, x_ticks, y_ticks, "block (0 is the first)", y_label)]
    parts.append(straight("mark", LEFT, up(1), WIDTH - RIGHT, up(1)))
    parts += [_band(curve, across, up) for curve in curves] + [_curve(curve, across, up) for curve in curves]
    parts.append(_keys([(curve.name, curve.look) for curve in curves], 13, lines=True))
    said = "; ".join(
        f"{curve.name} from {rate(float(curve.values[0]))} to {rate(float(curve.values[-1]))}" for curve in curves
    )
    return svg(parts, f"{y_label} by block: {said}")


def _rows_frame(across: Scale, bottom: float, x_ticks: Sequence[float], x_label: str) -> str:
    parts = [straight("grid", across(value), TOP, across(value), bottom) for value in x_ticks]
    parts += [text("tick", across(value), bottom + 18, tick(value), "middle") for value in x_ticks]
    parts.append(straight("axis", across.start, bottom, across.end, bottom))
    # Under the names too: the label may be longer than the axis.
    middle = max(_LETTER * len(x_label) / 2, min((across.start + across.end) / 2, WIDTH - _LETTER * len(x_label) / 2))
    return "".join(parts) + text("label", middle, bottom + BOTTOM - 8, x_label, "middle")


def _divide(across: Scale, bottom: float, sides: tuple[str, str]) -> str:
    x, (below, above) = across(1), sides
    parts = [straight("mark", x, TOP - 14, x, bottom)]
    if x - across.start > _LETTER * len(below) - 20:
        parts.append(text("tick", x - 6, TOP - 6, below, "end"))
    if across.end - x > _LETTER * len(above) - 10:
        parts.append(text("tick", x + 6, TOP - 6, above))
    return "".join(parts)


def _row(row: Row, y: float, across: Scale, joined: bool) -> str:
    shown = [point for point in row.points if math.isfinite(point.value) and (point.value > 0 or not across.log)]
    parts = []
    if joined and len(shown) > 1:
        parts.append(straight("link", across(shown[0].value), y, across(shown[-1].value), y))
    step = 0 if joined else _DODGE
    for number, point in enumerate(shown):
        at = y + step * (number - (len(shown) - 1) / 2)
        parts.append(_interval(point, at, across) + marker(point.look, across(point.value), at))
    return "".join(parts)


def _interval(point: Point, y: float, across: Scale) -> str:
    if not (math.isfinite(point.low) and math.isfinite(point.high)):
        return ""
    # On a logarithmic axis an interval that reaches 0 leaves the picture on the left.
    low, high = across(max(point.low, across.low)), across(max(point.high, across.low))
    ends = "".join(straight("whisker", x, y - 5, x, y + 5) for x in (low, high))
    return straight("whisker", low, y, high, y) + ends


def _band(curve: Curve, across: Scale, up: Scale) -> str:
    limits = [
        (across(x), up(max(low, up.low)), up(min(max(high, up.low), up.high)))
        for x, (low, high) in enumerate(zip(curve.low, curve.high, strict=True))
        if math.isfinite(low) and math.isfinite(high)
    ]
    edge = [(x, high) for x, _, high in limits] + [(x, low) for x, low, _ in reversed(limits)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
    return f'<polygon style="fill:{curve.look.colour};fill-opacity:.18" points="{points}"/>' if limits else ""


def _curve(curve: Curve, across: Scale, up: Scale) -> str:
    path, points, pen = [], [], "M"
    for x, y in enumerate(curve.values):
        if not math.isfinite(y) or (up.log and y <= 0):
            pen = "M"
            continue
        points.append((across(x), up(y)))
        path.append(f"{pen}{points[-1][0]:.1f} {points[-1][1]:.1f}")
        pen = "L"
    every = math.ceil(len(points) / _MOST_MARKERS) or 1
    dots = "".join(marker(curve.look, *point) for point in points[::every])
    return f'<path style="{_stroke(curve.look)}" d="{"".join(path)}"/>{dots}'


def _stroke(look: Look) -> str:
    dash = f";stroke-dasharray:{' '.join(f'{length:g}' for length in look.dash)}" if look.dash else ""
    return f"stroke:{look.colour}{dash}"


_SHAPES = {
    "s": ((-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)),
    "^": ((0, -4.6), (4.4, 3.4), (-4.4, 3.4)),
    "D": ((0, -4.7), (4.7, 0), (0, 4.7), (-4.7, 0)),
    "X": ((-4.4, -2), (-2, -4.4), (0, -2.2), (2, -4.4), (4.4, -2), (2.2, 0), (4.4, 2), (2, 4.4), (0, 2.2), (-2, 4.4),
          (-4.4, 2), (-2.2, 0)),
}  # fmt: skip


def marker(look: Look, x: float, y: float) -> str:
    style = f'style="fill:{"#fff" if look.hollow else look.colour};stroke:{look.colour}"'
    if look.marker not in _SHAPES:
        return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="{3.6 * look.size:.1f}"/>'
    points = " ".join(f"{x + look.size * dx:.1f},{y + look.size * dy:.1f}" for dx, dy in _SHAPES[look.marker])
    return f'<polygon {style} points="{points}"/>'


def _keys(legend: Sequence[tuple[str, Look]], y: float, lines: bool = False) -> str:
    """Names beside their markers, spread over the width."""
    parts, x = [], 10.0
    room = (28 if lines else 12) + 6
    spare = WIDTH - 20 - sum(room + _LETTER * len(name) for name, _ in legend)
    for name, look in legend:
        if lines:
            parts.append(f'<path style="{_stroke(look)}" d="M{x:.1f} {y:.1f}h28"/>')
        parts.append(marker(look, x + (14 if lines else 6), y) + text("key", x + room, y + 4, name))
        x += room + _LETTER * len(name) + min(16.0, max(2.0, spare / max(1, len(legend) - 1)))
    return "".join(parts)


def _said(row: Row, legend: Sequence[tuple[str, Look]]) -> str:
    names = [name for name, _ in legend] if len(legend) == len(row.points) else [""] * len(row.points)
    return f"{row.name} " + ", ".join(
        f"{name} {rate(p.value)}".strip() for name, p in zip(names, row.points, strict=True)
    )
