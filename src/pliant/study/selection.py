"""Choosing settings on validation data, and what choosing them on test data would have claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pliant.errors import PliantError
from pliant.study.statistics import check_columns, check_single_runs, over_seeds, spread

ADAPTER = "adapter"
REFERENCE = {"rank": 16, "alpha": 1.0, "every": 1, "init": "zero"}
"""The adapters that the claims of arXiv 2603.14706 are about."""
AXES = (
    "optimizer", "lr", "head_lr", "weight_decay", "alpha", "rank", "every", "init", "targets", "blocks", "epochs", "steps",
    "batch_size",
)  # fmt: skip
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Selection:
    """What was chosen.

    Attributes:
        table: one row a group (data set, backbone, method). Columns: the group's; the axes with the chosen values;
            settings, how many were compared; incomplete, how many were left out for lack of seeds; tied, how many
            others were as good on validation; seeds; val_mean; test_mean and test_std of the chosen setting; then what
            choosing on test would have said: claimed_<axis>, claimed_mean, claimed_std; and optimism, claimed_mean -
            test_mean. Standard deviations are NaN with one seed; what is claimed is NaN unless every compared setting
            was tested.
        runs: the rows of the results table that belong to the chosen settings.
        axes: what was chosen.
    """

    table: pd.DataFrame
    runs: pd.DataFrame
    axes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What was chosen how, for a report."""
        said = (
            f"{', '.join(self.axes)} chosen by mean validation accuracy over seeds; "
            "the test accuracy is that of the chosen setting"
        )
        if (self.table["settings"] == 1).all():
            return "There was one setting a method, so nothing was chosen."
        optimism = self.table.loc[self.table["settings"] > 1, "optimism"].dropna()
        if optimism.empty:
            return f"{said}. Not all settings were tested, so what choosing on test would have claimed is unknown."
        mean, largest = 100 * optimism.mean(), 100 * optimism.max()
        return f"{said}. Choosing on test would have claimed {mean:.2f} points more on average, {largest:.2f} at most."


def select(results: pd.DataFrame, axes: Sequence[str], by: Sequence[str] = ("data", "model", "method")) -> Selection:
    """Choose, in every group of runs that agree in `by`, the setting (values of `axes`) that is best on validation.

    Settings are compared by mean validation accuracy over seeds, those alone that have as many seeds as the most
    complete one of the group: a mean over the lucky seeds would be no fair match. Of tied settings the one with the
    lowest values is taken. Test accuracy has no part in the choice. A group with one setting needs no validation
    accuracy. Choosing on test, for comparison, takes the best mean test accuracy in the same way.

    Raises:
        PliantError: a column is missing; runs of one seed agree in `by` and `axes`; or a group has several settings and
            no validation accuracy.
    """
    keys, axes = list(by), list(axes)
    check_columns(results, [*keys, *axes, "seed", "val_top1", "test_top1"])
    check_single_runs(results, [*keys, *axes, "seed"])
    # The order of `_settings` is that of the groups, so that a group's number is its row's label there.
    setting = results.groupby([*keys, *axes], dropna=False, sort=True).ngroup().to_numpy()
    settings = _settings(results, [*keys, *axes])
    choices = pd.DataFrame([_choice(group, keys) for _, group in settings.groupby(keys, dropna=False)])
    chosen = settings.loc[choices["chosen"]].reset_index(drop=True)
    claimed = settings.reindex(choices["claimed"]).reset_index(drop=True)
    table = chosen[[*keys, *axes]].assign(
        **choices[["settings", "incomplete", "tied"]],
        seeds=chosen["test_seeds"], val_mean=chosen["val_mean"],
        test_mean=chosen["test_mean"], test_std=chosen["test_std"],
        **{f"claimed_{axis}": claimed[axis] for axis in axes},
        claimed_mean=claimed["test_mean"], claimed_std=claimed["test_std"],
        optimism=claimed["test_mean"] - chosen["test_mean"],
    )  # fmt: skip
    return Selection(table, results[np.isin(setting, choices["chosen"])], tuple(axes))


def _settings(results: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """One row a setting in the order of its values: `columns`, and the accuracies over its seeds."""
    grouped = results.groupby(columns, dropna=False, sort=True)
    return grouped.agg(
        val_mean=("val_top1", "mean"), val_seeds=("val_top1", "count"),
        test_mean=("test_top1", "mean"), test_std=("test_top1", "std"), test_seeds=("test_top1", "count"),
    ).reset_index()  # fmt: skip


def _choice(settings: pd.DataFrame, keys: list[str]) -> dict[str, float]:
    """The labels of the settings that are best on validation (`chosen`) and on test (`claimed`, else NaN)."""
    complete = settings[settings["val_seeds"] == settings["val_seeds"].max()]
    if len(complete) > 1 and complete["val_mean"].isna().all():
        group = ", ".join(f"{key} {settings[key].iloc[0]}" for key in keys)
        raise PliantError(
            f"{group}: no run has a validation accuracy to choose a setting by; run them again with --retry"
        )
    best = _best(complete["val_mean"]) if len(complete) > 1 else complete.index
    # As published code would: among the same settings, by test accuracy. Unknown where some were never tested.
    tested = (complete["test_seeds"] == complete["test_seeds"].max()) & (complete["test_seeds"] > 0)
    return {
        "chosen": best[0], "tied": len(best) - 1, "settings": len(complete), "incomplete": len(settings) - len(complete),
        "claimed": _best(complete["test_mean"])[0] if tested.all() else np.nan,
    }  # fmt: skip


def _best(means: pd.Series) -> pd.Index:
    """Labels of the highest mean, in the order of the settings; more than one where they tie."""
    return means.index[means >= means.max() - _ROUNDING]


@dataclass(frozen=True)
class Results:
    """A results table as the checks of claims read it, one row a run.

    Raises:
        PliantError: on creation, where a column that every run has is missing, or accuracies are no fractions.
    """

    table: pd.DataFrame

    def __post_init__(self) -> None:
        check_columns(self.table, ["data", "model", "method", "seed", "test_top1"])
        for column in ("val_top1", "test_top1", "train_top1"):
            if column in self.table and ((self.table[column] < 0) | (self.table[column] > 1)).any():
                raise PliantError(f"the results table's {column} must lie between 0 and 1: fractions, not percent")

    @property
    def unit(self) -> list[str]:
        """The columns that make one observation: methods are compared within them."""
        return [name for name in ("data", "model", "weights", "n_train") if name in self.table]

    @property
    def axes(self) -> list[str]:
        return [name for name in AXES if name in self.table]

    @cached_property
    def all_sizes(self) -> pd.DataFrame:
        """All runs; the parts that a method's name lists are put in one order. Adds `base`, the data without `[n=500]`."""
        names = self.table["method"].map(lambda name: ",".join(sorted(part.strip() for part in name.split(","))))
        return self.table.assign(method=names, base=self.table["data"].str.replace(r"\[n=\d+\]$", "", regex=True))

    @cached_property
    def largest(self) -> pd.DataFrame:
        """The runs with the largest training set of their data set."""
        runs = self.all_sizes
        if "n_train" not in runs:
            return runs
        return runs[
            runs["n_train"].isna() | (runs["n_train"] == runs.groupby(["base", "model"])["n_train"].transform("max"))
        ]

    def chosen(self, *methods: str, runs: pd.DataFrame | None = None) -> pd.DataFrame:
        """Finished runs of the settings that validation chose for `methods`, in units that have all of these methods.

        Of `runs`, by default those of the largest training sets. Adapters are the paper's own where a unit has such, so
        that an axis which was swept for one method alone gives it no advantage.

        Raises:
            PliantError: there are none, or a setting cannot be chosen.
        """
        runs = self.largest if runs is None else runs
        runs = at_reference(runs[runs["method"].isin(methods)], self.unit)
        if absent := [method for method in methods if method not in set(runs["method"])]:
            raise PliantError(f"no run of {', '.join(absent)}")
        chosen = select(runs, self.axes, [*self.unit, "method"]).runs
        chosen = chosen[chosen["test_top1"].notna()]
        found = chosen.groupby(self.unit, dropna=False)["method"].transform("nunique")
        if not (found == len(methods)).any():
            raise PliantError(f"no data set and backbone has finished runs of all of {', '.join(methods)}")
        return chosen[found == len(methods)]

    def means(self, runs: pd.DataFrame, value: str = "test_top1") -> pd.DataFrame:
        """Means over seeds: one row a unit, one column a method."""
        return over_seeds(runs, [*self.unit, "method"], value).pivot(index=self.unit, columns="method", values="mean")

    def spread(self, runs: pd.DataFrame, axis: str) -> pd.DataFrame:
        """Spread of test accuracy over one axis with the others held fixed, averaged over these.

        Returns:
            One row a unit and method: those columns and spread.

        Raises:
            PliantError: the axis was not varied, not everywhere over as many values, or with runs that failed.
        """
        check_columns(runs, [axis])
        by = [*self.unit, "method"]
        # The head's rate follows the body's.
        others = [name for name in self.axes if name != axis and not (axis == "lr" and name == "head_lr")]
        table = spread(runs, axis, [*by, *others])
        table = table[table["values"] > 1]
        if table.empty:
            raise PliantError(f"{axis} was not varied")
        if table["values"].nunique() > 1:
            few, many = table["values"].min(), table["values"].max()
            raise PliantError(
                f"{axis} was varied over {few} values for some and {many} for others, which is no fair match"
            )
        if table["failed"].any():
            raise PliantError(
                f"{table['failed'].sum()} runs over {axis} failed; without them the spread looks too small"
            )
        return table.groupby(by, dropna=False)["spread"].mean().reset_index()


def at_reference(runs: pd.DataFrame, unit: list[str], but: Sequence[str] = ()) -> pd.DataFrame:
    """`runs` without the adapters that differ from REFERENCE (in columns other than `but`), where a unit has any that do not."""
    adapters = runs["method"] == ADAPTER
    fits = pd.Series(True, index=runs.index)
    for name, value in REFERENCE.items():
        if name in runs and name not in but:
            fits &= runs[name].isna() | (runs[name] == value)
    has_any = (adapters & fits).groupby([runs[name] for name in unit], dropna=False).transform("any")
    return runs[~adapters | fits | ~has_any]
