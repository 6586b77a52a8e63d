"""Checks of how training begins: gradient norms, the fall of the loss, and whether adapters start as the identity."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from pliant.errors import PliantError
from pliant.study import statistics
from pliant.study.checks.common import ALPHA, COMPONENTS, HIGH, LOW, enough, told
from pliant.study.claims import Claim, Measurements, Verdict, check_of, listed, verdict
from pliant.study.selection import ADAPTER, Results
from pliant.study.statistics import paired, paired_tests

FIRST_STEPS = 20
"""Steps whose gradient norm and loss are compared."""


@check_of("larger-gradients")
def _gradients(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    steps = _measured(measurements, "steps", ["run", "step", "loss", "grad_norm"])
    runs = _alike(results, results.largest[results.largest["method"].isin(COMPONENTS)], "method", COMPONENTS)
    runs = runs.merge(_beginnings(steps), on="run")
    # Means over the settings that all components ran: observations are data sets and seeds.
    unit = [*results.unit, "seed"]
    runs = runs.groupby([*unit, "method"], dropna=False)[["log_norm", "fall"]].mean().reset_index()
    family = list(product(HIGH, LOW))
    tests = [paired_tests(runs, family, unit, value) for value in ("log_norm", "fall")]
    pairs = int(tests[0]["pairs"].min())
    enough(pairs, 2 * len(family))
    p = np.split(statistics.holm(pd.concat([table["wilcoxon_greater"] for table in tests])), 2)
    norms, falls = np.exp(runs.groupby("method")["log_norm"].mean()), runs.groupby("method")["fall"].mean()
    order = list(COMPONENTS)
    return verdict(
        claim, bool((np.concatenate(p) < ALPHA).all()),
        f"gradient norm: {listed(norms[order].to_dict())}; fall of the loss: {listed(falls[order].to_dict())}",
        f"Wilcoxon, one-sided, {pairs} pairs (data sets x seeds; same rate, batches and start) over the first {FIRST_STEPS} "
        f"steps, Holm over {2 * len(family)}",
        f"Of the {len(family)} comparisons of MHA, FC1, FC2 with the LayerNorms, {(p[0] < ALPHA).sum()} show larger gradients "
        f"and {(p[1] < ALPHA).sum()} a steeper fall of the loss. The norm is that of all trained parameters, head included.",
    )  # fmt: skip


@check_of("identity-at-start")
def _identity(claim: Claim, results: Results, measurements: Measurements) -> Verdict:
    starts = _measured(measurements, "starts", ["run", "identical", "first_loss"])
    statistics.check_columns(results.table, ["init", "run"])
    runs = results.all_sizes[results.all_sizes["method"] == ADAPTER]
    runs = runs[runs["test_top1"].notna()].merge(starts, on="run")
    zero = runs[runs["init"] == "zero"]
    if zero.empty:
        raise PliantError("no adapters with an up-projection of zero")
    if zero["identical"].isna().any():
        raise PliantError("some runs do not tell whether they start as the backbone")
    same = int(zero["identical"].astype(bool).sum())
    both = _alike(results, runs, "init", ("zero", "small"))
    unit = [*results.unit, "seed"]
    means = both.groupby([*unit, "init"], dropna=False)["first_loss"].mean().unstack("init").dropna()
    enough(len(means))
    test = paired(means["zero"], means["small"])
    worse = test.wilcoxon_greater
    small = both.loc[both["init"] == "small", "identical"]
    return verdict(
        claim, same == len(zero) and not worse < ALPHA,
        f"{same} of {len(zero)} runs start as the backbone; first-epoch loss: {listed(means[['zero', 'small']].mean().to_dict())}",
        f"logits equal bit for bit before the first step in every run; Wilcoxon, one-sided, {len(means)} pairs: the first "
        "epoch's loss is not larger than from small random values",
        f"With zero, {same} of {len(zero)} adapted networks give the backbone's logits bit for bit, with small random values "
        f"{int(small.fillna(False).astype(bool).sum())} of {len(small)}. The first epoch's loss differs by {test.difference:+.4f} "
        f"(larger with zero: {told(worse, test.difference)}).",
    )  # fmt: skip


def _measured(measurements: Measurements, name: str, columns: list[str]) -> pd.DataFrame:
    if name not in measurements:
        raise PliantError(f"what runs logged of their {name} is not at hand")
    table = measurements[name]
    statistics.check_columns(table, columns, f"table of {name}")
    return table


def _alike(results: Results, runs: pd.DataFrame, column: str, values: tuple[str, ...]) -> pd.DataFrame:
    """Those of `runs` that have a twin for each of `values` in `column`, and else the same unit, seed and settings.

    So they share their rate, the head's as well, their batches and their new head.

    Raises:
        PliantError: there are none.
    """
    statistics.check_columns(runs, ["run", column])
    settings = [name for name in (*results.axes, "augment", "views", "img_size") if name in runs and name != column]
    runs = runs[runs[column].isin(values) & runs["test_top1"].notna()]
    if "lr" in runs:
        runs = runs[runs["lr"].notna()]  # each searched its own
    twins = runs.groupby([*results.unit, "seed", *settings], dropna=False)[column].transform("nunique")
    if not (twins == len(values)).any():
        raise PliantError(f"no runs of {', '.join(values)} have the same rate, data, seed and other settings")
    return runs[twins == len(values)]


def _beginnings(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a run: `log_norm`, the mean logarithm of the gradient norm over the first steps, and `fall`, by how much
    the loss of these steps is on average below that of the first one. Runs of one start and the same batches compare."""
    first = steps[steps["step"] <= FIRST_STEPS].sort_values(["run", "step"])
    if (first["grad_norm"] <= 0).any() or not np.isfinite(first[["loss", "grad_norm"]]).all(axis=None):
        raise PliantError("a run logged a gradient norm of zero, or a loss that is no number")
    grouped = first.assign(log_norm=np.log(first["grad_norm"])).groupby("run")
    found = grouped.agg(log_norm=("log_norm", "mean"), start=("loss", "first"), mean=("loss", "mean"))
    return found.assign(fall=found["start"] - found["mean"])[["log_norm", "fall"]].reset_index()
