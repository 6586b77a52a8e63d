"""Statistics over seeds and data sets: the published figures, ties, zeros, single seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.pareto import elbow, pareto_front


@pytest.fixture(scope="module")
def published():
    """Top-1 in percent of 11 data sets (arXiv 2602.06883), as a results table with one row a data set and method."""
    from tests.conftest import SHARED

    path = SHARED / "paper" / "nonsmooth_accuracy.csv"
    if not path.is_file():
        pytest.skip("needs the shared table of published accuracies")
    wide = pd.read_csv(path).rename(columns={"dataset": "data", "linear_probe": "probe_mean"})
    means = wide.melt("data", [c for c in wide if c.endswith("_mean")], "method", "test_top1")
    return means.assign(method=means["method"].str.removesuffix("_mean"), model="vit-b", seed=0)


def column(published, method):
    return published[published["method"] == method].set_index("data")["test_top1"]


def test_published_paired_tests(published):
    table = statistics.paired_tests(published, [("mha", "fc2"), ("mha", "ln1")])
    assert table["pairs"].tolist() == [11, 11]
    assert table["zeros"].tolist() == [1, 0]  # MHA and FC2 agree on CIFAR-10
    assert table["difference"].round(4).tolist() == [0.4427, 0.9345]
    assert table["t"].round(5).tolist() == [0.00375, 0.0242]
    assert table["wilcoxon_greater"].round(5).tolist() == [0.00488, 0.00146]
    assert table["wilcoxon_greater_holm"].round(5).tolist() == [0.00488, 0.00293]


@pytest.mark.parametrize(
    ("method", "gain"), [("mha", 53.44), ("fc1", 53.27), ("fc2", 52.70), ("ln2", 51.27), ("ln1", 51.17), ("all", 53.89)]
)
def test_published_relative_gains(published, method, gain):
    gains = statistics.relative_gain(column(published, method), column(published, "probe"))
    assert gains.mean() == pytest.approx(gain, abs=0.005)


def test_relative_gain_needs_a_probe():
    with pytest.raises(PliantError, match="probe"):
        statistics.relative_gain(np.array([0.5, 0.6]), np.array([0.5, 0.0]))
    with pytest.raises(PliantError, match="probe"):
        statistics.relative_gain(0.5, float("nan"))


def runs(**columns):
    return pd.DataFrame({"data": "a", "model": "m", "method": "mha", **columns})


def test_mean_and_deviation_over_seeds():
    table = statistics.over_seeds(runs(seed=[0, 1, 2], test_top1=[0.5, 0.6, 0.7]), ["data", "method"])
    assert table.loc[0, ["mean", "std", "seeds"]].tolist() == pytest.approx([0.6, 0.1, 3])


def test_one_seed_has_no_deviation():
    table = statistics.over_seeds(runs(seed=[0, 1], test_top1=[0.5, np.nan]), ["data", "method"])
    assert np.isnan(table["std"][0])
    assert table["seeds"][0] == 1  # the failed run does not count


def test_runs_that_are_not_one_setting_are_refused():
    table = runs(seed=[0, 0], lr=[0.1, 0.2], test_top1=[0.5, 0.6])
    with pytest.raises(PliantError, match=r"2 runs of data a, method mha, seed 0; they differ in lr"):
        statistics.over_seeds(table, ["data", "method"])
    with pytest.raises(PliantError, match=r"2 runs of data a, model m, seed 0, method mha"):
        statistics.paired_tests(table, [("mha", "ln1")])


def test_missing_column_and_empty_table():
    with pytest.raises(PliantError, match="no column 'lr'"):
        statistics.spread(runs(seed=[0], test_top1=[0.5]), "lr", ["data"])
    with pytest.raises(PliantError, match="no rows"):
        statistics.over_seeds(runs(seed=[], test_top1=[]), ["data"])


def test_spread_over_rates():
    table = runs(seed=[0, 1] * 3, lr=[0.1, 0.1, 0.2, 0.2, 0.3, 0.3], test_top1=[0.5, 0.7, 0.8, 0.8, np.nan, np.nan])
    found = statistics.spread(table, "lr", ["data", "method"]).iloc[0]
    assert found[["spread", "values", "failed"]].tolist() == pytest.approx([0.2, 3, 2])
    assert np.isnan(statistics.spread(table[table["lr"] == 0.1], "lr", ["data", "method"])["spread"][0])


def test_gap():
    table = runs(seed=[0, 1], train_top1=[0.9, 1.0], test_top1=[0.8, 0.8])
    assert statistics.train_test_gap(table, ["data"]).loc[0, "mean"] == pytest.approx(0.15)


def test_bootstrap_covers_the_mean_and_is_seeded():
    values = np.random.default_rng(1).normal(0.8, 0.05, 40)
    first = statistics.bootstrap_interval(values)
    assert first == statistics.bootstrap_interval(values)
    half = stats.t.ppf(0.975, 39) * values.std(ddof=1) / np.sqrt(40)
    assert first.low == pytest.approx(values.mean() - half, abs=half / 5)
    assert first.high == pytest.approx(values.mean() + half, abs=half / 5)


def test_bootstrap_at_its_edges():
    assert np.isnan(statistics.bootstrap_interval([0.5])).all()
    assert statistics.bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="finite"):
        statistics.bootstrap_interval([0.5, np.nan])


def test_hierarchical_interval_counts_data_sets_not_seeds():
    rng = np.random.default_rng(2)
    centres = rng.normal(0.8, 0.1, 12)
    groups = [centre + rng.normal(0, 0.001, 3) for centre in centres]
    low, high = statistics.hierarchical_interval(groups)
    # Deviation over data sets, as though seeds were exact; of all 36 values as independent it would be 1.7 times less.
    expected = 2 * 1.96 * centres.std() / np.sqrt(12)
    assert high - low == pytest.approx(expected, rel=0.1)
    assert low < np.mean(groups) < high


def test_hierarchical_interval_also_counts_seeds():
    groups = [[0.4, 0.6], [0.4, 0.6]]
    low, high = statistics.hierarchical_interval(groups)
    assert (low, high) == pytest.approx((0.4, 0.6))


def test_hierarchical_interval_at_its_edges():
    assert np.isnan(statistics.hierarchical_interval([[0.4, 0.6]])).all()
    low, high = statistics.hierarchical_interval([[0.4], [0.6]])  # one seed each
    assert (low, high) == pytest.approx((0.4, 0.6))
    with pytest.raises(ValueError, match="without values"):
        statistics.hierarchical_interval([[0.4], []])


def test_paired_agrees_with_scipy():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 15))
    test = statistics.paired(first, second)
    assert test.t == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert test.t_greater == pytest.approx(stats.ttest_rel(first, second, alternative="greater").pvalue)
    assert test.wilcoxon == pytest.approx(stats.wilcoxon(first, second).pvalue)
    assert test.wilcoxon_greater == pytest.approx(stats.wilcoxon(first, second, alternative="greater").pvalue)


def test_paired_without_any_difference():
    test = statistics.paired([0.1, 0.2], [0.1, 0.2])
    assert (test.zeros, test.t, test.t_greater, test.wilcoxon, test.wilcoxon_greater) == (2, 1, 1, 1, 1)


def test_paired_rounding_errors_are_zeros_and_ties():
    assert statistics.paired([0.1 + 0.2], [0.3]).zeros == 1
    tied = statistics.paired([0.3, 0.6, 0.9], [0.2, 0.5, 0.8])  # differences of 0.1, up to rounding
    assert np.isnan(tied.t)
    assert tied.wilcoxon_greater == pytest.approx(1 / 8)


def test_paired_one_pair():
    test = statistics.paired([0.6], [0.5])
    assert np.isnan([test.t, test.t_greater]).all()
    assert test.wilcoxon_greater == 0.5


def test_paired_wrong_input():
    for first, second in (([0.1], [0.1, 0.2]), ([], []), ([np.nan], [0.1])):
        with pytest.raises(ValueError, match="paired|finite"):
            statistics.paired(first, second)


def test_paired_tests_use_common_seeds_only():
    table = pd.concat([
        runs(seed=[0, 1], test_top1=[0.5, 0.9]),
        runs(seed=[0, 1], test_top1=[0.4, np.nan], method="ln1"),
    ])  # fmt: skip
    assert statistics.paired_tests(table, [("mha", "ln1")])["difference"][0] == pytest.approx(0.1)


def test_paired_tests_over_seeds_and_with_unset_columns():
    table = pd.concat([runs(seed=[0, 1], test_top1=[0.5, 0.9]), runs(seed=[0, 1], test_top1=[0.4, 0.7], method="ln1")])
    table["weights"] = None
    found = statistics.paired_tests(table, [("mha", "ln1"), ("mha", "fc1")], ["data", "model", "weights", "seed"])
    assert found["pairs"].tolist() == [2, 0]
    assert found["difference"][0] == pytest.approx(0.15)
    assert found.loc[1, ["difference", "t", "wilcoxon_greater_holm"]].isna().all()
    assert found["wilcoxon_greater_holm"][0] == found["wilcoxon_greater"][0]  # the untested one is not counted


def test_holm():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.5, 0.6]) == pytest.approx([1, 1])
    assert statistics.holm([0.02, np.nan, 0.02]) == pytest.approx([0.04, np.nan, 0.04], nan_ok=True)
    assert len(statistics.holm([])) == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        statistics.holm([1.2])


def test_smallest_p_is_reached():
    assert statistics.paired([0.3, 0.5, 0.9, 1.4], [0] * 4).wilcoxon_greater == statistics.smallest_p(4)


def test_pareto_front():
    accuracy = [0.5, 0.7, 0.7, 0.9, 0.6, 0.7, np.nan]
    parameters = [1, 10, 20, 100, 50, 10, 1]
    assert pareto_front(accuracy, parameters).tolist() == [True, True, False, True, False, True, False]
    assert pareto_front([], []).tolist() == []
    with pytest.raises(ValueError, match="one length"):
        pareto_front([0.1], [1, 2])


def test_elbow():
    assert elbow([8, 16, 32, 64], [0.5, 0.8, 0.82, 0.83]) == 16
    assert elbow([64, 8, 32, 16], [0.83, 0.5, 0.82, 0.8]) == 16
    assert elbow([8, 16, 32, 64], [0.5, 0.9, 0.7, 0.4]) == 16  # also where too much rank hurts
    assert elbow([8, 16, 32], [0.5, 0.6, 0.7]) is None
    assert elbow([8, 16, 32], [0.5, 0.5, 0.5]) is None
    assert elbow([8, 16, 32], [0.5, 0.5, 0.7]) is None
    assert elbow([8, 16, 32, 64], [0.5, 0.8, 0.9, 1.0]) == 16


def test_elbow_wrong_input():
    with pytest.raises(PliantError, match="at least three ranks, the study has 2"):
        elbow([8, 16], [0.5, 0.6])
    with pytest.raises(ValueError, match="differ"):
        elbow([8, 8, 16], [0.5, 0.6, 0.7])
    with pytest.raises(ValueError, match="finite"):
        elbow([8, 16, 32], [0.5, 0.6, np.nan])
