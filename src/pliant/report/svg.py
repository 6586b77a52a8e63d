"""Charts as inline SVG: text stays text, the bytes depend on the numbers alone, and lines differ by dash and marker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 32, 48
_MOST_POINTS = 300
_MOST_MARKERS = 24


@dataclass(frozen=True)
class Line:
    """One curve. `look` names its class in the style sheet: `faint`, `plain`, `first` (circles) or
    `second` (squares)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    look: str


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x`, with its name beside it."""

    name: str
    x: float


@dataclass(frozen=True)
class Scale:
    """From `low` to `high` in the data to `start` to `end` in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def line_chart(
    lines: Sequence[Line], x_label: str, y_label: str, *, zero: bool = True, most: float = math.inf,
    marks: Sequence[Mark] = (),
) -> Markup | None:  # fmt: skip
    """Curves over a common axis, or None where there is no finite point. Gaps are left where a value is NaN.

    Args:
        zero: start the vertical axis at 0.
        most: the largest value that makes sense, where the axis stops.
    """
    lines = [line for line in map(_thinned, lines) if np.isfinite(line.y).any()]
    if not lines:
        return None
    xs = np.concatenate([line.x[np.isfinite(line.y)] for line in lines])
    ys = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    # The curves use the whole width; only the vertical axis ends on a round number.
    end = float(xs.max()) or 1.0
    x_ticks = [tick for tick in ticks(0.0, end, whole=True) if tick <= end]
    y_ticks = [t for t in ticks(min(0.0, ys.min()) if zero else ys.min(), ys.max()) if t <= most + 1e-9]
    across = Scale(0.0, end, LEFT, WIDTH - RIGHT)
    up = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [frame(across, up, x_ticks, y_ticks, x_label, y_label)]
    parts += [_vertical(across(mark.x), mark.name) for mark in marks]
    parts += [_curve(line, across, up) for line in lines]
    if len(lines) > 1:  # a lone curve is named by its axis
        parts.append(legend([(line.name, line.look) for line in lines]))
    said = "; ".join(f"{line.name} ends at {_last(line.y):.4g}" for line in lines)
    return svg(parts, f"{y_label} over {x_label}: {said}")


def bar_chart(
    edges: np.ndarray, heights: np.ndarray, x_label: str, y_label: str, *,
    diagonal: str | None = None, top: float | None = None,
) -> Markup:  # fmt: skip
    """Bars (N,) between `edges` (N + 1,); a NaN leaves its place empty.

    Args:
        diagonal: what the line from corner to corner means, where one is to be drawn.
        top: end of the vertical axis; the largest bar where it is None.
    """
    x_ticks = ticks(float(edges[0]), float(edges[-1]))
    y_ticks = ticks(0.0, top if top is not None else float(np.nanmax(heights)))
    across = Scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    up = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [frame(across, up, x_ticks, y_ticks, x_label, y_label)]
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        if np.isfinite(height):
            x, y = across(low) + 1, up(height)
            parts.append(f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{across(high) - x - 1:.1f}" '
                         f'height="{up(0) - y:.1f}"/>')  # fmt: skip
    if diagonal:
        parts.append(straight("ideal", across(0), up(0), across(edges[-1]), up(edges[-1])))
        parts.append(legend([("this model", "bar"), (diagonal, "ideal")]))
    drawn = [f"{h:.3g} from {a:.2g} to {b:.2g}" for a, b, h in zip(edges, edges[1:], heights, strict=False)
             if np.isfinite(h) and h > 0]  # fmt: skip
    return svg(parts, f"{y_label} over {x_label}: {'; '.join(drawn) or 'no images'}")


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Four to seven round numbers that enclose `low` to `high`; integers only where `whole`."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = (low - pad if low > 0 else low), high + pad
    rough = (high - low) / 5
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m for m in (1, 2, 2.5, 5, 10) if rough <= m * magnitude * 1.0001) * magnitude
    step = max(1.0, float(math.ceil(step))) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _thinned(line: Line) -> Line:
    """Means of neighbours where there are more points than can be told apart."""
    if len(line.x) <= _MOST_POINTS:
        return line
    groups = np.array_split(np.arange(len(line.x)), _MOST_POINTS)
    x, y = (np.array([_mean(values[group]) for group in groups]) for values in (line.x, line.y))
    return Line(line.name, x, y, line.look)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def frame(across: Scale, up: Scale, x_ticks: list[float], y_ticks: list[float], x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in y_ticks:
        parts.append(straight("grid", LEFT, up(value), right, up(value)))
        parts.append(text("tick", LEFT - 7, up(value) + 4, tick(value), "end"))
    for value in x_ticks:
        x, number = across(value), tick(value)
        # A long last number, centred, would leave the picture.
        anchor = "end" if x > WIDTH - 30 and len(number) > 4 else "middle"
        parts.append(straight("axis", x, bottom, x, bottom + 4))
        parts.append(text("tick", x, bottom + 18, number, anchor))
    parts.append(straight("axis", LEFT, bottom, right, bottom))
    parts.append(text("label", (LEFT + right) / 2, HEIGHT - 8, x_label, "middle"))
    turned = text("label", 0, 0, y_label, "middle")
    parts.append(f'<g transform="translate(14 {(TOP + bottom) / 2:.0f}) rotate(-90)">{turned}</g>')
    return "".join(parts)


def straight(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{look}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(look: str, x: float, y: float, content: str, anchor: str = "start") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def _curve(line: Line, across: Scale, up: Scale) -> str:
    path, pen, points = [], "M", []
    for x, y in zip(line.x, line.y, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        points.append((across(x), up(y)))
        path.append(f"{pen}{points[-1][0]:.1f} {points[-1][1]:.1f}")
        pen = "L"
    every = max(1, math.ceil(len(points) / _MOST_MARKERS))
    # A single point has no length: without a marker it would not be seen.
    marked = points[::every] if line.look in ("first", "second") else points[: len(points) == 1]
    return f'<path class="{line.look}" d="{"".join(path)}"/>' + "".join(_marker(*p, line.look) for p in marked)


def _marker(x: float, y: float, look: str) -> str:
    if look == "second":
        return f'<rect class="dot hollow" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _vertical(x: float, name: str) -> str:
    side, anchor = (-6, "end") if x > WIDTH / 2 else (6, "start")
    bottom = HEIGHT - BOTTOM
    return straight("mark", x, TOP, x, bottom) + text("tick", x + side, bottom - 8, name, anchor)


def legend(names: Sequence[tuple[str, str]]) -> str:
    parts, x = [], float(LEFT)
    for name, look in names:
        if look == "bar":
            parts.append(f'<rect class="bar" x="{x:.1f}" y="8" width="16" height="10"/>')
        else:
            parts.append(straight(look, x, 13, x + 24, 13))
            parts.append(_marker(x + 12, 13, look) if look in ("first", "second") else "")
        x += 22 if look == "bar" else 30
        parts.append(text("key", x, 17, name))
        x += 7.2 * len(name) + 16
    return "".join(parts)


def tick(value: float) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if value else "0"


def _last(values: np.ndarray) -> float:
    return float(values[np.isfinite(values)][-1])


def svg(parts: Sequence[str], said: str, height: float = HEIGHT) -> Markup:
    """The picture of `parts`, which hold escaped texts only; `said` is what it shows, for those who cannot see it."""
    start = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(said)}">'
    return Markup(f"{start}{''.join(parts)}</svg>")
