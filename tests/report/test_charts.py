"""The numbers behind the charts, and the charts' limits."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from pliant.report.statistics import BINS, mistakes, most_confused, reliability, wilson
from pliant.report.svg import HEIGHT, WIDTH, Line, Mark, bar_chart, line_chart, ticks


def test_wilson_against_known_values():
    # Newcombe (1998), table I: 81 of 263 and 0 of 20.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1.0, 7)[1] == 1.0
    assert wilson(None, 5) is None and wilson(math.nan, 5) is None and wilson(0.5, 0) is None


def test_reliability_counts_each_image_once():
    confidence = np.array([0.0, 1 / 15, 0.5, 0.99, 1.0, math.nan])
    table = pd.DataFrame({"label": 0, "prediction": [0, 1, 0, 0, 1, 0], "confidence": confidence})
    bins = reliability(table)
    assert bins.images.sum() == 5 and bins.images[0] == bins.images[1] == bins.images[7] == 1 and bins.images[-1] == 2
    assert bins.accuracy[-1] == 0.5 and bins.accuracy[1] == 0 and math.isnan(bins.accuracy[2])


def test_reliability_agrees_with_torchmetrics():
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities = np.random.default_rng(0).dirichlet(np.ones(4) * 0.4, 500)
    labels = np.random.default_rng(1).integers(0, 4, 500)
    table = pd.DataFrame({"label": labels, "prediction": probabilities.argmax(1), "confidence": probabilities.max(1)})
    bins = reliability(table)
    filled = bins.images > 0
    ours = (np.abs(bins.accuracy - bins.confidence)[filled] * bins.images[filled]).sum() / 500
    theirs = multiclass_calibration_error(torch.tensor(probabilities), torch.tensor(labels), num_classes=4, n_bins=BINS)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_mistakes_break_ties_by_key():
    table = pd.DataFrame({"key": list("cab"), "label": 0, "prediction": [1, 1, 0], "confidence": [0.5, 0.5, 0.9]})
    assert list(mistakes(table)["key"]) == ["a", "c"]


def test_most_confused():
    confusion = np.array([[5, 2, 0], [0, 3, 7], [2, 0, 1]])
    assert most_confused(confusion, 2) == [(1, 2, 7, 10), (0, 1, 2, 7)]
    assert most_confused(np.diag([3, 4]), 20) == []


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 1e-9), (3, 3), (0, 0), (-2, 5), (55.1, 71.9), (0, 123456), (99.99, 100), (1e20, 2e20)]
)
def test_ticks_enclose_the_values(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 9 and found[0] <= low + 1e-9 and found[-1] >= high * (1 - 1e-9)
    assert all(a < b for a, b in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("points", [1, 2, 7, 5000])
def test_line_chart_is_valid_and_inside_its_frame(points):
    x = np.arange(1, points + 1)
    y = np.where(x % 3 == 2, math.nan, np.sin(x) + 2)
    chart = line_chart([Line("a < b", x, y, "first"), Line("c", x, y, "second")], "step", "loss", marks=[Mark("m", 1)])
    root = ET.fromstring(str(chart))
    assert root.get("role") == "img" and root.get("aria-label").startswith("loss over step: a < b ends at ")
    assert len(str(chart)) < 40_000
    for node in root.iter():
        for name, limit in (("x", WIDTH), ("cx", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("cy", HEIGHT), ("y2", HEIGHT)):
            assert node.get(name) is None or 0 <= float(node.get(name)) <= limit


def test_line_chart_of_nothing():
    nothing = np.array([math.nan, math.nan])
    assert line_chart([Line("a", np.array([1.0, 2.0]), nothing, "plain")], "step", "loss") is None
    assert line_chart([Line("a", np.zeros(0), np.zeros(0), "plain")], "step", "loss") is None


def test_accuracy_axis_ends_at_most():
    x = np.array([1.0, 2.0])
    chart = str(line_chart([Line("a", x, np.array([91.0, 99.7]), "plain")], "step", "%", zero=False, most=100))
    assert ">100<" in chart and ">102<" not in chart


def test_bar_chart_of_nothing():
    ET.fromstring(str(bar_chart(np.linspace(0, 100, 4), np.zeros(3), "confidence", "images")))
