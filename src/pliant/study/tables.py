"""What a report tells of a results table, as tables: accuracy, tests, selection, robustness, gap, ranks, Pareto front.

Accuracies and their differences are fractions. A unit is what methods are compared on: a data set with a backbone, its
weights, an image size and a training-set size. The order of the results table's rows has no influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pliant.study.pareto import elbow, pareto_front
from pliant.study.selection import Results, Selection, select
from pliant.study.statistics import (
    LEVEL,
    bootstrap_interval,
    hierarchical_interval,
    over_seeds,
    paired_tests,
    relative_gain,
    smallest_p,
    spread,
    train_test_gap,
)  # fmt: skip

PROBE = "probe"
ALPHA = 1 - LEVEL
UNIT = ("data", "model", "weights", "img_size", "n_train")
SEVERAL = 2
"""Values that make an axis."""
_ORDER = ("probe", "head", "ln1", "ln2", "ln1,ln2", "fc1", "fc2", "mha", "adapter", "lora", "full", "all")
"""Methods from few to many trained parameters, as far as they are known; others follow by name."""
_OUTCOMES = ("run", "error", "val_top1", "test_top1", "train_top1", "trained_parameters")
_PREPARED = ("base", "unit", "failed")


@dataclass(frozen=True)
class Tables:
    """All tables of one results table (`pliant.study`), which may tell of each failed run why, in a column `error`.

    Raises:
        PliantError: while a table is made, where the results lack a needed column, or hold two runs of one setting and
            seed.
    """

    results: pd.DataFrame

    @cached_property
    def table(self) -> pd.DataFrame:
        """All runs in a fixed order, with every optional column, and `unit`, its name, and `failed`."""
        table = Results(self.results).all_sizes
        nullable = [name for name in table if isinstance(table[name].dtype, pd.Int64Dtype)]
        table = table.astype(dict.fromkeys(nullable, float))
        missing = [name for name in ("error", *_OUTCOMES) if name not in table]
        table = table.assign(**dict.fromkeys(missing, np.nan))
        failed = table["error"].notna() | (table["test_top1"].isna() & table["val_top1"].isna())
        table = table.assign(failed=failed, unit=_named(table), rank_of_method=table["method"].map(_order))
        order = [name for name in ("rank_of_method", "method", *self._units, *self._settings, "seed") if name in table]
        return table.sort_values(order, kind="stable", key=_sortable, ignore_index=True).drop(columns="rank_of_method")

    @property
    def _units(self) -> list[str]:
        return [name for name in UNIT if name in self.results]

    @property
    def _settings(self) -> list[str]:
        """Columns that hold settings of a run other than its unit, method and seed."""
        apart = {*UNIT, *_OUTCOMES, *_PREPARED, "method", "seed"}
        return [str(name) for name in self.results if name not in apart]

    @property
    def settings(self) -> list[str]:
        """All columns that say what was run."""
        return ["data", *self._units[1:], "method", *self._settings, "seed"]

    @cached_property
    def finished(self) -> pd.DataFrame:
        return self.table[~self.table["failed"] & self.table["test_top1"].notna()]

    @cached_property
    def failures(self) -> pd.DataFrame:
        return self.table[self.table["failed"]]

    @cached_property
    def units(self) -> pd.DataFrame:
        """One row a unit: its columns and `unit`, its name."""
        return self.table.drop_duplicates("unit")[["unit", *self._units]].sort_values(
            self._units, key=_sortable, ignore_index=True
        )

    @cached_property
    def methods(self) -> list[str]:
        """Those that have a finished run."""
        return list(dict.fromkeys(self.finished["method"]))

    @cached_property
    def axes(self) -> list[str]:
        """The settings that take several values within a unit and method."""
        groups = self.table.groupby(["unit", "method"], dropna=False)
        return [name for name in self._settings if (groups[name].nunique(dropna=False) >= SEVERAL).any()]

    @cached_property
    def selection(self) -> Selection:
        """What validation chose in every unit for every method, of the groups that have a finished run."""
        runs = self.table.assign(test_top1=self.table["test_top1"].where(~self.table["failed"]))
        done = runs.groupby(["unit", "method"])["test_top1"].transform("count") > 0
        return select(runs[done], self.axes, ["unit", "method"])

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The finished runs of the chosen settings."""
        runs = self.selection.runs
        return runs[runs["test_top1"].notna()].sort_index()

    @cached_property
    def means(self) -> pd.DataFrame:
        """Mean test accuracy of the chosen settings: one row a method, one column a unit, both in order."""
        wide = self.selection.table.pivot(index="method", columns="unit", values="test_mean")
        return wide.reindex(index=self.methods, columns=list(self.units["unit"]))

    @cached_property
    def average(self) -> pd.DataFrame:
        """One row a method: mean over units (NaN unless it has all), its interval, and gain over the probe in percent."""
        rows = []
        for method in self.methods:
            mean = self.means.loc[method].mean(skipna=False)
            low, high = self._interval(self.chosen[self.chosen["method"] == method])
            known = np.isfinite(mean)
            gain, units = self._gain(method)
            rows.append({"method": method, "mean": mean, "low": low if known else np.nan,
                         "high": high if known else np.nan, "gain": gain, "gain_units": units})  # fmt: skip
        return pd.DataFrame(rows, columns=["method", "mean", "low", "high", "gain", "gain_units"])

    def _gain(self, method: str) -> tuple[float, int]:
        """Mean relative gain over the linear probe, and over how many units that have both."""
        if PROBE not in self.means.index or method == PROBE:
            return np.nan, 0
        accuracy, probe = (self.means.loc[name].to_numpy(dtype=float) for name in (method, PROBE))
        known = np.isfinite(accuracy) & (probe > 0)
        if not known.any():
            return np.nan, 0
        return float(relative_gain(accuracy[known], probe[known]).mean()), int(known.sum())

    def _interval(self, runs: pd.DataFrame, value: str = "test_top1") -> tuple[float, float]:
        """Over seeds where there is one unit, else over units and seeds."""
        groups = [group.to_numpy() for _, group in runs.groupby("unit")[value]]
        return bootstrap_interval(groups[0]) if len(groups) == 1 else hierarchical_interval(groups)

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """One row a unit and method, then one a method over all units.

        Columns: the unit's, method, mean, std, low, high, seeds; best: the highest mean of the unit; against_best, the
        mean difference of the best and this one over pairs, test and p, how that was tested (`against`); alike: not
        significantly worse, in units where any method could be tested.
        """
        rows = []
        for unit in self.units["unit"]:
            runs = self.chosen[self.chosen["unit"] == unit]
            chosen = self.selection.table[self.selection.table["unit"] == unit].set_index("method")
            for method in [name for name in self.methods if name in chosen.index]:
                row, values = chosen.loc[method], runs.loc[runs["method"] == method, "test_top1"]
                low, high = bootstrap_interval(values) if len(values) else (np.nan, np.nan)
                rows.append({"unit": unit, "method": method, "mean": row["test_mean"], "std": row["test_std"],
                             "low": low, "high": high, "seeds": int(row["seeds"])})  # fmt: skip
        table = self._marked(pd.DataFrame(rows))
        return self.units.merge(table, on="unit", how="right") if len(table) else table

    @cached_property
    def overall(self) -> pd.DataFrame:
        """`average` with the columns that mark what is best, tested over units and seeds."""
        return self._marked(self.average.assign(unit="")).drop(columns="unit")

    def _marked(self, table: pd.DataFrame) -> pd.DataFrame:
        parts = []
        for unit, part in table.groupby("unit", sort=False):
            known = part["mean"].notna()
            top = part["mean"].max()
            # Equal means are all best; which of them is tested against makes no difference to what is worse.
            best = known & (part["mean"] >= top - 1e-12)
            others = part.loc[known & ~best, "method"].tolist()
            runs = self.chosen if unit == "" else self.chosen[self.chosen["unit"] == unit]
            columns = {"difference": "against_best", "test": "test", "p": "p"}
            part = part.assign(best=best)
            if others:
                tests = against(runs, part.loc[best, "method"].iloc[0], others, ["unit", "seed"])
                part = part.merge(
                    tests.rename(columns={"second": "method", **columns})[["method", *columns.values()]],
                    on="method", how="left",
                )  # fmt: skip
            else:
                part = part.assign(against_best=np.nan, test=None, p=np.nan)
            # What could not be tested for lack of pairs is not significantly worse either.
            untold = part["p"].isna() & part["mean"].notna() & ~part["best"] & bool(part["p"].notna().any())
            parts.append(part.assign(alike=(part["p"] >= ALPHA) | untold))
        return pd.concat(parts, ignore_index=True) if parts else table

    @cached_property
    def favourite(self) -> str | None:
        """The best method by mean validation accuracy over all units, so that testing it against others is fair.

        By test accuracy where validation accuracy is not known of all; None where no method has every unit.
        """
        complete = [method for method in self.methods if self.means.loc[method].notna().all()]
        if not complete:
            return None
        validation = self.selection.table.groupby("method")["val_mean"].agg(lambda values: values.mean(skipna=False))
        candidates = validation.reindex([method for method in complete if method != PROBE])
        if len(candidates) and candidates.notna().all():
            return str(candidates.idxmax())
        return str(self.means.loc[complete].mean(axis=1).idxmax())

    @cached_property
    def by_validation(self) -> bool:
        """Is `favourite` named by validation accuracy?"""
        return bool(
            self.selection.table.loc[self.selection.table["method"] == self.favourite, "val_mean"].notna().all()
        )

    @cached_property
    def tests(self) -> pd.DataFrame:
        """The favourite against every other method over units and seeds, as `against` gives it; no rows without others."""
        return self._tested(["unit", "seed"])

    @cached_property
    def tests_over_units(self) -> pd.DataFrame:
        """The same over the means of units alone."""
        return self._tested(["unit"])

    def _tested(self, unit: Sequence[str]) -> pd.DataFrame:
        others = [method for method in self.methods if method != self.favourite]
        if self.favourite is None or not others:
            return pd.DataFrame(columns=["first", "second", "pairs", "difference", "test", "p"])
        return against(self.chosen, self.favourite, others, unit)

    def _near(self, axis: str) -> pd.DataFrame:
        """The runs that differ from the chosen settings in `axis` alone."""
        held = [name for name in self.axes if name != axis]
        runs = self.selection.runs.iloc[:0] if axis not in self.axes else self.table
        if axis == "lr" and "head_lr" in held and len(runs):
            # The head's rate may follow the body's.
            each = runs.groupby(["unit", "method", "lr"], dropna=False)["head_lr"].nunique(dropna=False)
            held = [name for name in held if name != "head_lr" or each.max() > 1]
        return runs.merge(self.selection.table[["unit", "method", *held]], on=["unit", "method", *held])

    @cached_property
    def over_rates(self) -> pd.DataFrame:
        """Mean test accuracy over seeds by unit, method and learning rate, the rest as chosen; empty if not varied."""
        runs = self._near("lr")
        if runs.empty or runs["lr"].isna().all():
            return pd.DataFrame(columns=["unit", "method", "lr", "mean"])
        return over_seeds(runs[runs["lr"].notna()], ["unit", "method", "lr"])

    @cached_property
    def robustness(self) -> pd.DataFrame:
        """One row a unit and method: spread over rates, rates, failed runs among them, deviation over seeds, seeds."""
        seeds = self.selection.table[["unit", "method", "test_std", "seeds"]].rename(columns={"test_std": "deviation"})
        runs = self._near("lr")
        if runs.empty:
            return seeds.assign(spread=np.nan, rates=1, failed=0)
        found = spread(runs, "lr", ["unit", "method"]).rename(columns={"values": "rates"})
        return seeds.merge(found, on=["unit", "method"], how="left")

    @cached_property
    def gap(self) -> pd.DataFrame:
        """One row a unit and method whose training accuracy is known: train and test accuracy, gap, its deviation."""
        runs = self.chosen[self.chosen["train_top1"].notna()]
        if runs.empty:
            return pd.DataFrame(columns=["unit", "method", "train", "test", "gap", "std"])
        found = train_test_gap(runs, ["unit", "method"]).rename(columns={"mean": "gap"})
        for name in ("train", "test"):
            means = over_seeds(runs, ["unit", "method"], f"{name}_top1")
            found = found.merge(means.rename(columns={"mean": name})[["unit", "method", name]], on=["unit", "method"])
        return found

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row a method and rank, where a method has several: mean over the units that have all ranks, low, high.

        The other settings of every rank are chosen on validation.
        """
        columns = ["method", "rank", "mean", "low", "high", "parameters", "units"]
        rows = []
        for method, runs, wide in self._by_rank():
            for rank, mean in wide.mean().items():
                of_rank = runs[(runs["rank"] == rank) & runs["unit"].isin(wide.index)]
                low, high = self._interval(of_rank)
                parameters = of_rank.groupby("unit")["trained_parameters"].mean().mean()
                rows.append(dict(zip(columns, (method, rank, mean, low, high, parameters, len(wide)), strict=True)))
        return pd.DataFrame(rows, columns=columns)

    def _by_rank(self) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
        """Methods with several ranks: their runs of the chosen settings, and means by unit (rows) and rank."""
        if "rank" not in self.axes:
            return []
        others, found = [name for name in self.axes if name != "rank"], []
        runs = self.table[self.table["rank"].notna()]
        done = runs.groupby(["unit", "method", "rank"])["test_top1"].transform("count") > 0
        for method, part in runs[done].groupby("method", sort=False):
            chosen = select(part, others, ["unit", "method", "rank"])
            wide = chosen.table.pivot(index="unit", columns="rank", values="test_mean").dropna()
            if len(wide) and wide.shape[1] >= SEVERAL:
                found.append((str(method), chosen.runs[chosen.runs["test_top1"].notna()].sort_index(), wide))
        return found

    @cached_property
    def elbows(self) -> pd.DataFrame:
        """The elbow by method and unit, and of the mean over units (unit None), where there are three ranks or more."""
        rows = []
        for method, _, wide in self._by_rank():
            if wide.shape[1] > SEVERAL:
                rows.append({"method": method, "unit": None, "elbow": elbow(wide.columns, wide.mean())})
                rows += [
                    {"method": method, "unit": str(unit), "elbow": elbow(wide.columns, curve)}
                    for unit, curve in wide.iterrows()
                ]
        return pd.DataFrame(rows, columns=["method", "unit", "elbow"])

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Methods with every unit, one row a rank where that was varied: trained parameters, accuracy, on the front?"""
        parameters = self.chosen.groupby(["method", "unit"])["trained_parameters"].mean().groupby("method").mean()
        complete = self.average[self.average["mean"].notna()]
        points = complete.assign(rank=np.nan, parameters=complete["method"].map(parameters))
        ranked = self.ranks[self.ranks["units"] == len(self.units)]
        points = points[~points["method"].isin(ranked["method"])]
        columns = ["method", "rank", "parameters", "mean", "low", "high"]
        parts = [part[columns] for part in (points, ranked) if len(part)]
        if not parts:
            return pd.DataFrame(columns=[*columns, "front"])
        table = pd.concat(parts, ignore_index=True)
        # A logistic regression trains no network; what it costs is not told by its parameters.
        table = table[(table["parameters"] > 0) & table["mean"].notna()].reset_index(drop=True)
        table = table.assign(front=pareto_front(table["mean"], table["parameters"]))
        return table.sort_values(["parameters", "mean"], kind="stable", ignore_index=True)


def against(runs: pd.DataFrame, first: str, others: Sequence[str], unit: Sequence[str]) -> pd.DataFrame:
    """Is `first` better than each of `others`? One-sided paired tests over `unit`, Holm-corrected over the others.

    Returns:
        `paired_tests`' columns, and the test to read: `test` is "Wilcoxon" where it can come out significant with so many
        pairs and comparisons, else "t" (which takes differences as normal), None where that is not defined either; `p`
        is its corrected p-value.
    """
    table = paired_tests(runs, [(first, other) for other in others], unit)
    enough = table["pairs"].map(smallest_p) * len(table) <= ALPHA
    p = table["wilcoxon_greater_holm"].where(enough, table["t_greater_holm"])
    return table.assign(test=enough.map({True: "Wilcoxon", False: "t"}).where(p.notna(), None), p=p)


def _named(table: pd.DataFrame) -> pd.Series:
    """A name for each row's unit: the data, and what else tells units apart."""
    names = _short(table["data"])
    columns = [name for name in UNIT[1:] if name in table]
    shown = {"img_size": "{:.0f} px", "n_train": "{:,.0f} images"}
    for position, column in enumerate(columns):
        within = ["data", *columns[:position]] if column != "model" else []
        counts = (
            table.groupby(within, dropna=False)[column].nunique(dropna=False).max()
            if within
            else table[column].nunique()
        )
        if counts > 1:
            form = shown.get(column, "{}")
            values = table[column] if column in shown else _short(table[column])
            said = values.map(lambda value, form=form: form.format(value) if pd.notna(value) else "not stated")
            names = names + ", " + said
    return names


def _short(names: pd.Series) -> pd.Series:
    """The last parts of paths, unless two paths end alike."""
    ends = names.map(lambda name: str(name).rstrip("/").rsplit("/", 1)[-1] if pd.notna(name) else name)
    return ends if ends.nunique() == names.nunique() else names


def _order(method: str) -> int:
    return _ORDER.index(method) if method in _ORDER else len(_ORDER)


def _sortable(column: pd.Series) -> pd.Series:
    """Numbers as they are; of anything else its text, so that mixed columns have an order."""
    return column if pd.api.types.is_numeric_dtype(column) else column.fillna("").astype(str)
