"""Pages and pictures of plasticity: what they say, safely, the same each time, and with anything missing."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from pliant import report
from pliant.errors import PliantError
from pliant.measure import load
from pliant.report import terms
from pliant.report.comparison_page import change
from pliant.report.looks import COMPONENTS, PLAIN
from pliant.report.scales import log_ticks, spans_decades
from pliant.report.svg_rates import Curve, Point, Row, depth_chart, dot_chart
from pliant.report.words import rate
from tests.report.measured import NAMED, fake_measurement, neighbours
from tests.report.test_page import text_of

BOTH = ("in-situ", "shared-input")
HOSTILE = '</pre><script>alert(1)</script>"><img src=x> $\\frac{ {{ 7 * 7 }}'


@pytest.fixture
def unpictured(monkeypatch):
    """Leaves out the pictures, which take a second each, where a test is about the page."""
    monkeypatch.setattr("pliant.report.plasticity_page.plasticity_figure", lambda *_: None)
    monkeypatch.setattr("pliant.report.comparison_page.comparison_figure", lambda *_: None)


def saved(measured, folder):
    measured.save(folder)
    return folder


def page(measured, folder, **options) -> str:
    return report.write_plasticity(saved(measured, folder), **options).read_text(encoding="utf-8")


@pytest.mark.usefixtures("unpictured")
def test_numbers_are_the_measurements(tmp_path):
    measured = fake_measurement(BOTH, **NAMED)
    text = text_of(page(measured, tmp_path))
    for protocol in BOTH:
        for row in measured.table(protocol).to_dict("records"):
            interval = f"{rate(row['low'])} to {rate(row['high'])}"
            side = "above 1" if row["low"] > 1 else "below 1"
            assert f"{row['component']} {rate(row['mean'])} {interval} {side} {rate(row['std'])} 64 64" in text
            figures = " ".join(rate(row[name]) for name in ("mean", "largest", "local", "bound"))
            assert f"{row['component']} {figures} {rate(row['bound'] / row['largest'])}" in text
        for row in measured.blocks(protocol).to_dict("records"):
            assert rate(row["mean"]) in text
        for upper, lower in neighbours(measured, protocol):
            assert f"{upper} − {lower}" in text
    for row in measured.sublayers("in-situ").to_dict("records"):
        assert f"{row['component']} {terms.COMPONENTS[row['component']]} {rate(row['mean'])}" in text
    assert "The wanted ±5.00 % was reached: the widest interval of a component is ±3.10 % of its mean" in text
    assert "arXiv 2602.06883, section 2" in text and NAMED["command"] in text and "2 images were skipped" in text
    assert "LN1 and LN2" not in text.split("Careful")[0] and "LayerNorms amplify" in text and "Careful:" in text
    assert text.count("ours and not the paper's") == 2 and "They exist in situ only" in text


def test_says_how_the_measurement_ended():
    said = [
        terms.precision({"precision": wanted, "reached": 0.03, "stopped": stopped})
        for wanted, stopped in ((0.05, False), (0.01, False), (0.01, True), (None, False), (None, True))
    ]
    assert said[0].startswith("The wanted ±5.00 % was reached")
    assert "was not reached: the images ran out, and the widest interval of a component is ±3.00 %" in said[1]
    assert "was not reached: the measurement was stopped by hand" in said[2]
    assert said[3].startswith("Everything given was measured") and said[4].startswith("It was stopped by hand")


@pytest.mark.usefixtures("unpictured")
def test_dropped_pairs_and_broken_bounds_are_named(tmp_path):
    measured = fake_measurement(dropped=3)
    rows = measured.rows
    rows.loc[(rows["block"] == 1) & (rows["component"] == "MHA"), "bound"] = 1e-6
    text = text_of(page(measured, tmp_path))
    assert "3 pairs of identical inputs have no rate and were dropped" in text
    assert "exceeds the bound in 1 of 20 components of blocks" in text


@pytest.mark.usefixtures("unpictured")
def test_distribution_only_where_rates_are_given(tmp_path):
    measured = fake_measurement()
    assert "Distribution" not in page(measured, tmp_path)
    html = page(measured, tmp_path, rates=measured.rates)
    assert html.count("pairs (%)") >= 5 and 'id="distribution"' in html


@pytest.mark.usefixtures("unpictured")
def test_asks_for_nothing_outside(tmp_path):
    first, second = fake_measurement(BOTH, **NAMED), fake_measurement(BOTH, factor=1.2)
    pages = [page(first, tmp_path / "a", base=second),
             report.write_comparison(first, second, ("a", "b"), tmp_path / "b").read_text()]  # fmt: skip
    for html in pages:
        assert not re.search(r"(src|href|action|data|poster)\s*=\s*[\"']?\s*(https?:|//|file:)", html)
        assert "<script" not in html and "<link" not in html and "@import" not in html and "url(" not in html
        assert "default-src 'none'" in html


def test_same_bytes(tmp_path):
    first, second = fake_measurement(**NAMED), fake_measurement(factor=1.2)

    def written():
        saved(first, tmp_path / "a")
        report.write_plasticity(tmp_path / "a", base=second, rates=first.rates)
        report.write_comparison(first, second, ("a", "b"), tmp_path / "b")
        report.plasticity_figure(second, tmp_path / "a.svg")
        return {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}

    before = written()
    assert {path.name for path in before} >= {"report.html", "plasticity.png", "comparison.png", "a.svg"}
    assert written() == before and not [path for path in before if path.suffix == ".tmp"]


def test_hostile_names_are_escaped(tmp_path):
    first = fake_measurement(**dict.fromkeys(("model", "weights", "pretrain", "downstream", "command"), HOSTILE),
                             notes=[HOSTILE], family=HOSTILE, estimator=HOSTILE)  # fmt: skip
    htmls = [page(first, tmp_path / "a", base=first),
             report.write_comparison(first, first, (HOSTILE, HOSTILE), tmp_path / "b").read_text()]  # fmt: skip
    for html in htmls:
        assert "<script" not in html and "<img" not in html and "</pre><" not in html
        assert "&lt;script&gt;" in html and "{{ 7 * 7 }}" in html


def test_undecodable_names(tmp_path):
    first = fake_measurement()
    report.write_comparison(first, first, ("runs/\udcff", "b"), tmp_path)
    assert "runs/?" in (tmp_path / "report.html").read_text(encoding="utf-8")
    named = dataclasses.replace(first, summary={**first.summary, "model": "\udcff", "pretrain": "\udcff\n" * 40})
    report.plasticity_figure(named, tmp_path / "a.png")


def test_only_protocols_in_the_summary(tmp_path):
    measured = fake_measurement(BOTH)
    bare = dataclasses.replace(measured, summary={"protocols": list(BOTH)})
    html = page(bare, tmp_path)
    assert not re.search(r"\b(nan|inf|none)\b", text_of(html), re.IGNORECASE) and "Undefined" not in html
    report.write_comparison(bare, measured, ("a", "b"), tmp_path / "c")


@pytest.mark.usefixtures("unpictured")
@pytest.mark.parametrize("columns", [["bound"], ["local"], ["bound", "local", "largest"], ["low", "high"],
                                     ["elasticity", "elasticity_low", "elasticity_high"]])  # fmt: skip
def test_not_a_number(tmp_path, columns):
    measured = fake_measurement(BOTH)
    measured.rows[columns] = np.nan
    html = page(measured, tmp_path / "a", base=measured)
    assert not re.search(r"\b(nan|inf)\b", html, re.IGNORECASE)
    if "bound" in columns:
        assert "No bound was computed" in html
    report.write_comparison(measured, measured, ("a", "b"), tmp_path / "b")


def test_pictures_of_what_is_not_a_number(tmp_path):
    measured = fake_measurement()
    measured.rows[["low", "high", "bound", "local", "largest"]] = np.nan
    measured.rows.loc[measured.rows["component"] == "FC1", "mean"] = np.nan
    report.plasticity_figure(measured, tmp_path / "a.pdf")
    report.write_comparison(measured, measured, ("a", "b"), tmp_path / "b")


@pytest.mark.usefixtures("unpictured")
def test_one_bound_missing(tmp_path):
    measured = fake_measurement()
    measured.rows.loc[measured.rows["component"] == "MHA", "bound"] = np.nan
    text = text_of(page(measured, tmp_path))
    assert "in every block for every component (16 of 16)" in text and "n/a" in text


def test_interval_that_reaches_zero_on_a_logarithmic_axis(tmp_path):
    measured = fake_measurement()
    measured.rows["low"] = -0.01
    html = page(measured, tmp_path)
    assert "not clear" in html and "nan" not in html.lower()


@pytest.mark.parametrize("depth", [1, 32])
def test_any_depth(tmp_path, depth):
    html = page(fake_measurement(BOTH, depth=depth), tmp_path)
    assert text_of(html).count(f" {depth - 1} ") and len(html) < 400_000
    with Image.open(tmp_path / "plasticity.png") as image:
        assert image.format == "PNG" and image.width > image.height


def test_figure_has_a_row_a_protocol(tmp_path):
    measured = fake_measurement(BOTH, **NAMED)
    figure = report.plasticity_figure(measured)
    assert len(figure.axes) == 6
    title = figure.get_suptitle()
    for told in (NAMED["model"], NAMED["pretrain"], NAMED["downstream"], "in situ and shared input", "64 images"):
        assert told in title
    ranking, depth, columns = figure.axes[:3]
    assert ranking.get_xlabel().startswith("rate ||f(x) - f(y)|| / ||x - y||") and ranking.get_xscale() == "log"
    assert depth.get_xlabel().startswith("block") and columns.get_xscale() == "log"
    styles = {(line.get_linestyle(), line.get_marker()) for line in depth.get_lines() if line.get_marker() != "None"}
    assert len(styles) == 5
    measured.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_figure_names_the_format_it_cannot_write(tmp_path):
    with pytest.raises(PliantError, match=r"a\.xlsx: .*\.png, \.svg or \.pdf"):
        report.plasticity_figure(fake_measurement(), tmp_path / "a.xlsx")


def test_comparison_says_what_changed(tmp_path):
    first, second = fake_measurement(BOTH), fake_measurement(("in-situ",))
    second.rows.loc[second.rows["component"] == "MHA", ["mean", "low", "high"]] *= 1.5
    second.rows.loc[second.rows["component"] == "LN2", ["mean", "low", "high"]] /= 4
    path = report.write_comparison(first, second, ("before", "after"), tmp_path)
    text = text_of(path.read_text())
    said = "Plasticity rose in MHA (+50 %); it fell in LN2 (−75 %); it did not clearly change in LN1, FC1 and FC2."
    assert said in text
    assert "Shared input" not in text and "LN1 to MHA (sub-layer)" in text
    assert re.search(r"MHA [\d.]+ [\d.]+ to [\d.]+ [\d.]+ [\d.]+ to [\d.]+ 1\.500 [\d.]+ to [\d.]+ rose", text)
    assert "Protocols in-situ, shared-input in-situ" in text
    with Image.open(tmp_path / "comparison.png") as image:
        assert image.format == "PNG"


@pytest.mark.usefixtures("unpictured")
def test_comparison_with_the_base_is_on_the_page(tmp_path):
    after = fake_measurement(factor=2.5)
    text = text_of(page(after, tmp_path, base=fake_measurement()))
    assert "Before and after" in text and "rose in" in text and "(2.5 times)" in text


@pytest.mark.usefixtures("unpictured")
def test_comparison_without_a_common_protocol(tmp_path):
    pair = fake_measurement(("in-situ",)), fake_measurement(("shared-input",))
    with pytest.raises(PliantError, match="share no protocol"):
        report.write_comparison(*pair, ("a", "b"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_change_of_nothing():
    row = {"component": "LN1", "ratio": float("nan"), "ratio_low": float("nan"), "ratio_high": float("nan")}
    assert change([row]) == "Plasticity did not clearly change in LN1."


def test_not_a_measurement(tmp_path):
    with pytest.raises(PliantError, match=r"plasticity\.parquet"):
        report.write_plasticity(tmp_path)


def test_of_a_real_measurement(tmp_path):
    torch = pytest.importorskip("torch")
    import pliant
    from tests.anatomy import zoo

    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 3, 32, 32, generator=draw) for _ in range(2))
    measured = pliant.plasticity(zoo.build("timm-vit"), [x], [y], protocol="both", local=1)
    html = page(measured, tmp_path, rates=measured.rates)
    assert load(tmp_path).ranking()[0] in html and (tmp_path / "plasticity.png").is_file()


@pytest.mark.parametrize(
    ("low", "high"), [(0.1, 5), (1, 1), (0.006, 2), (0.1, 4e5), (1e-9, 1e9), (2.5, 2.6), (0.0999999, 10.00001)]
)
def test_log_ticks_enclose_the_values(low, high):
    found = log_ticks(low, high)
    assert 2 <= len(found) <= 9 and found[0] <= low * (1 + 1e-6) and found[-1] >= high * (1 - 1e-6)
    assert all(a < b for a, b in zip(found, found[1:], strict=False))


def test_decades():
    assert spans_decades([0.1, 3]) and not spans_decades([1, 3]) and not spans_decades([-1, 100, float("nan")])
    assert not spans_decades([])


@pytest.mark.parametrize("low", [0.5, -1.0])
def test_dot_chart_is_valid_and_inside_its_frame(low):
    rows = [Row(f"<{name}>", [Point(value, look, low * value, 2 * value), Point(float("nan"), look)])
            for name, look, value in zip(COMPONENTS, COMPONENTS.values(), (0.01, 0.2, 1, 30, 4000), strict=True)]  # fmt: skip
    root = ET.fromstring(str(dot_chart(rows, "rate", legend=[("a", PLAIN), ("b", PLAIN)])))
    width, height = (float(value) for value in root.get("viewBox").split()[2:])
    for node in root.iter():
        for name, limit in (("x", width), ("cx", width), ("x1", width), ("x2", width), ("y", height), ("cy", height)):
            assert node.get(name) is None or 0 <= float(node.get(name)) <= limit
    assert dot_chart([Row("a", [Point(float("nan"), PLAIN)])], "rate") is None


def test_depth_chart_leaves_gaps():
    values = np.array([0.5, np.nan, 30.0, 0.7])
    root = ET.fromstring(str(depth_chart([Curve("a", PLAIN, values, values - 1, values + 1)], "rate")))
    curve = next(node for node in root.iter() if node.tag.endswith("path"))
    assert curve.get("d").count("M") == 2
    assert depth_chart([Curve("a", PLAIN, np.array([np.nan]))], "rate") is None


def test_rates_in_words():
    told = [rate(value) for value in (0.0241234, 1.62745, 24.8, 29468.8, 4.389e11, 3e-6, 0, float("nan"))]
    assert told == ["0.02412", "1.627", "24.80", "29,469", "4.39e+11", "3.00e-06", "0", "n/a"]
