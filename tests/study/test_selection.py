"""Settings are chosen on validation, and what choosing on test would have claimed is told beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pliant.errors import PliantError
from pliant.study.selection import Results, select


def table(*rows, **fixed):
    """Rows of (lr, seed, val, test)."""
    frame = pd.DataFrame(rows, columns=["lr", "seed", "val_top1", "test_top1"])
    return frame.assign(data="a", model="m", method="mha", **fixed)


RUNS = table(
    (0.1, 0, 0.80, 0.70), (0.1, 1, 0.82, 0.72),
    (0.2, 0, 0.78, 0.75), (0.2, 1, 0.80, 0.77),
)  # fmt: skip


def test_chooses_on_validation_and_tells_the_optimism():
    selection = select(RUNS, ["lr"])
    row = selection.table.iloc[0]
    assert (row["lr"], row["claimed_lr"], row["settings"], row["seeds"]) == (0.1, 0.2, 2, 2)
    assert row[["val_mean", "test_mean", "claimed_mean", "optimism"]].tolist() == pytest.approx(
        [0.81, 0.71, 0.76, 0.05]
    )
    assert row["test_std"] == pytest.approx(np.sqrt(2) / 100)
    assert selection.runs["lr"].tolist() == [0.1, 0.1]
    assert selection.runs.columns.tolist() == RUNS.columns.tolist()
    assert "5.00 points more on average" in selection.sentence


def test_test_accuracy_has_no_part_in_the_choice():
    changed = RUNS.assign(test_top1=RUNS["test_top1"].sample(frac=1, random_state=0).to_numpy())
    assert select(changed, ["lr"]).runs["lr"].tolist() == [0.1, 0.1]


def test_order_of_rows_does_not_matter():
    shuffled = RUNS.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(select(shuffled, ["lr"]).table, select(RUNS, ["lr"]).table)


def test_ties_go_to_the_lower_value():
    row = select(RUNS.assign(val_top1=0.8), ["lr"]).table.iloc[0]
    assert (row["lr"], row["tied"]) == (0.1, 1)


def test_a_setting_with_fewer_seeds_is_not_compared():
    lucky = pd.concat([RUNS, table((0.3, 0, 0.99, 0.99))])
    row = select(lucky, ["lr"]).table.iloc[0]
    assert (row["lr"], row["claimed_lr"], row["settings"], row["incomplete"]) == (0.1, 0.2, 2, 1)


def test_failed_runs():
    failed = pd.concat([RUNS, table((0.3, 0, np.nan, np.nan), (0.3, 1, np.nan, np.nan))])
    row = select(failed, ["lr"]).table.iloc[0]
    assert (row["lr"], row["settings"], row["incomplete"]) == (0.1, 2, 1)
    with pytest.raises(PliantError, match="data a, model m, method mha: no run has a validation accuracy"):
        select(RUNS.assign(val_top1=np.nan), ["lr"])


def test_untested_settings_claim_nothing():
    once = RUNS.assign(test_top1=RUNS["test_top1"].where(RUNS["lr"] == 0.1))
    selection = select(once, ["lr"])
    row = selection.table.iloc[0]
    assert row["test_mean"] == pytest.approx(0.71)
    assert row[["claimed_lr", "claimed_mean", "optimism"]].isna().all()
    assert "unknown" in selection.sentence


def test_one_seed_and_one_setting():
    probe = table((np.nan, 0, np.nan, 0.6))
    selection = select(probe, ["lr"])
    row = selection.table.iloc[0]
    assert row["test_mean"] == 0.6
    assert np.isnan(row["test_std"])
    assert len(selection.runs) == 1
    assert "nothing was chosen" in selection.sentence


def test_several_axes_and_groups():
    second = RUNS.assign(method="ln1", val_top1=1 - RUNS["val_top1"])
    both = pd.concat([RUNS, second], ignore_index=True).assign(optimizer="sgd", rank=None)
    found = select(both, ["optimizer", "lr", "rank"]).table.set_index("method")["lr"]
    assert found.to_dict() == {"ln1": 0.2, "mha": 0.1}


def test_an_axis_that_was_forgotten_is_named():
    with pytest.raises(PliantError, match="they differ in lr"):
        select(RUNS.assign(rank=8), ["rank"])
    with pytest.raises(PliantError, match="no column 'rank'"):
        select(RUNS, ["rank"])


def test_results_want_fractions():
    with pytest.raises(PliantError, match="test_top1 must lie between 0 and 1"):
        Results(RUNS.assign(test_top1=71.0))


def test_only_the_largest_training_set_and_the_papers_adapters_count():
    small, large = RUNS.assign(data="a[n=100]", n_train=100), RUNS.assign(n_train=1000)
    assert set(Results(pd.concat([small, large])).largest["data"]) == {"a"}
    adapters = pd.concat(
        [RUNS.assign(method="adapter", rank=rank, val_top1=RUNS["val_top1"] + rank / 1000) for rank in (16, 64)]
    )
    assert set(Results(adapters).chosen("adapter")["rank"]) == {16}
    assert set(Results(adapters[adapters["rank"] == 64]).chosen("adapter")["rank"]) == {64}


def test_names_of_parts_come_in_any_order():
    assert len(Results(RUNS.assign(method="ln2, ln1")).chosen("ln1,ln2")) == 2
