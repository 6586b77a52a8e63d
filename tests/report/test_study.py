"""The page of a study: its marks and sentences are right, it is safe, the same each time, and sensible with little."""

import re
from itertools import product

import numpy as np
import pandas as pd
import pytest

from pliant import report
from pliant.errors import PliantError
from pliant.report.study_charts import curves
from pliant.report.study_files import NAMES, escaped
from pliant.report.study_svg import Box, Spot, Trace, box_chart, looks_of, scatter_chart, trace_chart
from pliant.study.tables import Tables
from tests.report.test_browser import CHROMIUM, WIDTHS, measure
from tests.report.test_page import text_of

LEVELS = {"probe": 0.60, "head": 0.70, "ln1": 0.80, "mha": 0.88, "adapter": 0.881, "full": 0.85}
PARAMETERS = {"probe": 100, "head": 100, "ln1": 200, "mha": 900, "adapter": 500, "full": 10_000}
HOSTILE = '</pre><script>alert(1)</script>"><img src=x> {{ 7 * 7 }} & \\input{x}_%'
LONG = "a-name-without-any-blank-that-is-longer-than-a-phone-is-wide" * 2


def study(
    methods=LEVELS, data=("a", "b", "c"), rates=(0.001, 0.01), seeds=(0, 1, 2), ranks=(8, 16, 32)
) -> pd.DataFrame:
    """A results table. The first rate is the better one; the best two methods differ by noise alone."""
    rng = np.random.default_rng(0)
    rows = []
    for method, name, rate, seed in product(methods, data, rates, seeds):
        for rank in ranks if method == "adapter" else (np.nan,):
            top1 = LEVELS.get(method, 0.7) - 3 * (rate - rates[0]) + rng.uniform(-0.004, 0.004)
            top1 -= 0.04 if rank == 8 else 0.001 * (rank == 16)
            rows.append({
                "run": f"{len(rows):04}", "data": name, "model": "m", "weights": "pretrained", "img_size": 32,
                "n_train": 1200, "method": method, "lr": rate, "rank": rank, "seed": seed, "val_top1": top1,
                "test_top1": top1, "train_top1": top1 + 0.05, "trained_parameters": PARAMETERS.get(method, 300),
            })  # fmt: skip
    return pd.DataFrame(rows)


def logged(table) -> dict[str, pd.DataFrame]:
    steps = np.arange(50)
    return {run: pd.DataFrame({"step": steps, "loss": 2.0 - steps / 50, "grad_norm": 1.0}) for run in table["run"]}


def page(folder, table, **options) -> str:
    folder.mkdir(exist_ok=True)
    return report.write_study(folder, table, **options).read_text(encoding="utf-8")


def constructed() -> pd.DataFrame:
    """Two data sets, six seeds: `good` is best, `near` alternates around it, `poor` is always far below."""
    rows = []
    wiggles = (0.010, -0.012, 0.009, -0.006, 0.003, -0.004)  # no two alike: an exact Wilcoxon test of ties is slow
    for name, (seed, wiggle) in product(("x", "y"), enumerate(wiggles)):
        wiggle *= 1 if name == "x" else 1.05
        top1 = {"good": 0.9, "near": 0.8999 + wiggle, "poor": 0.8 + wiggle / 10}
        rows += [
            {"data": name, "model": "m", "method": method, "seed": seed, "test_top1": value, "val_top1": value,
             "n_train": 500, "trained_parameters": {"good": 10, "near": 20, "poor": 5}[method]}
            for method, value in top1.items()
        ]  # fmt: skip
    return pd.DataFrame(rows)


def test_marks_of_a_constructed_case(tmp_path):
    tables = Tables(constructed())
    for table in (tables.accuracy, tables.overall):
        assert set(table.loc[table["best"], "method"]) == {"good"}
        assert set(table.loc[table["alike"], "method"]) == {"near"}
    assert set(tables.accuracy["test"].dropna()) == {"Wilcoxon"}  # six pairs suffice for two comparisons
    html = page(tmp_path, constructed())
    assert (
        html.count("<b>90.00</b>") == 3
        and html.count('<span title="not significantly worse than the best">≈</span>') == 3
    )
    text = text_of(html)
    assert "good is best on validation, and reaches a test accuracy of 90.00 % on average over 2 data sets" in text
    assert "It is significantly better than poor (+10.00 points)." in text
    assert "It cannot be told from near (+0.01 points)" in text
    assert "over the 2 data sets alone" in text and "Training images 500" in text
    latex = (tmp_path / "accuracy.tex").read_text()
    assert latex.count(r"\textbf{90.00}") == 3 and latex.count(r"$\approx$ 89.99") == 3
    assert list(tables.costs.loc[tables.costs["front"], "method"]) == ["poor", "good"]


def test_favourite_is_named_by_validation(tmp_path):
    table = constructed()
    table.loc[table["method"] == "near", "val_top1"] = 0.99
    assert Tables(table).favourite == "near"
    assert "near is best on validation" in (text := text_of(page(tmp_path, table)))
    assert "On test good has the highest mean, 90.00 %." in text


def test_few_seeds_are_said_to_be_few(tmp_path):
    table = constructed()
    text = text_of(page(tmp_path / "a", table[(table["data"] == "x") & (table["seed"] < 3)]))
    assert "A Wilcoxon test, which takes nothing for granted, would need 6 pairs" in text
    html = page(tmp_path / "b", table[(table["data"] == "x") & (table["seed"] == 0)])
    assert "there is no test: 1 pair of runs" in text_of(html) and 'best">≈' not in html
    assert "Nothing is marked as not significantly worse, since one seed allows no test" in text_of(html)


def test_gain_over_the_probe(tmp_path):
    table = study()
    tables = Tables(table)
    means = tables.means
    expected = ((means.loc["mha"] / means.loc["probe"] - 1) * 100).mean()
    assert tables.average.set_index("method").loc["mha", "gain"] == pytest.approx(expected)
    assert f"{expected:+.2f}" in page(tmp_path / "a", table)
    assert "No run of a linear probe" in page(tmp_path / "b", table[table["method"] != "probe"])


def test_sections_follow_the_data(tmp_path):
    table = study()
    text = text_of(
        page(tmp_path / "a", table, steps=logged(table), notes=["a note"], command="pliant study run s.yaml")
    )
    for said in ("Selection", "points from the best rate", "adapter: the elbow is at rank 16", "Training loss", "a note",
                 "Choosing on test would have claimed", "pliant study run s.yaml", "No run failed.", "+5.00"):  # fmt: skip
        assert said in text
    bare = text_of(
        page(
            tmp_path / "b", table.drop(columns=["train_top1", "rank"]).drop_duplicates(["data", "method", "lr", "seed"])
        )
    )
    assert "Loss and gradient norm" not in bare and "elbow" not in bare.split("Claims of the papers")[0]
    assert "No run tells its accuracy on training images." in bare


def test_failures_stand_with_their_errors(tmp_path):
    table = study(methods=("head", "mha"), rates=(0.001,)).assign(error=None)
    table.loc[0, ["val_top1", "test_top1", "train_top1"]] = np.nan
    table.loc[0, "error"] = "the loss is not finite"
    text = text_of(page(tmp_path, table))
    assert "1 of 18 runs failed" in text and "the loss is not finite" in text and "2 seeds" in text
    assert "the loss is not finite" in (tmp_path / "failures.csv").read_text()


MINIMAL = pd.DataFrame([{"data": "d", "model": "m", "method": "head", "seed": 0, "test_top1": 0.5}])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (MINIMAL, "head reaches a test accuracy of 50.00 % on d."),
        (MINIMAL.assign(test_top1=np.nan, error="no memory"), "No run has finished"),
        (study(methods=("mha",)), "It is the only method with finished runs"),
        (study(data=("a",)), "on a (95 % interval"),
        (study(rates=(0.001,)), "No method was run with several learning rates."),
        (study(seeds=(0,)), "No method was run with several seeds."),
        (
            pd.concat([study(methods=("mha",), data=("a",)), study(methods=("head",), data=("b",))]),
            "no best one overall",
        ),
        (study().convert_dtypes(), "adapter is best on validation"),
    ],
)
def test_little_gives_a_sensible_page(tmp_path, table, said):
    html = page(tmp_path, table)
    assert said in text_of(html) and not re.search(r"\b(nan|None|NaN|inf)\b", text_of(html))


def test_bad_tables_are_one_line(tmp_path):
    with pytest.raises(PliantError, match="no column 'method'"):
        report.write_study(tmp_path, MINIMAL.drop(columns="method"))
    with pytest.raises(PliantError, match="fractions, not percent"):
        report.write_study(tmp_path, MINIMAL.assign(test_top1=50.0))
    with pytest.raises(PliantError, match="2 runs of"):
        report.write_study(tmp_path, pd.concat([MINIMAL, MINIMAL], ignore_index=True))
    assert not list(tmp_path.iterdir())


def test_everything_is_escaped_and_stands_alone(tmp_path):
    table = study(data=(HOSTILE, "b"), methods=("head", "mha", HOSTILE)).assign(error=None)
    table.loc[0, ["val_top1", "test_top1"]] = np.nan
    table.loc[0, "error"] = HOSTILE
    html = page(tmp_path, table, steps=logged(table), title=HOSTILE, command=HOSTILE, notes=[HOSTILE])
    assert "<script" not in html and "<img" not in html and "49" not in html.split("Command</h2>")[1]
    assert not re.search(r"(src|href|action|data|poster)\s*=\s*[\"']?\s*(https?:|//|file:)", html)
    assert "<link" not in html and "@import" not in html and "url(" not in html and "default-src 'none'" in html
    assert "\\input{x}" not in (tmp_path / "accuracy.tex").read_text()
    assert escaped("50 % of a_b & c\\d") == r"50 \% of a\_b \& c\textbackslash{}d"


def test_same_bytes_in_whatever_order(tmp_path):
    table = study(methods=("head", "adapter", "mha"))
    written = []
    for number, rows in enumerate((table, table.sample(frac=1, random_state=1))):
        page(tmp_path / str(number), rows, steps=logged(table))
        written.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).iterdir()})
    assert written[0] == written[1]
    assert {f"{name}.{kind}" for name in NAMES[:-1] for kind in ("csv", "tex")} | {"report.html"} == set(written[0])


def test_tables_of_an_earlier_report_do_not_stay(tmp_path):
    page(tmp_path, study(methods=("head", "adapter")))
    assert (tmp_path / "ranks.csv").is_file()
    page(tmp_path, MINIMAL)
    assert not (tmp_path / "ranks.csv").exists() and not (tmp_path / "tests.tex").exists()


def test_curves_are_medians_with_ranges():
    table = study(methods=("head",), data=("a",), rates=(0.001,))
    runs = {
        run: frame.assign(loss=float(level))
        for (run, frame), level in zip(logged(table).items(), (1, 2, 7), strict=True)
    }
    ((name, loss, norm),) = curves(Tables(table), runs)
    assert name == "a" and 'aria-label="training loss (nats) over' in loss and "head from 2 to 2" in loss and norm
    assert curves(Tables(table), {}) == []
    empty = {run: pd.DataFrame({"step": [1, 2], "loss": [np.nan, np.inf]}) for run in table["run"]}
    assert curves(Tables(table), empty) == []


def test_charts_have_limits():
    assert box_chart([Box("a", np.array([np.nan]))], "x") is None and scatter_chart([], "x", "y") is None
    assert trace_chart([Trace("a", looks_of(["a"])["a"], np.arange(2), np.full(2, np.nan))], "x", "y") is None
    names = [f"method{number}" for number in range(10)]
    looks = looks_of(["mha", *names])
    assert len({(look.colour, look.marker, look.hollow) for look in looks.values()}) == 11
    assert len({(look.marker, look.hollow, look.dash) for look in looks.values()}) == 11  # also without colour
    drawn = scatter_chart([Spot(name, looks[name], 1e3, 50.0, front=True) for name in names], "x", "y", 100)
    assert drawn is not None and drawn.count('class="ring"') == 10


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("kind", ["full", "minimal"])
def test_nothing_overflows(tmp_path, kind):
    table = MINIMAL.assign(data=LONG)
    if kind == "full":
        table = study(methods=("head", "adapter", LONG), data=(LONG, *"abcdefgh"), seeds=(0, 1)).assign(
            error=None, optimizer=LONG
        )
        table.loc[0, ["val_top1", "test_top1"]] = np.nan
        table.loc[0, "error"] = LONG
    html = page(
        tmp_path, table, steps=logged(table) if kind == "full" else None, title=LONG, command=LONG, notes=[LONG]
    )
    # What is folded away must fit as well.
    (tmp_path / "report.html").write_text(html.replace("<details>", "<details open>"), encoding="utf-8")
    assert measure(tmp_path, tmp_path / "profile") == {width: (width, "") for width in WIDTHS}
