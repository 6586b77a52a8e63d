"""The checks of the claims that a results table, or measured plasticity, can tell of."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.claims import Claim, Measurements, Verdict, check_of, listed, measured_check_of, verdict
from pliant.study.pareto import elbow
from pliant.study.selection import ADAPTER, Results, at_reference
from pliant.study.statistics import LEVEL, hierarchical_interval, paired, paired_tests, relative_gain

HIGH, LOW = ("mha", "fc1", "fc2"), ("ln2", "ln1")
"""Components of high and low plasticity, as the paper ranks them; by measurement they may rank otherwise."""
COMPONENTS = (*HIGH, *LOW)
PROBE, HEAD, FULL, LORA, NORMS = "probe", "head", "full", "lora", "ln1,ln2"
ALPHA = 1 - LEVEL
RANKS = (8, 16, 32, 64)
FEWER = 15
"""Times fewer parameters than LoRA's that the LayerNorms are claimed to have."""
FEWEST = 3
"""Pairs of data set and backbone below which a count of them says nothing."""
SMALL = 5000
"""Training images up to which a data set is called small: Flowers102 and Pet are, DomainNet and CIFAR are not."""
LITTLE = 0.02
"""Change of accuracy over a hyperparameter's grid that passes for little."""
FLAT = 0.25
"""Share of the gain from rank 8 to 16 up to which the gain from 32 to 64 is almost nothing."""


def _enough(pairs: int, family: int = 1) -> None:
    """Raises PliantError where even differences of one sign throughout would not be significant."""
    if family * statistics.smallest_p(pairs) > ALPHA:
        needed = math.ceil(math.log2(family / ALPHA))
        raise PliantError(f"{pairs} pairs of runs cannot give a significant Wilcoxon test, the claim needs {needed}")


@check_of("accuracy-follows-plasticity")
def _accuracy(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(*COMPONENTS)
    means = results.means(runs)
    _several(means, "pairs of data set and backbone")
    family = list(product(HIGH, LOW))
    tests = paired_tests(runs, family, [*results.unit, "seed"])
    pairs = int(tests["pairs"].min())
    _enough(pairs, len(family))
    passed = tests["wilcoxon_greater_holm"] < ALPHA
    weakest = tests.sort_values("wilcoxon_greater_holm").iloc[-1]
    by_data = paired_tests(runs, family, results.unit)["wilcoxon_greater_holm"].max()
    lead = 100 * (means[list(HIGH)].mean(axis=1) - means[list(LOW)].mean(axis=1))
    return verdict(
        claim, bool(passed.all()), _points(means.mean()),
        f"Wilcoxon, one-sided, {pairs} pairs (data sets x seeds), Holm over {len(family)}; over data sets alone, largest "
        f"p = {by_data:.2g}",
        f"{passed.sum()} of {len(family)} comparisons of MHA, FC1, FC2 with the LayerNorms are significant; the weakest is "
        f"{weakest['first']} against {weakest['second']} with {100 * weakest['difference']:+.2f} points, p = "
        f"{weakest['wilcoxon_greater_holm']:.2g}. The lead is largest, {lead.max():+.2f} points, on {_name(lead.idxmax())}.",
    )  # fmt: skip


@check_of("relative-gain")
def _relative_gain(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(*COMPONENTS, PROBE)
    means = results.means(runs)
    _several(means, "relative gains")
    gains = means[list(COMPONENTS)].apply(lambda column: relative_gain(column, means[PROBE]))
    overall = gains.mean().sort_values(ascending=False)
    runner_up = next(name for name in overall.index if name != "mha")
    test = paired(gains["mha"], gains[runner_up])
    units = [runs[name] for name in results.unit]
    probe = runs["test_top1"].where(runs["method"] == PROBE).groupby(units, dropna=False).transform("mean")
    of_mha = relative_gain(runs["test_top1"], probe)[runs["method"] == "mha"]
    low, high = hierarchical_interval([gains_there for _, gains_there in of_mha.groupby(units, dropna=False)])
    return verdict(
        claim, overall["mha"] > overall[runner_up], listed(overall.to_dict()) + f" (mean % over {len(gains)} data sets)",
        f"the order of the means; the lead over {runner_up} by Wilcoxon, one-sided: p = {test.wilcoxon_greater:.2g}",
        f"MHA gains {overall['mha']:.2f} % over the probe (95 % interval {low:.2f} to {high:.2f}), {runner_up} "
        f"{overall[runner_up]:.2f} %; MHA against {runner_up}: {_real(test.wilcoxon_greater, test.difference)}.",
    )  # fmt: skip


@check_of("robust-to-lr-and-seed")
def _robust(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    by = [*results.unit, "method"]
    runs = results.largest[results.largest["method"].isin(COMPONENTS)]
    over_rates = results.spread(runs, "lr")
    over_seeds = statistics.over_seeds(results.chosen(*COMPONENTS), by)
    if over_seeds["std"].isna().any():
        raise PliantError("a component has runs of one seed only, which has no deviation")
    rates, deviations = (
        table.pivot(index=results.unit, columns="method", values=value).reindex(columns=list(COMPONENTS)).dropna()
        for table, value in ((over_rates, "spread"), (over_seeds, "std"))
    )
    _enough(min(len(rates), len(deviations)), family=2)
    tests = [paired(table[list(LOW)].mean(axis=1), table[list(HIGH)].mean(axis=1)) for table in (rates, deviations)]
    p = statistics.holm([test.wilcoxon_greater for test in tests])
    return verdict(
        claim, bool((p < ALPHA).all()),
        f"over rates: {_points(rates.mean())}; over seeds: {_points(deviations.mean())} (points)",
        f"Wilcoxon, one-sided, over {len(rates)} data sets: LayerNorms vary more than MHA, FC1, FC2; Holm over 2",
        f"LayerNorms minus the others: {100 * tests[0].difference:+.2f} points of spread over learning rates "
        f"({_real(p[0], tests[0].difference)}), {100 * tests[1].difference:+.2f} of deviation over seeds "
        f"({_real(p[1], tests[1].difference)}).",
    )  # fmt: skip


@check_of("small-data-beats-full")
def _small_data(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.all_sizes
    if "n_train" not in runs:
        raise PliantError("the results table does not tell the size of training sets (n_train)")
    small = runs[runs["n_train"] <= SMALL]
    if small.empty:
        raise PliantError(f"no data set has at most {SMALL:,} training images")
    means = results.means(results.chosen("mha", FULL, runs=small))
    _several(means, f"data sets of at most {SMALL:,} images")
    return _count(claim, means, "mha", FULL, least=0.5, strictly=True, where=f"with at most {SMALL:,} training images")


@check_of("layernorm-vs-lora")
def _layernorm(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.largest
    statistics.check_columns(runs, ["optimizer"])
    runs = runs[(runs["base"] == "cifar100") & (runs["optimizer"].isin(["adam", "adamw"]))]
    if runs.empty:
        raise PliantError("no run is on CIFAR-100 with Adam")
    chosen = results.chosen(NORMS, LORA, HEAD, runs=runs)
    unit = [*results.unit, "seed"]
    test = paired_tests(chosen, [(NORMS, LORA)], unit).iloc[0]
    if pd.isna(test["t_greater"]):
        raise PliantError("fewer than two seeds or backbones have both methods, or their difference has no deviation")
    # A head is trained by every method; the claim counts what is trained besides it.
    parameters = _parameters(results, chosen)
    ratio = ((parameters[LORA] - parameters[HEAD]) / (parameters[NORMS] - parameters[HEAD])).mean()
    return verdict(
        claim, bool(test["t_greater"] < ALPHA and ratio >= FEWER),
        f"{_points(results.means(chosen)[[NORMS, LORA]].mean())}; {ratio:.1f} times fewer parameters",
        f"paired t, one-sided, over {test['pairs']} backbones x seeds; parameters without the head, at least {FEWER} times fewer",
        f"On CIFAR-100 the LayerNorms are {100 * test['difference']:+.2f} points from LoRA "
        f"({_real(test['t_greater'], test['difference'])}) with {ratio:.1f} times fewer parameters.",
    )  # fmt: skip


@check_of("gain-over-head-only")
def _gain(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(ADAPTER, HEAD)
    means = results.means(runs)
    _several(means, "pairs of data set and backbone")
    gain = 100 * (means[ADAPTER] - means[HEAD])
    low, high = statistics.bootstrap_interval(gain)
    return verdict(
        claim, bool((gain > 0).all() and low > 0), f"{gain.mean():+.1f} points, {(gain > 0).sum()} of {len(gain)} pairs",
        f"a gain on each of {len(gain)} pairs and a bootstrap interval of the mean above 0; not the size of the gain",
        f"Adapters gain {gain.mean():+.2f} points over the head alone (95 % interval {low:.2f} to {high:.2f}), the least "
        f"{gain.min():+.2f} on {_name(gain.idxmin())}.",
    )  # fmt: skip


@check_of("parameter-share")
def _share(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    parameters = _parameters(results, results.chosen(ADAPTER, FULL))
    share = 100 * parameters[ADAPTER] / parameters[FULL]
    return verdict(
        claim, bool(share.mean() < 1), f"{share.mean():.2f} %", "mean over data sets and backbones, heads included, below 1 %",
        f"Adapters and head are {share.min():.2f} to {share.max():.2f} % of the parameters that full finetuning trains.",
    )  # fmt: skip


@check_of("beats-full")
def _beats_full(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    means = results.means(results.chosen(ADAPTER, FULL))
    _several(means, "pairs of data set and backbone")
    return _count(claim, means, ADAPTER, FULL, least=10 / 15, strictly=False, where="")


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
    _enough(test["pairs"])
    curve = 100 * results.means(chosen)[names].mean()
    early, late = curve["r16"] - curve["r8"], curve["r64"] - curve["r32"]
    found = elbow(RANKS, curve)
    p = test["wilcoxon_greater"]
    return verdict(
        claim, bool(p < ALPHA and late <= FLAT * early and found == 16), listed(curve.to_dict()),
        f"8 to 16 gains (Wilcoxon, one-sided, {test['pairs']} pairs: p = {p:.2g}), 32 to 64 at most {FLAT:.0%} of that, and the "
        "point furthest above the chord over log rank is 16",
        f"Rank 8 to 16 brings {early:+.2f} points ({_real(p, early)}), 32 to 64 {late:+.2f}; "
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
    _enough(test["pairs"])
    means = results.means(runs, "gap")
    _several(means, "pairs of data set and backbone")
    gap = means.mean()
    p = test["wilcoxon_greater"]
    return verdict(
        claim, bool(p < ALPHA), _points(gap),
        f"Wilcoxon, one-sided, {test['pairs']} pairs: full finetuning's gap is larger; not its size",
        f"Train minus test is {100 * gap[ADAPTER]:.2f} points for adapters and {100 * gap[FULL]:.2f} for full finetuning "
        f"({_real(p, test['difference'])}).",
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
        claim, max(found.values()) <= LITTLE, _points(pd.Series(found)),
        f"best minus worst mean over each grid, the rest held fixed, averaged: at most {100 * LITTLE:.0f} points",
        f"Accuracy changes most, by {100 * found[worst]:.2f} points, over {worst}.",
    )  # fmt: skip


@measured_check_of("plasticity-ranking")
def _ranking(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "mean", "low", "high")
    passed = [
        _in_order(part["mean"]) and part.loc["mha", "low"] > part.loc[list(LOW), "high"].max()
        for part in found.values()
    ]
    return verdict(
        claim, all(passed), "; ".join(f"{name}: {_ranked(part['mean'])}" for name, part in found.items()),
        "order of the means over blocks, FC1 and FC2 in either order; MHA's 95 % interval above those of the LayerNorms",
        f"{sum(passed)} of {len(passed)} measurements rank MHA, FC1 and FC2, LN2, LN1 with MHA apart from the LayerNorms.",
    )  # fmt: skip


@measured_check_of("plasticity-threshold")
def _threshold(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "mean", "low", "high")
    above = {name: part.index[part["low"] > 1] for name, part in found.items()}
    below = {name: part.index[part["high"] < 1] for name, part in found.items()}
    passed = [set(HIGH) <= set(above[name]) and set(LOW) <= set(below[name]) for name in found]
    return verdict(
        claim, all(passed), "; ".join(f"{name}: {_ranked(part['mean'])}" for name, part in found.items()),
        "95 % intervals of the means over blocks: above 1 for MHA, FC1, FC2, below 1 for LN1, LN2",
        "; ".join(
            f"{name}: {', '.join(above[name]) or 'nothing'} above 1, {', '.join(below[name]) or 'nothing'} below" for name in found
        ) + ".",
    )  # fmt: skip


@measured_check_of("bounds-order")
def _bounds(claim: Claim, measurements: Measurements) -> Verdict:
    found = _plasticity(measurements, "bound", "largest", blocks=True)
    orders = {name: part["bound"].groupby(level=0).mean() for name, part in found.items()}
    broken = sum(int((part["largest"] > part["bound"]).sum()) for part in found.values())
    total = sum(len(part) for part in found.values())
    passed = [_in_order(order) for order in orders.values()]
    return verdict(
        claim, all(passed) and not broken, "; ".join(f"{name}: {_ranked(order)}" for name, order in orders.items()),
        "every block's bound at least the largest rate measured; order of the bounds' means, FC1 and FC2 in either order",
        f"{broken} of {total} bounds are broken by a measured pair; {sum(passed)} of {len(passed)} measurements have the order.",
    )  # fmt: skip


def _plasticity(measurements: Measurements, *columns: str, blocks: bool = False) -> dict[str, pd.DataFrame]:
    """Measured rates by name of the measurement, indexed by component: means over blocks, or every block's.

    Of the paper's protocol (shared-input) where that was measured.

    Raises:
        PliantError: there are none, or a component or a figure is missing.
    """
    if "plasticity" not in measurements:
        raise PliantError("no plasticity was measured")
    table = measurements["plasticity"]
    statistics.check_columns(table, ["component", *columns], "plasticity table")
    if blocks and ("block" not in table or table["block"].isna().all()):
        raise PliantError("the plasticity table has means over blocks only, not every block's rates")
    table = table.assign(component=table["component"].str.lower())
    if "block" in table:
        table = table[table["block"].notna() == blocks]
    if "protocol" in table and (table["protocol"] == "shared-input").any():
        table = table[table["protocol"] == "shared-input"]
    table = table[table["component"].isin(COMPONENTS)]
    names = [name for name in ("model", "data", "protocol") if name in table]
    parts = (
        [(", ".join(map(str, key)), part) for key, part in table.groupby(names, sort=False)]
        if names
        else [("measured", table)]
    )
    found = {name: part.set_index("component") for name, part in parts}
    for name, part in found.items():
        if set(part.index) != set(COMPONENTS) or part[list(columns)].isna().any(axis=None):
            raise PliantError(f"{name}: the plasticity table lacks {' or '.join(columns)} of a component")
        if not blocks and not part.index.is_unique:
            raise PliantError(
                f"{name}: the plasticity table has two rows of a component; tell measurements apart by model and data"
            )
    if not found:
        raise PliantError("the plasticity table has no component")
    return found


def _in_order(values: pd.Series) -> bool:
    """MHA > FC1, FC2 > LN2 > LN1, with FC1 and FC2 in either order."""
    linear = values[["fc1", "fc2"]]
    return bool(values["mha"] > linear.max() and linear.min() > values["ln2"] > values["ln1"])


def _ranked(values: pd.Series) -> str:
    return " > ".join(f"{name} {value:.3g}" for name, value in values.sort_values(ascending=False).items())


def _parameters(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Trained parameters: one row a unit, one column a method."""
    parameters = results.means(runs, "trained_parameters")
    if parameters.isna().any(axis=None):
        raise PliantError("some runs do not tell how many parameters they trained")
    return parameters


def _several(means: pd.DataFrame, what: str) -> None:
    if len(means) < FEWEST:
        raise PliantError(f"too few {what}: {len(means)}, the claim needs {FEWEST}")


def _count(
    claim: Claim, means: pd.DataFrame, first: str, second: str, least: float, strictly: bool, where: str
) -> Verdict:
    """Is `first` better than `second` often enough?"""
    better = means[first] > means[second]
    share = better.mean()
    worse = [_name(unit) for unit in means.index[means[first] < means[second]]]
    test = paired(means[first], means[second])
    return verdict(
        claim, bool(share > least if strictly else share >= least - 1e-9), f"{better.sum()} of {len(better)}",
        f"better mean on {'more than' if strictly else 'at least'} {least:.0%} of data sets and backbones {where}".rstrip(),
        f"{first} beats {second} on {better.sum()} of {len(better)}, by {100 * test.difference:+.2f} points on average (Wilcoxon, "
        f"one-sided: {_real(test.wilcoxon_greater, test.difference)}); {second} wins on {', '.join(worse) or 'none'}.",
    )  # fmt: skip


def _name(unit: Any) -> str:
    """Data set and backbone."""
    return f"{unit[0]} with {unit[1]}"


def _points(values: pd.Series) -> str:
    return listed((100 * values).to_dict())


def _real(p: float, difference: float) -> str:
    """What a one-sided test says of a difference: real, not told from chance, or pointing the other way."""
    said = "significant" if p < ALPHA else "in the other direction" if difference < 0 else "not significant"
    return f"{said}, p = {p:.2g}"
