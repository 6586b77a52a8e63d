"""The picture of landscapes: one scale for all panels, what is said of each, and the same bytes each time."""

import numpy as np
import pandas as pd
import pytest

from pliant.adapt.landscape import Landscape
from pliant.report import landscape_figure
from pliant.report.landscape_figure import levels_of


def bowl(component: str, height: float) -> Landscape:
    x, y = np.linspace(-3, 1, 9), np.linspace(-1, 1, 9)
    path = pd.DataFrame({"step": [0, 1, 2], "x": [-2.0, -1.0, 0.0], "y": [0.0, 0.5, 0.0], "off": 0.0})
    loss = 0.1 + height * (x[None, :] ** 2 + y[:, None] ** 2)
    return Landscape(component, x, y, loss, path, (0.9, 0.08), 0.1 + 4 * height, 0.1, 20, 0.75)


def test_panels_share_one_scale_and_say_what_they_show(tmp_path):
    found = [bowl("mha", 1.0), bowl("ln1", 0.1)]
    paths = [tmp_path / "a.svg", tmp_path / "a.png"]
    figure = landscape_figure(found, "pico on $digits_", paths)
    first, second, bar = figure.axes
    assert first.get_title("left") == "MHA: loss 4.1 to 0.1, test accuracy 75.0 %"
    assert "90.0 % of the path's variance" in second.get_xlabel() and "20 images" in bar.get_ylabel()
    limits = {tuple(np.round(drawn.get_clim(), 6)) for axes in (first, second) for drawn in axes.collections[:1]}
    losses = np.stack([each.loss for each in found])
    assert limits == {(round(losses.min(), 6), round(losses.max(), 6))}
    line = max(first.lines, key=lambda each: len(each.get_xdata()))
    assert line.get_xdata().tolist() == [-2, -1, 0] and line.get_ydata().tolist() == [0, 0.5, 0]
    assert [text.get_text() for text in first.texts if text.get_text() in ("start", "end")] == ["start", "end"]
    again = [tmp_path / "b.svg", tmp_path / "b.png"]
    landscape_figure(found, "pico on $digits_", again)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_levels():
    assert levels_of(np.array([1.0, 2.0])) == pytest.approx(np.linspace(1, 2, 12))
    ratios = levels_of(np.array([0.01, 5.0, np.inf, np.nan]))
    assert ratios[[0, -1]] == pytest.approx([0.01, 5]) and np.ptp(ratios[1:] / ratios[:-1]) == pytest.approx(
        0, abs=1e-9
    )
    assert len(set(levels_of(np.ones(3)))) == 12  # flat everywhere
    landscape_figure([bowl("mha", 0.0)], "a flat one")
