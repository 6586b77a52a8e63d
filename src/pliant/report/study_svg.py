"""Charts of studies as inline SVG: boxes by name, points over a logarithmic cost, and curves with bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from pliant.report.figures import BLUE, INK
from pliant.report.looks import COMPONENTS, RUST, SAND, SKY, Look
from pliant.report.scales import log_ticks, spans_decades
from pliant.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, frame, straight, svg, text, tick, ticks
from pliant.report.svg_rates import marker
from pliant.report.terms import shortened
from pliant.report.words import compact

_ROW = 28
_LETTER = 8.0
"""Width of a letter of the page's text in the picture, on the safe side."""
_LONGEST = 20
"""Letters of a name in a chart."""
_FEWEST = 5
"""Values of which quartiles say something; fewer are drawn one by one."""
_MOST_MARKERS = 12
_OTHERS = (
    Look(INK, (1, 3), "o", hollow=True), Look(RUST, (10, 3), "s", hollow=True), Look(BLUE, (4, 2), "^", hollow=True),
    Look(INK, (8, 2, 2, 2), "D", hollow=True), Look(RUST, (), "X", hollow=True), Look(SKY, (3, 3), "s"),
    Look(INK, (12, 3), "^"), Look(SAND, (5, 3), "o"), Look(BLUE, (2, 2), "X"), Look(BLUE, (7, 3), "s", hollow=True),
)  # fmt: skip


@dataclass(frozen=True)
class Box:
    """Values (n,) of one name; what is not finite is left out."""

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Spot:
    """A point of a scatter chart with its interval; those of the `front` are ringed and joined."""

    name: str
    look: Look
    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    front: bool = False


@dataclass(frozen=True)
class Trace:
    """A curve (n,) over `x` (n,), with the band from `low` to `high` where these are given."""

    name: str
    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray = field(default_factory=lambda: np.zeros(0))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0))


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name: components keep theirs, others get one that differs in marker and dash too."""
    others = [name for name in names if name.upper() not in COMPONENTS]
    found = {name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}
    return {name: COMPONENTS.get(name.upper()) or found[name] for name in names}


def box_chart(boxes: Sequence[Box], x_label: str, most: float = math.inf) -> Markup | None:
    """Quartiles as a box with the median in it, whiskers to the extremes; few values as points. None without values."""
    boxes = [Box(shortened(box.name, _LONGEST), box.values[np.isfinite(box.values)]) for box in boxes]
    boxes = [box for box in boxes if len(box.values)]
    if not boxes:
        return None
    values = np.concatenate([box.values for box in boxes])
    x_ticks = [value for value in ticks(values.min(), values.max()) if value <= most + 1e-9]
    left = 24 + _LETTER * max(len(box.name) for box in boxes)
    across = Scale(x_ticks[0], x_ticks[-1], left, WIDTH - RIGHT - 18)
    bottom = TOP - 16 + _ROW * len(boxes)
    parts = [straight("grid", across(value), TOP - 16, across(value), bottom) for value in x_ticks]
    parts += [text("tick", across(value), bottom + 18, tick(value), "middle") for value in x_ticks]
    parts.append(straight("axis", left, bottom, across.end, bottom))
    middle = min((left + across.end) / 2, WIDTH - _LETTER * len(x_label) / 2 + 10)
    parts.append(text("label", max(middle, _LETTER * len(x_label) / 2 - 10), bottom + BOTTOM - 8, x_label, "middle"))
    for number, box in enumerate(boxes):
        y = TOP - 16 + _ROW * (number + 0.5)
        parts.append(text("key", left - 10, y + 4, box.name, "end") + _box(box.values, y, across))
    said = "; ".join(
        f"{box.name} from {compact(float(box.values.min()))} to {compact(float(box.values.max()))}, "
        f"median {compact(float(np.median(box.values)))}"
        for box in boxes
    )
    return svg(parts, f"{x_label}: {said}", bottom + BOTTOM)


def _box(values: np.ndarray, y: float, across: Scale) -> str:
    low, first, median, third, high = (across(value) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))
    parts = [straight("whisker", low, y, high, y)]
    if len(values) < _FEWEST:
        parts += [f'<circle class="dot" cx="{across(value):.1f}" cy="{y:.1f}" r="3.4"/>' for value in sorted(values)]
        return "".join(parts)
    parts += [straight("whisker", x, y - 5, x, y + 5) for x in (low, high)]
    parts.append(f'<rect class="box" x="{first:.1f}" y="{y - 8:.1f}" width="{third - first:.1f}" height="16"/>')
    parts.append(straight("median", median, y - 8, median, y + 8))
    return "".join(parts)


def scatter_chart(spots: Sequence[Spot], x_label: str, y_label: str, most: float = math.inf) -> Markup | None:
    """Points over a logarithmic axis, those of the front joined by a line of steps. None where there are none."""
    spots = [spot for spot in spots if spot.x > 0 and math.isfinite(spot.y)]
    if not spots:
        return None
    across = _across([spot.x for spot in spots])
    up = _up([end for spot in spots for end in (spot.y, spot.low, spot.high)], most)
    parts = [_framed(across, up, x_label, y_label)]
    front = sorted((across(spot.x), up(spot.y)) for spot in spots if spot.front)
    if len(front) > 1:
        steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in front[1:])
        parts.append(f'<path class="ideal" d="M{front[0][0]:.1f} {front[0][1]:.1f}{steps}"/>')
    for spot in spots:
        x = across(spot.x)
        if math.isfinite(spot.low) and math.isfinite(spot.high):
            parts.append(straight("whisker", x, up(spot.low), x, up(min(spot.high, up.high))))
        if spot.front:
            parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{up(spot.y):.1f}" r="8"/>')
        parts.append(marker(spot.look, x, up(spot.y)))
    keys, rows = _keys([(spot.name, spot.look) for spot in spots], lines=False)
    said = "; ".join(f"{spot.name} {compact(spot.y)} at {compact(spot.x)}" for spot in spots)
    return svg([*parts, keys], f"{y_label} over {x_label}: {said}", HEIGHT + rows)


def trace_chart(
    traces: Sequence[Trace], x_label: str, y_label: str, *, most: float = math.inf, log_x: bool = False,
    x_ticks: Sequence[float] | None = None, marks: Sequence[tuple[str, float]] = (),
) -> Markup | None:  # fmt: skip
    """Curves with bands; the vertical axis is logarithmic where values span decades. None without a finite point.

    Args:
        x_ticks: where the ticks of the horizontal axis stand, such as the ranks that were run.
        marks: names of vertical lines, and where they stand.
    """
    traces = [trace for trace in traces if np.isfinite(trace.y).any()]
    if not traces:
        return None
    across = _across(np.concatenate([trace.x for trace in traces]), log_x, x_ticks)
    values = np.concatenate([part for trace in traces for part in (trace.y, trace.low, trace.high)])
    log = spans_decades(np.concatenate([trace.y[np.isfinite(trace.y)] for trace in traces]))
    # An accuracy has a linear axis, however low some of them are.
    up = _up(values, most, log and not math.isfinite(most))
    parts = [_framed(across, up, x_label, y_label, x_ticks)]
    for name, x in marks:
        side, anchor = (-6, "end") if across(x) > WIDTH / 2 else (6, "start")
        parts.append(straight("mark", across(x), TOP, across(x), HEIGHT - BOTTOM))
        parts.append(text("tick", across(x) + side, HEIGHT - BOTTOM - 8, name, anchor))
    parts += [_band(trace, across, up) for trace in traces] + [_curve(trace, across, up) for trace in traces]
    keys, rows = _keys([(trace.name, trace.look) for trace in traces], lines=True)
    said = "; ".join(f"{t.name} from {compact(float(t.y[0]))} to {compact(float(t.y[-1]))}" for t in traces)
    return svg([*parts, keys], f"{y_label} over {x_label}: {said}", HEIGHT + rows)


def _across(values: Sequence[float] | np.ndarray, log: bool = True, shown: Sequence[float] | None = None) -> Scale:
    low, high = float(np.min(values)), float(np.max(values))
    if shown is not None:
        return Scale(low / 1.15, high * 1.15, LEFT, WIDTH - RIGHT, log)
    if log:
        found = log_ticks(low, high)
        return Scale(found[0], found[-1], LEFT, WIDTH - RIGHT - 10, True)
    return Scale(0.0, high or 1.0, LEFT, WIDTH - RIGHT)


def _up(values: Sequence[float] | np.ndarray, most: float, log: bool = False) -> Scale:
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found) & ((found > 0) | (not log))]
    shown = _ticks(found, most, log)
    return Scale(shown[0], shown[-1], HEIGHT - BOTTOM, TOP - 16, log)


def _ticks(values: np.ndarray, most: float, log: bool) -> list[float]:
    low, high = float(np.min(values)), float(np.max(values))
    return log_ticks(low, high) if log else [value for value in ticks(low, high) if value <= most + 1e-9]


def _framed(across: Scale, up: Scale, x_label: str, y_label: str, shown: Sequence[float] | None = None) -> str:
    y_ticks = _ticks(np.array([up.low, up.high]), math.inf, up.log)  # its ends are round numbers
    if shown is not None:
        x_ticks = list(shown)
    elif across.log:
        x_ticks = log_ticks(across.low, across.high)
    else:
        x_ticks = [value for value in ticks(0.0, across.high, whole=True) if value <= across.high]
    return frame(across, up, x_ticks, [y for y in y_ticks if up.low <= y <= up.high * (1 + 1e-9)], x_label, y_label)


def _band(trace: Trace, across: Scale, up: Scale) -> str:
    if len(trace.low) != len(trace.x) or len(trace.high) != len(trace.x):
        return ""
    limits = [
        (across(x), up(max(low, up.low)), up(min(high, up.high)))
        for x, low, high in zip(trace.x, trace.low, trace.high, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    edge = [(x, high) for x, _, high in limits] + [(x, low) for x, low, _ in reversed(limits)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
    return f'<polygon style="fill:{trace.look.colour};fill-opacity:.12" points="{points}"/>' if limits else ""


def _curve(trace: Trace, across: Scale, up: Scale) -> str:
    points = [(across(x), up(y)) for x, y in zip(trace.x, trace.y, strict=True)
              if math.isfinite(y) and (y > 0 or not up.log)]  # fmt: skip
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    every = math.ceil(len(points) / _MOST_MARKERS) or 1
    dots = "".join(marker(trace.look, *point) for point in points[::every])
    return f'<path style="{_stroke(trace.look)}" d="M{path}"/>{dots}' if points else ""


def _stroke(look: Look) -> str:
    dash = f";stroke-dasharray:{' '.join(f'{length:g}' for length in look.dash)}" if look.dash else ""
    return f"stroke:{look.colour}{dash}"


def _keys(legend: Sequence[tuple[str, Look]], lines: bool) -> tuple[str, float]:
    """Names beside their markers below the chart, in as many rows as they need, and the height of these."""
    parts: list[str] = []
    x, y, room = float(LEFT - 40), HEIGHT + 12.0, 34 if lines else 18
    for name, look in legend:
        shown = shortened(name, 2 * _LONGEST)
        width = room + _LETTER * len(shown) + 12
        if x > LEFT - 40 and x + width > WIDTH:
            x, y = float(LEFT - 40), y + 20
        if lines:
            parts.append(f'<path style="{_stroke(look)}" d="M{x:.1f} {y:.1f}h28"/>')
        parts.append(marker(look, x + (14 if lines else 6), y) + text("key", x + room, y + 4, shown))
        x += width
    return "".join(parts), y + 10 - HEIGHT
