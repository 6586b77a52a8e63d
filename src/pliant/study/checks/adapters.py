"""Checks of what adapters bring (arXiv 2603.14706), from a results table."""

from __future__ import annotations

import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.checks.common import (
    ALPHA,
    FULL,
    HEAD,
    count_better,
    enough,
    parameters_of,
    points,
    several,
    told,
    unit_name,
)  # fmt: skip
from pliant.study.claims import Claim, Measurements, Verdict, check_of, listed, verdict
from pliant.study.pareto import elbow
from pliant.study.selection import ADAPTER, Results, at_reference
from pliant.study.statistics import paired_tests

RANKS = (8, 16, 32, 64)
LITTLE = 0.02
"""Change of accuracy over a hyperparameter's grid that passes for little."""
FLAT = 0.25
"""Share of the gain from rank 8 to 16 up to which the gain from 32 to 64 is almost nothing."""


@check_of("gain-over-head-only")
def _gain(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(ADAPTER, HEAD)
    means = results.means(runs)
    several(means, "pairs of data set and backbone")
    gain = 100 * (means[ADAPTER] - means[HEAD])
    low, high = statistics.bootstrap_interval(gain)
    return verdict(
        claim, bool((gain > 0).all() and low > 0), f"{gain.mean():+.1f} points, {(gain > 0).sum()} of {len(gain)} pairs",
        f"a gain on each of {len(gain)} pairs and a bootstrap interval of the mean above 0; not the size of the gain",
        f"Adapters gain {gain.mean():+.2f} points over the head alone (95 % interval {low:.2f} to {high:.2f}), the least "
        f"{gain.min():+.2f} on {unit_name(gain.idxmin())}.",
    )  # fmt: skip


@check_of("parameter-share")
def _share(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    parameters = parameters_of(results, results.chosen(ADAPTER, FULL))
    share = 100 * parameters[ADAPTER] / parameters[FULL]
    low, high = f"{share.min():.2f}", f"{share.max():.2f}"
    return verdict(
        claim, bool(share.mean() < 1), f"{share.mean():.2f} %", "mean over data sets and backbones, heads included, below 1 %",
        f"Adapters and head are {low if low == high else f'{low} to {high}'} % of the parameters that full finetuning trains.",
    )  # fmt: skip


@check_of("beats-full")
def _beats_full(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    means = results.means(results.chosen(ADAPTER, FULL))
    several(means, "pairs of data set and backbone")
    return count_better(claim, means, ADAPTER, FULL, least=10 / 15, strictly=False, where="")


@check_of("rank-elbow")
def _rank_elbow(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    statistics.check_columns(results.table, ["rank"])
    runs = results.largest[(results.largest["method"] == ADAPTER) & results.largest["rank"].isin(RANKS)]
    if missing := [rank for rank in RANKS if rank not in set(runs["rank"])]:
        raise PliantError(f"no adapters of rank {', '.join(map(str, missing))}")
    # Every rank in the place of a method: its rate is chosen on validation like any other's.
    by_rank = at_reference(runs, results.unit, but=["rank"]).assign(
        method=lambda table: table["rank"].map("r{:.0f}".format)
    )
    names = [f"r{rank}" for rank in RANKS]
    chosen = results.chosen(*names, runs=by_rank)
    test = paired_tests(chosen, [("r16", "r8")], [*results.unit, "seed"]).iloc[0]
    enough(test["pairs"])
    curve = 100 * results.means(chosen)[names].mean()
    early, late = curve["r16"] - curve["r8"], curve["r64"] - curve["r32"]
    found = elbow(RANKS, curve)
    p = test["wilcoxon_greater"]
    return verdict(
        claim, bool(p < ALPHA and late <= FLAT * early and found == 16), listed(curve.to_dict()),
        f"8 to 16 gains (Wilcoxon, one-sided, {test['pairs']} pairs: p = {p:.2g}), 32 to 64 at most {FLAT:.0%} of that, and the "
        "point furthest above the chord over log rank is 16",
        f"Rank 8 to 16 brings {early:+.2f} points ({told(p, early)}), 32 to 64 {late:+.2f}; "
        f"{'there is no elbow' if found is None else f'the elbow is at {found:.0f}'}.",
    )  # fmt: skip


@check_of("train-test-gap")
def _gap(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    statistics.check_columns(results.table, ["train_top1"])
    runs = results.chosen(ADAPTER, FULL)
    runs = runs.assign(gap=runs["train_top1"] - runs["test_top1"])
    if runs["gap"].isna().all():
        raise PliantError("no run tells its accuracy on training data")
    test = paired_tests(runs, [(FULL, ADAPTER)], [*results.unit, "seed"], "gap").iloc[0]
    enough(test["pairs"])
    means = results.means(runs, "gap")
    several(means, "pairs of data set and backbone")
    gap = means.mean()
    p = test["wilcoxon_greater"]
    return verdict(
        claim, bool(p < ALPHA), points(gap),
        f"Wilcoxon, one-sided, {test['pairs']} pairs: full finetuning's gap is larger; not its size",
        f"Train minus test is {100 * gap[ADAPTER]:.2f} points for adapters and {100 * gap[FULL]:.2f} for full finetuning "
        f"({told(p, test['difference'])}).",
    )  # fmt: skip


@check_of("hyperparameter-robustness")
def _hyperparameters(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.largest[results.largest["method"] == ADAPTER]
    axes = ("lr", "weight_decay", "alpha")
    found = {}
    for axis in axes:
        near = at_reference(runs, results.unit, but=[axis])
        found[axis] = results.spread(near, axis)["spread"].mean()
    worst = max(found, key=found.__getitem__)
    return verdict(
        claim, max(found.values()) <= LITTLE, points(pd.Series(found)),
        f"best minus worst mean over each grid, the rest held fixed, averaged: at most {100 * LITTLE:.0f} points",
        f"Accuracy changes most, by {100 * found[worst]:.2f} points, over {worst}.",
    )  # fmt: skip
