"""What a study found: one row a run, and the settings that validation chose. Made from the run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pliant.adapt.job import LOG, START, SUMMARY
from pliant.adapt.settings import Settings
from pliant.errors import PliantError
from pliant.files import read_json, write_atomic, write_text
from pliant.study.file import AXES as AXES_OF_STUDIES
from pliant.study.file import Study
from pliant.study.folder import StudyFolder, rows_of
from pliant.study.grid import Run
from pliant.study.selection import AXES, Selection, select

RESULTS, SELECTION, LATEX = "results.csv", "selection.csv", "selection.tex"
GROUP = ("data", "model", "weights", "img_size", "n_train", "method")
"""What methods are compared within, and the method. Of all else that a study varies, validation chooses."""
WHOLE = ("img_size", "n_train", "rank", "every", "views", "epochs", "batch_size", "seed", "trained_parameters")
_BY_GROUP = ("data", "model", "weights", "random_init", "img_size", "limit_train", "method")
_CHOSEN_FROM = tuple(name for name in AXES if name != "steps")
_OUTCOMES = ("val_top1", "test_top1", "train_top1")


@dataclass(frozen=True)
class Report:
    """What can be said of a study as it stands.

    Attributes:
        results: one row a run that is done or failed, see `table`.
        selection: None where nothing can be chosen yet; `note` says why.
    """

    results: pd.DataFrame
    selection: Selection | None
    note: str = ""


def report(folder: StudyFolder, study: Study, runs: Sequence[Run]) -> Report:
    """Write results.csv and, where a choice can be made, selection.csv and selection.tex to the study's folder.

    Raises:
        PliantError: the disk is full; a run's summary cannot be read.
    """
    text = table(folder, study, runs).to_csv(index=False, lineterminator="\n")
    write_text(folder.path / RESULTS, text)
    results = read_table(StringIO(text))  # what is reported follows from the file alone
    known = results[results.groupby(list(GROUP), dropna=False)["test_top1"].transform("count") > 0]
    if known.empty:
        return Report(results, None, "no run is done yet, so there is nothing to choose from")
    try:
        selection = select(known, varied(study, runs), GROUP)
    except PliantError as error:
        return Report(results, None, str(error))
    shown = _whole(selection.table)
    write_text(folder.path / SELECTION, shown.to_csv(index=False, lineterminator="\n"))
    write_atomic(folder.path / LATEX, lambda path: _latex(shown, path))
    return Report(results, selection)


def messages(folder: StudyFolder, runs: Sequence[Run]) -> dict[str, str]:
    """Why each failed run failed, by its name."""
    return {run.name: folder.message(run) for run in runs if folder.failed(run)}


def steps(folder: StudyFolder, runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """What each finished run that was trained by steps logged, by its name: step, loss, grad_norm."""
    logged = {run.name: rows_of(folder.run(run) / LOG, "step") for run in filter(folder.done, runs)}
    return {name: pd.DataFrame(rows, columns=["step", "loss", "grad_norm"]) for name, rows in logged.items() if rows}


def starts(folder: StudyFolder, runs: Sequence[Run]) -> pd.DataFrame:
    """How each finished run began.

    Columns: run (its name); identical: did the adapted model give the backbone's logits, bit for bit, before the first
    step (None of runs that did not record it); first_loss: the mean training loss over the first epoch.
    """
    rows = [
        {"run": run.name, "identical": read_json(folder.run(run) / START).get("identical"),
         "first_loss": next((row["train_loss"] for row in rows_of(folder.run(run) / LOG, "epoch")), np.nan)}
        for run in filter(folder.done, runs)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["run", "identical", "first_loss"])


def read_table(source: Path | StringIO) -> pd.DataFrame:
    """results.csv as it was written: only an empty field is missing, and no digit is lost."""
    return pd.read_csv(source, keep_default_na=False, na_values=[""], float_precision="round_trip")


def varied(study: Study, runs: Sequence[Run]) -> list[str]:
    """What a setting is chosen from: what the study names and some method has several values of on the same data.

    A head's rate that the study does not name, or names `same`, follows the body's.
    """
    found: dict[tuple, list[Settings]] = {}
    for run in runs:
        found.setdefault(tuple(getattr(run.settings, name) for name in _BY_GROUP), []).append(run.settings)
    return [
        name
        for name in _others(study)
        if any(len({getattr(each, name) for each in alike}) > 1 for alike in found.values())
    ]


def _others(study: Study) -> list[str]:
    """What the study names beside data, backbone, method, seed, and a head's rate that is the body's."""
    left_out = (*_BY_GROUP, "seed", *(["head_lr"] if study.values("head_lr") == ["same"] else []))
    return [name for name in study.named if name in AXES_OF_STUDIES and name not in left_out]


def table(folder: StudyFolder, study: Study, runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run that is done or failed; the same whatever the order they were made in.

    Columns: run (the folder's name); data, model, weights (`pretrained`, `random` or a file), img_size, n_train,
    method, the settings that suits are chosen from, whatever else the study varies, seed; val_top1, test_top1 and
    train_top1 (fractions, NaN for a failed run) and trained_parameters. lr and head_lr are NaN where each run searched
    its own (`lr: auto`).
    """
    several = set(varied(study, runs)) | {name for grid in study.grids for name in grid.axes}
    others = [name for name in _others(study) if name in several and name not in _CHOSEN_FROM]
    settled = [run for run in runs if folder.settled(run)]
    columns = ["run", *GROUP, *_CHOSEN_FROM, *others, "seed", *_OUTCOMES, "trained_parameters"]
    rows = [_settings(run) | _outcome(folder, run) for run in settled]
    frame = pd.DataFrame(rows, columns=columns)
    frame = _one_size(frame, [run.settings.limit_train for run in settled])
    return _whole(frame).sort_values([*GROUP, *_CHOSEN_FROM, *others, "seed", "run"], ignore_index=True)


def _settings(run: Run) -> dict[str, Any]:
    chosen = run.settings.model_dump()
    chosen["weights"] = chosen["weights"] or ("random" if chosen["random_init"] else "pretrained")
    if chosen["lr"] == "auto":
        chosen["lr"] = np.nan
    return chosen | {"run": run.name}


def _outcome(folder: StudyFolder, run: Run) -> dict[str, Any]:
    if not folder.done(run):
        return dict.fromkeys(_OUTCOMES, np.nan)
    summary = read_json(folder.run(run) / SUMMARY)
    return {
        **{f"{part}_top1": summary[part]["top1"] for part in ("val", "test", "train")},
        "n_train": summary["data"]["train"],
        "img_size": summary["model"]["img_size"],
        "trained_parameters": sum(row["parameters"] for row in summary["plan"] if row["trained"]),
    }


def _one_size(frame: pd.DataFrame, limits: Sequence[int | None]) -> pd.DataFrame:
    """One number of training images, and one image size, for runs that differ in their seed alone.

    Which unreadable images fall among the training images depends on the seed, and a failed run has no count.
    """
    shared = [frame[name] for name in ("data", "model", "weights")]
    limit = pd.array(limits, dtype="Int64")
    size = frame["img_size"].astype("Int64").groupby(shared, dropna=False).transform("max")
    count = frame["n_train"].astype("Int64").groupby([frame["data"], limit], dropna=False).transform("max")
    return frame.assign(n_train=count, img_size=frame["img_size"].astype("Int64").fillna(size))


def _whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Counts without a decimal point, also where one is missing."""
    named = [name for name in frame.columns if name.removeprefix("claimed_") in WHOLE]
    return frame.astype(dict.fromkeys(named, "Int64"))


def _latex(shown: pd.DataFrame, path: Path) -> None:
    shown.drop(columns=["incomplete", "tied"]).to_latex(
        path, index=False, escape=True, na_rep="--", float_format="%.4g"
    )
