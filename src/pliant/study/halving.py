"""Successive halving over rates (arXiv 1502.07943): all begin on one seed, and the worse half stops at each rung.

What is left to do follows from the runs' logs alone, so a halving that was stopped goes on, several processes come to
the same conclusions, and a study may grow. Which rates go on is the decision of Optuna's SuccessiveHalvingPruner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from pliant.adapt import heads
from pliant.adapt.job import LOG
from pliant.errors import PliantError
from pliant.study.file import MACHINE
from pliant.study.folder import StudyFolder, rows_of
from pliant.study.grid import Run

FACTOR = 2
_RATES = ("lr", "head_lr")

Due = list[tuple[Run, int | None]]
"""Runs to make, each up to a number of epochs; None: to its end."""


@dataclass
class Standing:
    """Of a group of runs: what is to be done now, and what halving leaves out, with the accuracy it was judged by."""

    due: Due = field(default_factory=list)
    left_out: dict[str, float | None] = field(default_factory=dict)


def check(runs: Sequence[Run]) -> None:
    """Raises PliantError where Optuna is missing, or no method has several rates and epochs to halve."""
    if find_spec("optuna") is None:
        raise PliantError("--halving needs Optuna, which is not installed: pip install 'pliant[search]'")
    if not any(rungs(len(_first(group)), int(group[0].settings.epochs or 0)) for group in _groups(runs)):
        raise PliantError(
            "--halving: nothing to halve, since no method but the head has several rates and more than one epoch; give "
            "rates, as in lr: [1e-3, 3e-3, 1e-2], or leave --halving out"
        )


def due(folder: StudyFolder, runs: Sequence[Run]) -> Due:
    """What can be done now, in the order of `runs`; empty where the study is done."""
    found = [each for standing in _standings(folder, runs) for each in standing.due]
    place = {run.name: number for number, run in enumerate(runs)}
    return sorted(found, key=lambda each: place[each[0].name])


def record(folder: StudyFolder, runs: Sequence[Run]) -> None:
    """Write down, for reports and for people, which runs halving leaves out as things stand."""
    left_out: dict[str, float | None] = {}
    for standing in _standings(folder, runs):
        left_out |= standing.left_out
    for run in runs:
        if run.name not in left_out:
            folder.pruning(run).unlink(missing_ok=True)
        elif not folder.pruning(run).is_file():
            folder.record_pruning(run, epochs_of(folder, run), left_out[run.name])


def sentence(folder: StudyFolder, runs: Sequence[Run]) -> str:
    """How many runs halving saved; empty where it left none out."""
    pruned = list(filter(folder.pruned, runs))
    if not pruned:
        return ""
    begun = [run for run in pruned if epochs_of(folder, run)]
    spared = sum(int(run.settings.epochs or 0) - epochs_of(folder, run) for run in pruned)
    asked = sum(int(run.settings.epochs or 0) for run in runs)
    return (
        f"halving: {sum(map(folder.done, runs))} of {len(runs)} runs made in full, {len(begun)} stopped early, "
        f"{len(pruned) - len(begun)} never begun; {spared / asked:.0%} of the epochs saved"
    )


def rungs(rates: int, epochs: int) -> list[int]:
    """After how many epochs rates are judged: half of the whole training last, a quarter before, ...

    As many as it takes to come from `rates` to one; none for a single rate or epoch.
    """
    count = int(math.log2(rates)) if rates else 0
    first = max(1, epochs // FACTOR**count)
    return [rung for rung in (first * FACTOR**number for number in range(count)) if rung < epochs]


def _standings(folder: StudyFolder, runs: Sequence[Run]) -> list[Standing]:
    whole = {run.name for run in runs}
    found = []
    for group in _groups(runs):
        whole -= {run.name for run in group}
        found.append(_standing(folder, group))
    alone = [run for run in runs if run.name in whole and not folder.settled(run)]
    return [*found, Standing([(run, None) for run in alone])]


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in rates and seed alone. Heads that are made together have no part: their rates cost nothing."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.settings.epochs and not heads.kind(run.settings):
            shared = run.settings.model_dump(exclude={"out", "seed", *_RATES, *MACHINE})
            groups.setdefault(json.dumps(shared, sort_keys=True), []).append(run)
    return list(groups.values())


def _first(group: Sequence[Run]) -> list[Run]:
    """Each rate's first run: of the same seed for all, but where grids of a study differ in theirs."""
    found: dict[tuple, Run] = {}
    for run in group:
        found.setdefault(_rate(run), run)
    return list(found.values())


def _standing(folder: StudyFolder, group: Sequence[Run]) -> Standing:
    found = Standing()
    alive = _first(group)
    for rung in rungs(len(alive), int(group[0].settings.epochs or 0)):
        if waiting := [run for run in alive if not reached(folder, run, rung)]:
            found.due = [(run, rung) for run in waiting]
            return found
        accuracies = {run.name: accuracy_at(folder, run, rung) for run in alive if not folder.failed(run)}
        going = dict(zip(accuracies, goes_on(tuple(accuracies.values())), strict=True))
        found.left_out |= {name: accuracy for name, accuracy in accuracies.items() if not going[name]}
        alive = [run for run in alive if going.get(run.name)]
    rates = {_rate(run) for run in alive}
    found.due = [(run, None) for run in group if _rate(run) in rates and not folder.settled(run)]
    begun = {run.name for run in _first(group)}
    found.left_out |= {run.name: None for run in group if _rate(run) not in rates and run.name not in begun}
    found.left_out = {run.name: found.left_out[run.name] for run in group
                      if run.name in found.left_out and not folder.settled(run)}  # fmt: skip
    return found


def _rate(run: Run) -> tuple:
    return tuple(getattr(run.settings, name) for name in _RATES)


@lru_cache(maxsize=1024)
def goes_on(accuracies: tuple[float, ...]) -> tuple[bool, ...]:
    """Which of the rates with these accuracies at a rung go on: the better half, and all that tie with its last.

    Optuna's pruner compares a trial with those that came to the rung before it. So each is judged as the one that came
    last, when it has all others to compare with, and their order makes no difference.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)

    def judged(last: int) -> bool:
        study = optuna.create_study(direction="maximize", pruner=pruner)
        pruned = False
        for accuracy in [*accuracies[:last], *accuracies[last + 1 :], accuracies[last]]:
            trial = study.ask()
            trial.report(accuracy, step=1)
            pruned = trial.should_prune()
        return not pruned

    return tuple(map(judged, range(len(accuracies))))


def reached(folder: StudyFolder, run: Run, epochs: int | None) -> bool:
    """Is a run settled, or has it trained for so many epochs?"""
    return folder.settled(run) or (epochs is not None and epochs_of(folder, run) >= epochs)


def epochs_of(folder: StudyFolder, run: Run) -> int:
    """How many epochs a run has trained for."""
    return len(_accuracies(folder.run(run) / LOG))


def accuracy_at(folder: StudyFolder, run: Run, epochs: int) -> float:
    """The best validation accuracy of the first `epochs`: what the run would have kept, had it ended there."""
    return max(_accuracies(folder.run(run) / LOG)[:epochs])


def _accuracies(log: Path) -> tuple[float, ...]:
    try:
        found = log.stat()
    except FileNotFoundError:
        return ()
    return _read(log, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4096)
def _read(log: Path, changed: int, size: int) -> tuple[float, ...]:
    """Validation accuracies, epoch by epoch."""
    return tuple(row["val_top1"] for row in rows_of(log, "epoch"))
