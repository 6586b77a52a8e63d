"""Checks of what tuning one component type brings (arXiv 2602.06883), from a results table."""

from __future__ import annotations

from itertools import product

import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.checks.common import (
    ALPHA,
    COMPONENTS,
    FULL,
    HEAD,
    HIGH,
    LORA,
    LOW,
    NORMS,
    PROBE,
    count_better,
    enough,
    parameters_of,
    points,
    several,
    told,
    unit_name,
)  # fmt: skip
from pliant.study.claims import Claim, Measurements, Verdict, check_of, listed, verdict
from pliant.study.selection import Results
from pliant.study.statistics import hierarchical_interval, paired, paired_tests, relative_gain

FEWER = 15
"""Times fewer parameters than LoRA's that the LayerNorms are claimed to have."""
SMALL = 5000
"""Training images up to which a data set is called small: Flowers102 and Pet are, DomainNet and CIFAR are not."""


@check_of("accuracy-follows-plasticity")
def _accuracy(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(*COMPONENTS)
    means = results.means(runs)
    several(means, "pairs of data set and backbone")
    family = list(product(HIGH, LOW))
    tests = paired_tests(runs, family, [*results.unit, "seed"])
    pairs = int(tests["pairs"].min())
    enough(pairs, len(family))
    passed = tests["wilcoxon_greater_holm"] < ALPHA
    weakest = tests.sort_values("wilcoxon_greater_holm").iloc[-1]
    by_data = paired_tests(runs, family, results.unit)["wilcoxon_greater_holm"].max()
    lead = 100 * (means[list(HIGH)].mean(axis=1) - means[list(LOW)].mean(axis=1))
    return verdict(
        claim, bool(passed.all()), points(means.mean()),
        f"Wilcoxon, one-sided, {pairs} pairs (data sets x seeds), Holm over {len(family)}; over data sets alone, largest "
        f"p = {by_data:.2g}",
        f"{passed.sum()} of {len(family)} comparisons of MHA, FC1, FC2 with the LayerNorms are significant; the weakest is "
        f"{weakest['first']} against {weakest['second']} with {100 * weakest['difference']:+.2f} points, p = "
        f"{weakest['wilcoxon_greater_holm']:.2g}. The lead is largest, {lead.max():+.2f} points, on {unit_name(lead.idxmax())}.",
    )  # fmt: skip


@check_of("relative-gain")
def _relative_gain(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    runs = results.chosen(*COMPONENTS, PROBE)
    means = results.means(runs)
    several(means, "relative gains")
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
        f"{overall[runner_up]:.2f} %; MHA against {runner_up}: {told(test.wilcoxon_greater, test.difference)}.",
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
    enough(min(len(rates), len(deviations)), family=2)
    tests = [paired(table[list(LOW)].mean(axis=1), table[list(HIGH)].mean(axis=1)) for table in (rates, deviations)]
    p = statistics.holm([test.wilcoxon_greater for test in tests])
    return verdict(
        claim, bool((p < ALPHA).all()),
        f"over rates: {points(rates.mean())}; over seeds: {points(deviations.mean())} (points)",
        f"Wilcoxon, one-sided, over {len(rates)} data sets: LayerNorms vary more than MHA, FC1, FC2; Holm over 2",
        f"LayerNorms minus the others: {100 * tests[0].difference:+.2f} points of spread over learning rates "
        f"({told(p[0], tests[0].difference)}), {100 * tests[1].difference:+.2f} of deviation over seeds "
        f"({told(p[1], tests[1].difference)}).",
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
    several(means, f"data sets of at most {SMALL:,} images")
    return count_better(
        claim, means, "mha", FULL, least=0.5, strictly=True, where=f"with at most {SMALL:,} training images"
    )


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
    parameters = parameters_of(results, chosen)
    ratio = ((parameters[LORA] - parameters[HEAD]) / (parameters[NORMS] - parameters[HEAD])).mean()
    return verdict(
        claim, bool(test["t_greater"] < ALPHA and ratio >= FEWER),
        f"{points(results.means(chosen)[[NORMS, LORA]].mean())}; {ratio:.1f} times fewer parameters",
        f"paired t, one-sided, over {test['pairs']} backbones x seeds; parameters without the head, at least {FEWER} times fewer",
        f"On CIFAR-100 the LayerNorms are {100 * test['difference']:+.2f} points from LoRA "
        f"({told(test['t_greater'], test['difference'])}) with {ratio:.1f} times fewer parameters.",
    )  # fmt: skip
