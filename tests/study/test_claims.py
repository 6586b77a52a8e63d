"""Every check on results where its claim is true, where it is false, and where it cannot be told."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pliant.errors import PliantError
from pliant.study import claims
from pliant.study.claims import judge, judge_all, read_claims
from tests.conftest import SHARED

CLAIMS = {claim.id: claim for claim in read_claims()}
DATA = tuple(f"data{n}" for n in range(8))
COMPONENT_LEVELS = {"mha": 0.90, "fc1": 0.88, "fc2": 0.87, "ln2": 0.84, "ln1": 0.83, "probe": 0.6}
ADAPTER_LEVELS = {"adapter": 0.90, "full": 0.88, "head": 0.75}
PARAMETERS = {"adapter": 900, "full": 100_000, "head": 100, "ln1,ln2": 300, "ln2,ln1": 300, "lora": 3500}


def study(levels, data=DATA, seeds=(0, 1, 2), rates=(0.1, 0.2), sensitive=(), **fixed):
    """A results table. `levels` are mean test accuracies by method; a `sensitive` method varies ten times as much over
    rates and seeds as others."""
    rng = np.random.default_rng(0)
    rows = []
    for (method, level), name, rate, seed in product(levels.items(), data, rates, seeds):
        scale = 0.02 if method in sensitive else 0.002
        top1 = level - scale * (rate - 0.1) * 10 + scale * rng.uniform(-0.5, 0.5)
        rows.append({
            "data": name, "model": "m", "weights": None, "method": method, "optimizer": "adamw", "lr": rate, "seed": seed,
            "n_train": 1000, "val_top1": top1, "test_top1": top1, "train_top1": top1 + (0.09 if method == "full" else 0.02),
            "trained_parameters": PARAMETERS.get(method, 1000),
        })  # fmt: skip
    return pd.DataFrame(rows).assign(**fixed)


def swapped(levels, first, second):
    return {**levels, first: levels[second], second: levels[first]}


def ranks(levels):
    return pd.concat([study({"adapter": level}, rank=rank) for rank, level in levels.items()], ignore_index=True)


def grid(sensitive, alphas=(0.5, 1.0)):
    """Adapters over rates, weight decays and alphas."""
    tables = [
        study({"adapter": 0.9}, rates=(0.1, 0.3), sensitive=sensitive, weight_decay=decay, alpha=alpha, rank=16)
        for decay, alpha in product((0.0, 0.05), alphas)
    ]
    return pd.concat(tables, ignore_index=True)


def plasticity(means, bounds=None, half=0.01, **columns):
    """Means over blocks, then two blocks, as `Plasticity.rows` holds them."""
    bounds = bounds or {name: 10 * mean for name, mean in means.items()}
    rows = [
        {"block": block, "kind": "component", "component": name.upper(), "mean": mean, "low": mean - half, "high": mean + half,
         "largest": 1.5 * mean, "bound": bounds[name], "protocol": "shared-input", **columns}
        for block, (name, mean) in product((pd.NA, 0, 1), means.items())
    ]  # fmt: skip
    return pd.DataFrame(rows)


RANKED = {"mha": 3.0, "fc1": 2.0, "fc2": 2.1, "ln2": 0.8, "ln1": 0.7}
REVERSED = dict(zip(RANKED, reversed(RANKED.values()), strict=True))
ANY = study(ADAPTER_LEVELS)
ONE_DATA_SET = {"data": ("data0",)}

# Of each claim: (results, plasticity) where it holds, where it does not, and where it cannot be told, with the reason.
CASES = {
    "accuracy-follows-plasticity": (
        study(COMPONENT_LEVELS),
        study(swapped(COMPONENT_LEVELS, "fc2", "ln1")),
        (study(COMPONENT_LEVELS, data=DATA[:3], seeds=(0, 1)), "6 pairs of runs cannot give a significant Wilcoxon test, the claim needs 7"),
    ),
    "relative-gain": (
        study(COMPONENT_LEVELS),
        study(swapped(COMPONENT_LEVELS, "mha", "fc1")),
        (study({name: level for name, level in COMPONENT_LEVELS.items() if name != "probe"}), "no run of probe"),
    ),
    "robust-to-lr-and-seed": (
        study(COMPONENT_LEVELS, sensitive=("ln1", "ln2")),
        study(COMPONENT_LEVELS, sensitive=("mha", "fc1", "fc2")),
        (study(COMPONENT_LEVELS, rates=(0.1,)), "lr was not varied"),
    ),
    "small-data-beats-full": (
        study({"mha": 0.9, "full": 0.8}),
        study({"mha": 0.8, "full": 0.9}),
        (study({"mha": 0.9, "full": 0.8}, n_train=50_000), "no data set has at most 5,000"),
    ),
    "layernorm-vs-lora": (
        study({"ln2,ln1": 0.9, "lora": 0.8, "head": 0.7}, data=("cifar100",)),
        study({"ln1,ln2": 0.8, "lora": 0.9, "head": 0.7}, data=("cifar100",)),
        (study({"ln1,ln2": 0.9, "lora": 0.8, "head": 0.7}), "no run is on CIFAR-100"),
    ),
    "gain-over-head-only": (
        study(ADAPTER_LEVELS),
        pd.concat([study(ADAPTER_LEVELS), study(swapped(ADAPTER_LEVELS, "adapter", "head"), data=("hard",))]),
        (study(ADAPTER_LEVELS, **ONE_DATA_SET), "too few pairs of data set and backbone: 1"),
    ),
    "parameter-share": (
        study(ADAPTER_LEVELS),
        study(ADAPTER_LEVELS, trained_parameters=500),
        (study(ADAPTER_LEVELS, trained_parameters=np.nan), "do not tell how many parameters"),
    ),
    "beats-full": (
        pd.concat([study(ADAPTER_LEVELS, data=DATA[:6]), study(swapped(ADAPTER_LEVELS, "adapter", "full"), data=DATA[6:])]),
        pd.concat([study(ADAPTER_LEVELS, data=DATA[:4]), study(swapped(ADAPTER_LEVELS, "adapter", "full"), data=DATA[4:])]),
        (study({"adapter": 0.9}), "no run of full"),
    ),
    "rank-elbow": (
        ranks({8: 0.80, 16: 0.90, 32: 0.91, 64: 0.911}),
        ranks({8: 0.80, 16: 0.83, 32: 0.86, 64: 0.89}),
        (ranks({8: 0.80, 16: 0.90, 32: 0.91}), "no adapters of rank 64"),
    ),
    "train-test-gap": (
        study(ADAPTER_LEVELS),
        study(swapped(ADAPTER_LEVELS, "adapter", "full"), train_top1=0.95),
        (study(ADAPTER_LEVELS, train_top1=np.nan), "no run tells its accuracy on training data"),
    ),
    "hyperparameter-robustness": (
        grid(sensitive=()),
        grid(sensitive=("adapter",)),
        (grid(sensitive=(), alphas=(1.0,)), "alpha was not varied"),
    ),
}  # fmt: skip

PLASTICITY_CASES = {
    "plasticity-ranking": (
        plasticity(RANKED),
        plasticity({**RANKED, "fc1": 4.0}),
        (plasticity(RANKED).assign(low=np.nan), "lacks mean or low or high"),
    ),
    "plasticity-threshold": (
        plasticity(RANKED),
        plasticity(RANKED, half=0.4),
        (plasticity(RANKED)[lambda table: table["component"] != "MHA"], "of a component"),
    ),
    "bounds-order": (
        plasticity(RANKED),
        plasticity(RANKED, bounds={**{name: 10 * mean for name, mean in RANKED.items()}, "ln1": 1.0}),
        (plasticity(RANKED).assign(bound=np.nan), "lacks bound"),
    ),
}  # fmt: skip


def logged(norms, losses, **changes):
    """Runs of all components over eight data sets, two rates and seeds, and their steps: `norms` and `losses` (of the
    last of 20 steps, falling in a line from 2) by component."""
    results = study(dict.fromkeys(norms, 0.9), head_lr=0.1)
    results = results.assign(run=[f"r{n}" for n in range(len(results))], **changes)
    rng = np.random.default_rng(1)
    steps = [
        pd.DataFrame({"run": run, "step": range(1, 41), "grad_norm": norms[method] * rng.uniform(0.8, 1.2, 40),
                      "loss": np.r_[np.linspace(2, losses[method], 20), np.full(20, 9.0)]})
        for run, method in zip(results["run"], results["method"], strict=True)
    ]  # fmt: skip
    return results, {"steps": pd.concat(steps)}


def started(identical=True, small_loss=2.0):
    """Adapters of both inits over eight data sets and seeds, with how they began."""
    results = pd.concat([study({"adapter": 0.9}, init=init, rates=(0.1,)) for init in ("zero", "small")])
    results = results.assign(run=[f"r{n}" for n in range(len(results))])
    losses = np.where(results["init"] == "zero", 1.5, small_loss)
    zero = results["init"] == "zero"
    return results, {
        "starts": pd.DataFrame({"run": results["run"], "identical": zero & identical, "first_loss": losses})
    }


NORMS = {"mha": 5.0, "fc1": 4.0, "fc2": 3.0, "ln2": 2.0, "ln1": 1.0}
LOSSES = {"mha": 0.2, "fc1": 0.4, "fc2": 0.6, "ln2": 1.0, "ln1": 1.2}


def test_gradients_and_the_fall_of_the_loss():
    claim = CLAIMS["larger-gradients"]
    verdict = judge(claim, *logged(NORMS, LOSSES))
    assert verdict.outcome == "holds", verdict.sentence
    assert "24 pairs" in verdict.test and "Holm over 12" in verdict.test
    # A line from 2 to 0.2 over 20 steps lies 0.9 below its start on average; later steps do not count.
    assert "mha 0.90" in verdict.ours and "ln1 0.40" in verdict.ours
    for norms, losses, said in (
        (swapped(NORMS, "fc2", "ln1"), LOSSES, "4 show larger gradients and 6 a steeper fall"),
        (NORMS, swapped(LOSSES, "mha", "ln1"), "6 show larger gradients and 2 a steeper fall"),
    ):
        verdict = judge(claim, *logged(norms, losses))
        assert verdict.outcome == "does not hold"
        assert said in verdict.sentence
    results, measured = logged(NORMS, LOSSES)
    few = results[results["data"].isin(DATA[:2])]
    other_rates = results.assign(head_lr=np.where(results["method"] == "ln1", 0.5, 0.1))
    for found, tables, said in (
        (results, {}, "what runs logged of their steps is not at hand"),
        (few, measured, "6 pairs of runs cannot give a significant Wilcoxon test"),
        (other_rates, measured, "have the same rate, data, seed and other settings"),
        (results[results["method"] != "ln2"], measured, "no runs of mha, fc1, fc2, ln2, ln1"),
    ):
        verdict = judge(claim, found, tables)
        assert verdict.outcome == "not tested" and said in verdict.sentence


def test_identity_at_the_start():
    claim = CLAIMS["identity-at-start"]
    verdict = judge(claim, *started())
    assert verdict.outcome == "holds", verdict.sentence
    assert "24 of 24 runs start as the backbone; first-epoch loss: zero 1.50, small 2.00" in verdict.ours
    assert "with small random values 0 of 24" in verdict.sentence
    verdict = judge(claim, *started(identical=False))
    assert verdict.outcome == "does not hold" and "With zero, 0 of 24" in verdict.sentence
    verdict = judge(claim, *started(small_loss=1.0))
    assert verdict.outcome == "does not hold" and "larger with zero: significant" in verdict.sentence
    results, measured = started()
    unknown = {"starts": measured["starts"].assign(identical=None)}
    for found, tables, said in (
        (results, {}, "what runs logged of their starts is not at hand"),
        (results[results["init"] == "zero"], measured, "no runs of zero, small"),
        (results[results["init"] == "small"], measured, "no adapters with an up-projection of zero"),
        (results, unknown, "do not tell whether they start as the backbone"),
        (results[results["data"] == "data0"], measured, "3 pairs of runs cannot give"),
    ):
        verdict = judge(claim, found, tables)
        assert verdict.outcome == "not tested" and said in verdict.sentence


@pytest.mark.parametrize("claim", CASES)
def test_results_where_it_holds(claim):
    verdict = judge(CLAIMS[claim], CASES[claim][0])
    assert verdict.outcome == "holds", verdict.sentence
    assert verdict.paper
    assert verdict.ours
    assert verdict.test
    assert "nan" not in verdict.ours + verdict.test + verdict.sentence


@pytest.mark.parametrize("claim", CASES)
def test_results_where_it_does_not(claim):
    verdict = judge(CLAIMS[claim], CASES[claim][1])
    assert verdict.outcome == "does not hold", verdict.sentence


@pytest.mark.parametrize("claim", CASES)
def test_results_that_cannot_tell(claim):
    results, reason = CASES[claim][2]
    verdict = judge(CLAIMS[claim], results)
    assert verdict.outcome == "not tested", verdict.sentence
    assert reason in verdict.sentence
    assert not verdict.ours


@pytest.mark.parametrize("claim", PLASTICITY_CASES)
def test_plasticity(claim):
    holds, fails, (untold, reason) = PLASTICITY_CASES[claim]
    assert judge(CLAIMS[claim], ANY, {"plasticity": holds}).outcome == "holds"
    assert judge(CLAIMS[claim], ANY, {"plasticity": fails}).outcome == "does not hold"
    verdict = judge(CLAIMS[claim], ANY, {"plasticity": untold})
    assert verdict.outcome == "not tested"
    assert reason in verdict.sentence
    assert judge(CLAIMS[claim], ANY).outcome == "not tested"


def test_every_claim_is_tried():
    assert {*CASES, *PLASTICITY_CASES, "larger-gradients", "identity-at-start"} == set(CLAIMS)


def test_little_data_supports_nothing():
    """No claim holds on the strength of missing runs: of one run, every one is untested."""
    one = study({"mha": 0.9}, data=("a",), seeds=(0,), rates=(0.1,))
    assert {verdict.outcome for verdict in judge_all(one)} == {"not tested"}
    assert {verdict.outcome for verdict in judge_all(one.assign(test_top1=np.nan))} == {"not tested"}


def test_chance_supports_nothing():
    """Where no method is better than another, tests may not find that one is."""
    results = study(dict.fromkeys(COMPONENT_LEVELS, 0.8))
    assert judge(CLAIMS["accuracy-follows-plasticity"], results).outcome == "does not hold"
    assert judge(CLAIMS["robust-to-lr-and-seed"], results).outcome == "does not hold"
    assert (
        judge(CLAIMS["train-test-gap"], study(ADAPTER_LEVELS, train_top1=0.9, test_top1=0.8)).outcome == "does not hold"
    )


def test_accuracy_needs_more_than_many_seeds_of_one_data_set():
    verdict = judge(CLAIMS["accuracy-follows-plasticity"], study(COMPONENT_LEVELS, data=("a",), seeds=tuple(range(10))))
    assert verdict.outcome == "not tested"


def test_one_seed_is_no_deviation():
    verdict = judge(CLAIMS["robust-to-lr-and-seed"], study(COMPONENT_LEVELS, seeds=(0,)))
    assert verdict.outcome == "not tested"
    assert "one seed" in verdict.sentence


def test_the_other_direction_is_told_from_chance():
    assert "in the other direction" in judge(CLAIMS["train-test-gap"], CASES["train-test-gap"][1]).sentence
    close = study(ADAPTER_LEVELS, rates=(0.1,))
    gap = np.where(close["method"] == "full", np.resize([0.012, -0.011, 0.010, -0.009], len(close)), 0)
    assert (
        "not significant" in judge(CLAIMS["train-test-gap"], close.assign(train_top1=close["test_top1"] + gap)).sentence
    )


def test_failed_runs_are_no_robustness():
    results = study(COMPONENT_LEVELS, sensitive=("ln1", "ln2"))
    results.loc[(results["method"] == "mha") & (results["lr"] == 0.2), ["val_top1", "test_top1"]] = np.nan
    verdict = judge(CLAIMS["robust-to-lr-and-seed"], results)
    assert verdict.outcome == "not tested"
    assert "24 runs over lr failed" in verdict.sentence


def test_different_grids_are_no_fair_match():
    results = study(COMPONENT_LEVELS, rates=(0.1, 0.15, 0.2), sensitive=("ln1", "ln2"))
    results = results[(results["method"] != "mha") | (results["lr"] != 0.2)]
    assert "no fair match" in judge(CLAIMS["robust-to-lr-and-seed"], results).sentence


def test_an_axis_swept_for_adapters_alone_gives_no_advantage():
    results = pd.concat([
        study({"adapter": 0.8, "full": 0.85}, rank=16),
        study({"adapter": 0.9}, rank=64),
    ])  # fmt: skip
    results["rank"] = results["rank"].where(results["method"] == "adapter")
    assert judge(CLAIMS["beats-full"], results).outcome == "does not hold"


def test_selection_is_by_validation():
    """A rate that is best on test alone must not make adapters win."""
    results = study({"adapter": 0.8, "full": 0.85})
    lucky = (results["method"] == "adapter") & (results["lr"] == 0.2)
    results.loc[lucky, "test_top1"] = 0.99
    assert judge(CLAIMS["beats-full"], results).outcome == "does not hold"


def test_a_broken_bound_is_found():
    table = plasticity(RANKED)
    table.loc[table.index[-1], "largest"] = 100.0
    verdict = judge(CLAIMS["bounds-order"], ANY, {"plasticity": table})
    assert verdict.outcome == "does not hold"
    assert "1 of 10 bounds are broken" in verdict.sentence


def test_every_measurement_must_agree():
    both = pd.concat([plasticity(RANKED, data="a", model="m"), plasticity(REVERSED, data="b", model="m")])
    verdict = judge(CLAIMS["plasticity-ranking"], ANY, {"plasticity": both})
    assert verdict.outcome == "does not hold"
    assert "1 of 2 measurements" in verdict.sentence
    unnamed = pd.concat([plasticity(RANKED), plasticity(REVERSED)])
    assert "two rows of a component" in judge(CLAIMS["plasticity-ranking"], ANY, {"plasticity": unnamed}).sentence


def test_the_papers_protocol_counts():
    both = pd.concat([plasticity(RANKED), plasticity(REVERSED).assign(protocol="in-situ")])
    assert judge(CLAIMS["plasticity-ranking"], ANY, {"plasticity": both}).outcome == "holds"


def test_means_alone_do_not_show_every_bound():
    means = plasticity(RANKED)[lambda table: table["block"].isna()].drop(columns="block")
    assert "over blocks only" in judge(CLAIMS["bounds-order"], ANY, {"plasticity": means}).sentence
    assert judge(CLAIMS["plasticity-ranking"], ANY, {"plasticity": means}).outcome == "holds"


def test_the_papers_figures():
    paper = judge(CLAIMS["relative-gain"], ANY).paper
    assert paper == "mha 53.44, fc1 53.27, fc2 52.70, ln2 51.27, ln1 51.17, all 53.89 (mean % over 11 data sets)"
    assert "14.9 points" in judge(CLAIMS["gain-over-head-only"], ANY).paper


def test_percent_and_missing_columns_are_errors():
    with pytest.raises(PliantError, match="fractions"):
        judge_all(ANY.assign(test_top1=88.0))
    with pytest.raises(PliantError, match="no column 'method'"):
        judge_all(ANY.drop(columns="method"))


def test_the_packages_copy_is_the_shared_file():
    path = SHARED / "paper" / "claims.yaml"
    if not path.is_file():
        pytest.skip("needs the shared file of claims")
    assert Path(claims.__file__).with_name("claims.yaml").read_bytes() == path.read_bytes()


FILE = "sources: {s: a paper}\nclaims:\n  - {id: a, source: s, says: something}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("says", "sayz"), "says"),
        (FILE + "extra: 1\n", "extra"),
        (FILE.replace("something}", "something, figures: 3}"), "claims.0.figures"),
        (FILE.replace("source: s", "source: t"), "source 't'"),
        (FILE + "  - {id: a, source: s, says: again}\n", "stands twice"),
        ("claims: [", "not readable as YAML"),
        ("- 1\n", "claims.yaml"),
        ("!!python/object/apply:os.getcwd []\n", "not readable as YAML"),
    ],
)
def test_claims_file_is_strict(tmp_path, text, message):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(PliantError, match=message):
        read_claims(path)


def test_claims_file_missing(tmp_path):
    with pytest.raises(PliantError, match="no such file"):
        read_claims(tmp_path / "none.yaml")
