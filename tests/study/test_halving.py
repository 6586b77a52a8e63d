"""Halving lets the better half of the rates go on, changes no result of what it makes, and can be undone."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from pliant.errors import PliantError
from pliant.study import halving, results, worker
from pliant.study.execute import execute
from pliant.study.file import Study, parse
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run, runs_of
from tests.adapt.conftest import write_images

RATES = [1e-5, 1e-4, 1e-3, 1e-2]
FIXED = {"model": "test_vit", "random_init": True, "img_size": 32, "epochs": 4, "batch_size": 8, "device": "cpu"}


def study(data="digits", fixed=None, **axes) -> Study:
    axes = {"method": ["ln1"], "lr": RATES, "seed": [0, 1]} | axes
    return parse({"axes": axes, "fixed": FIXED | {"data": data} | (fixed or {})}, "study")


def log(folder: StudyFolder, run: Run, *accuracies: float, done: bool = False) -> None:
    """As if the run had trained for so many epochs."""
    place = folder.run(run)
    place.mkdir(parents=True, exist_ok=True)
    rows = [{"kind": "step", "step": 1, "loss": 1.0}, *({"kind": "epoch", "val_top1": each} for each in accuracies)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("summary.json", "report.html") if done else ():
        (place / name).write_text("{}")


def left(folder: StudyFolder, runs: list[Run]) -> dict[tuple[float, int], int | None]:
    return {(run.settings.lr, run.settings.seed): until for run, until in halving.due(folder, runs)}


def pruned(folder: StudyFolder, runs: list[Run]) -> dict[tuple[float, int], float | None]:
    halving.record(folder, runs)
    return {
        (run.settings.lr, run.settings.seed): json.loads(folder.pruning(run).read_text())["val_top1"]
        for run in runs
        if folder.pruned(run)
    }


@pytest.mark.parametrize(
    ("rates", "epochs", "expected"),
    [(4, 20, [5, 10]), (3, 20, [10]), (2, 20, [10]), (8, 20, [2, 4, 8]), (4, 3, [1, 2]), (2, 1, []), (1, 20, [])],
)
def test_rungs(rates, epochs, expected):
    assert halving.rungs(rates, epochs) == expected


def test_the_better_half_goes_on_in_whatever_order():
    for order in permutations([0.2, 0.4, 0.6, 0.8]):
        assert halving.goes_on(order) == tuple(value >= 0.6 for value in order)
    assert halving.goes_on((0.5, 0.3, 0.4)) == (True, False, False)
    assert halving.goes_on((0.7, 0.7, 0.7, 0.1)) == (True, True, True, False)  # nothing tells them apart
    assert halving.goes_on((0.3,)) == (True,) and halving.goes_on(()) == ()


def test_decisions_follow_from_the_logs(tmp_path):
    folder, runs = StudyFolder(tmp_path), runs_of(study())
    first = runs[:4]
    assert [run.settings.lr for run in first] == RATES
    assert left(folder, runs) == {(rate, 0): 1 for rate in RATES}
    log(folder, first[0], 0.1)
    log(folder, first[1], 0.5)
    log(folder, first[2], 0.7)
    assert left(folder, runs) == {(1e-2, 0): 1} and pruned(folder, runs) == {}
    log(folder, first[3], 0.9)
    assert left(folder, runs) == {(1e-3, 0): 2, (1e-2, 0): 2}
    log(folder, first[2], 0.7, 0.8)
    log(folder, first[3], 0.9, 0.6)  # its best epoch counts: that is what a run keeps
    assert left(folder, runs) == {(1e-2, 0): None, (1e-2, 1): None}
    seeds = {(rate, 1): None for rate in RATES[:3]}
    assert pruned(folder, runs) == {(1e-5, 0): 0.1, (1e-4, 0): 0.5, (1e-3, 0): 0.8} | seeds
    assert folder.state(first[0]) == "pruned"

    for run in runs:
        if run.settings.lr == 1e-2:
            log(folder, run, 0.9, 0.6, 0.9, 0.9, done=True)
    assert left(folder, runs) == {}
    # Of 8 x 4 epochs, those of 3 x 4 were never begun, and 3 + 3 + 2 were left of the others.
    assert halving.sentence(folder, runs) == (
        "halving: 2 of 8 runs made in full, 3 stopped early, 3 never begun; 62% of the epochs saved"
    )
    # A study that grows by a rate asks again: the new one first, with the others as they stand.
    grown = runs_of(study(lr=[*RATES, 3e-2]))
    assert left(folder, grown) == {(3e-2, 0): 1}


def test_failed_rates_do_not_go_on_and_the_others_do(tmp_path):
    folder, runs = StudyFolder(tmp_path), runs_of(study(lr=[1e-3, 1e-2, 1.0]))
    for run, accuracy in zip(runs[:2], (0.8, 0.6), strict=True):
        log(folder, run, accuracy, accuracy)
    folder.record_failure(runs[2], "the loss is nan", "")
    assert left(folder, runs) == {(1e-3, 0): None, (1e-3, 1): None}
    assert pruned(folder, runs) == {(1e-2, 0): 0.6, (1e-2, 1): None, (1.0, 1): None}
    for run in runs[:2]:
        folder.record_failure(run, "the loss is nan", "")
    assert left(folder, runs) == {}


def test_groups_are_halved_each_on_its_own_and_heads_are_made_whole(tmp_path):
    folder = StudyFolder(tmp_path)
    runs = runs_of(study(method=["ln1", "head", "adapter"], rank=[2, 4], lr=[1e-3, 1e-2], seed=[0]))
    tasks = {
        (run.settings.method, run.settings.rank, run.settings.lr): until for run, until in halving.due(folder, runs)
    }
    half = {
        (method, rank, lr): 2 for method, rank in (("ln1", None), ("adapter", 2), ("adapter", 4)) for lr in (1e-3, 1e-2)
    }
    assert tasks == half | {("head", None, 1e-3): None, ("head", None, 1e-2): None}
    for run in runs:
        if run.settings.method == "adapter" and run.settings.rank == 2:
            log(folder, run, 0.5, 0.5 + run.settings.lr)
    tasks = {
        (run.settings.method, run.settings.rank, run.settings.lr): until for run, until in halving.due(folder, runs)
    }
    assert ("adapter", 2, 1e-3) not in tasks and tasks["adapter", 2, 1e-2] is None and tasks["adapter", 4, 1e-2] == 2


def test_a_rate_that_only_another_grid_has_is_judged_too(tmp_path):
    grids = [{"axes": {"lr": [1e-3, 1e-2], "seed": [0, 1]}}, {"axes": {"lr": [3e-2], "seed": [1]}}]
    folder = StudyFolder(tmp_path)
    runs = runs_of(parse({"grids": grids, "fixed": FIXED | {"data": "digits", "method": "ln1"}}, "study"))
    assert left(folder, runs) == {(1e-3, 0): 2, (1e-2, 0): 2, (3e-2, 1): 2}


def test_what_cannot_be_halved_is_told(monkeypatch):
    halving.check(runs_of(study()))
    for nothing in (study(lr=[1e-3]), study(method=["head"]), study(fixed={"epochs": 1})):
        with pytest.raises(PliantError, match="nothing to halve"):
            halving.check(runs_of(nothing))
    monkeypatch.setattr(halving, "find_spec", lambda name: None)
    with pytest.raises(PliantError, match=r"pip install 'pliant\[search\]'"):
        halving.check(runs_of(study()))


def written(folder: StudyFolder) -> list[bytes]:
    found = folder.study()
    results.report(folder, found, runs_of(found))
    return (folder.path / results.RESULTS).read_bytes().splitlines()


def test_what_is_made_is_as_without_halving_and_a_later_call_completes_it(tmp_path, monkeypatch):
    data = str(write_images(tmp_path / "flowers", each=20))
    whole, folder = StudyFolder(tmp_path / "whole"), StudyFolder(tmp_path / "a")
    runs = whole.store(study(data))
    assert worker.work(whole, runs) == worker.FINISHED
    folder.store(study(data))

    from pliant.adapt.training import Trainer

    epoch = Trainer._close_epoch
    count = [0]

    def stop(trainer, *arguments):
        epoch(trainer, *arguments)
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_close_epoch", stop)
    with pytest.raises(worker.Interrupted):
        worker.work(folder, runs, halve=True)
    monkeypatch.undo()
    execute(folder, runs, halve=True)

    # The same decisions from the logs of the study that was made in full, by sorting.
    alive = runs[:4]
    for rung in (1, 2):
        best = {run.name: halving.accuracy_at(whole, run, rung) for run in alive}
        worst = sorted(best.values())[-len(alive) // 2 :][0]
        alive = [run for run in alive if best[run.name] >= worst]
    rates = {run.settings.lr for run in alive}
    assert {run.settings.lr for run in runs if folder.done(run)} == rates and 1 <= len(rates) < 4
    assert all(folder.done(run) or folder.pruned(run) for run in runs) and not folder.features.exists()
    assert all(halving.epochs_of(folder, run) in (1, 2) for run in runs[:4] if folder.pruned(run))
    assert not any(folder.run(run).exists() for run in runs[4:] if folder.pruned(run))
    for run in runs:  # whatever was trained was trained alike
        if folder.run(run).exists():
            made = halving.epochs_of(folder, run)
            assert halving.accuracy_at(folder, run, made) == halving.accuracy_at(whole, run, made)
    rows = written(folder)
    assert len(rows) == 1 + 2 * len(rates) and set(rows) < set(written(whole))
    selection = results.report(folder, folder.study(), runs).selection
    assert selection is not None and set(selection.table["lr"]) <= rates and (selection.table["seeds"] == 2).all()

    assert worker.work(folder, runs) == worker.FINISHED  # without halving: what was stopped goes on
    assert "resuming at epoch" in "".join(folder.log(run).read_text() for run in runs if run.settings.lr not in rates)
    assert written(folder) == written(whole) and halving.sentence(folder, runs) == ""
