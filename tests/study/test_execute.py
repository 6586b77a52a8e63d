"""A study survives kills of its driver and workers, shares its work, grows, moves, and records what fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pliant.errors import PliantError
from pliant.study import execute, results, worker
from pliant.study.file import Study, parse
from pliant.study.folder import StudyFolder
from pliant.study.grid import runs_of
from tests.adapt.conftest import write_images

FIXED = {
    "model": "test_vit", "random_init": True, "img_size": 32, "epochs": 2, "batch_size": 8, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> str:
    return str(write_images(tmp_path_factory.mktemp("data") / "flowers"))


def study(flowers: str, fixed=None, **axes) -> Study:
    axes = axes or {"method": ["head"], "seed": [0, 1]}
    return parse({"axes": axes, "fixed": FIXED | {"data": flowers} | (fixed or {})}, "study")


def work(folder: StudyFolder) -> list[str]:
    """Make the stored study's runs in this process; returns what was begun."""
    begun: list[str] = []
    runs = runs_of(folder.study())
    code = worker.work(folder, runs, lambda event, run: begun.append(run.name) if event == "started" else None)
    assert code in (worker.FINISHED, worker.RENEW)
    return begun


def written(folder: StudyFolder) -> bytes:
    found = folder.study()
    results.report(folder, found, runs_of(found))
    return (folder.path / results.RESULTS).read_bytes()


def test_grows_moves_and_never_repeats(flowers, tmp_path):
    folder = StudyFolder(tmp_path / "a")
    first = folder.store(study(flowers))
    assert sorted(work(folder)) == sorted(run.name for run in first)
    table = results.table(folder, folder.study(), first)
    assert table["n_train"].nunique() == 1 and table["weights"].tolist() == ["random", "random"]
    assert table["val_top1"].between(0, 1).all() and (table["trained_parameters"] == 195).all()

    moved = StudyFolder(Path(shutil.move(folder.path, tmp_path / "b")))
    assert work(moved) == []
    before = written(moved)
    grown = moved.store(study(flowers, method=["ln1", "head"], seed=[0, 1]))
    assert len(work(moved)) == len(grown) - len(first) == 2
    assert len(written(moved).splitlines()) == 5 and set(before.splitlines()) <= set(written(moved).splitlines())
    with pytest.raises(PliantError, match=r"holds a study with method ln1 \(now head\)"):
        moved.store(study(flowers))
    with pytest.raises(PliantError, match=r"epochs 2 \(now 5\)"):
        moved.store(study(flowers, {"epochs": 5}, method=["ln1", "head"], seed=[0, 1]))


def test_half_made_and_stopped_runs_go_on(flowers, tmp_path, monkeypatch):
    whole = StudyFolder(tmp_path / "whole")
    whole.store(study(flowers))
    work(whole)
    folder = StudyFolder(tmp_path / "a")
    begun, stopped = folder.store(study(flowers))
    folder.run(begun).mkdir(parents=True)
    (folder.run(begun) / "learned").mkdir()  # no run.yaml: killed before it could be resumed
    from pliant.adapt.training import Trainer

    epoch = Trainer._close_epoch

    def stop(trainer, *arguments):
        epoch(trainer, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_close_epoch", stop)
    with pytest.raises(worker.Interrupted):
        worker.attempt(folder, stopped)
    monkeypatch.undo()
    assert (folder.run(stopped) / "checkpoint.safetensors").is_file()
    assert folder.state(stopped) == "stopped" and folder.state(begun) == "waiting"
    work(folder)
    assert "resuming at epoch 2" in folder.log(stopped).read_text()
    assert written(folder) == written(whole)


def test_failures_are_recorded_stop_nothing_and_are_retried(flowers, tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "a")
    bad, good = folder.store(study(flowers, method=["ln1"], seed=[0, 1]))
    from pliant import adapt

    run = adapt.run

    def broken(chosen, *arguments, **options):
        if chosen.seed == bad.settings.seed:
            raise MemoryError("no room")
        return run(chosen, *arguments, **options)

    monkeypatch.setattr(adapt, "run", broken)
    assert work(folder) == [bad.name]  # a process in which such a thing happened makes no other run
    assert work(folder) == [good.name]
    assert folder.state(bad) == "failed" and folder.message(bad) == "MemoryError: no room"
    assert "Traceback" in folder.failure(bad).read_text()
    table = results.report(folder, folder.study(), [bad, good]).results
    assert table["test_top1"].isna().tolist() == [True, False] and table["n_train"].nunique(dropna=False) == 1
    monkeypatch.undo()
    assert work(folder) == []
    folder.forget_failure(bad)
    assert work(folder) == [bad.name] and folder.state(bad) == "done"


def test_heads_are_made_together_also_what_an_interruption_left_of_them(flowers, tmp_path, monkeypatch):
    from pliant.adapt import heads

    axes = {"method": ["head", "ln1"], "lr": [1e-3, 1e-2, 1e-1], "seed": [0]}
    whole = StudyFolder(tmp_path / "whole")
    whole.store(study(flowers, **axes))
    groups: list[int] = []
    together = heads.run_together

    def counted(asked, *arguments):
        groups.append(len(asked))
        return together(asked, *arguments)

    monkeypatch.setattr(heads, "run_together", counted)
    assert len(work(whole)) == 4 and groups == [3]

    folder = StudyFolder(tmp_path / "a")
    runs = folder.store(study(flowers, **axes))
    one = next(run for run in runs if run.settings.method == "head")
    assert worker.attempt_together(folder, [one]) == []
    work(folder)
    assert groups[1:] == [1, 2] and written(folder) == written(whole)
    assert all(folder.log(run).is_file() for run in runs if run is not one)


def test_heads_that_cannot_be_made_together_are_made_one_at_a_time(flowers, tmp_path, monkeypatch):
    from pliant.adapt import heads

    def apart(asked, *arguments):
        raise heads.Apart("the head is no plain linear layer")

    monkeypatch.setattr(heads, "run_together", apart)
    folder = StudyFolder(tmp_path / "a")
    runs = folder.store(study(flowers, method=["head"], lr=[1e-3, 1e-2], seed=[0]))
    work(folder)
    assert all(map(folder.done, runs)) and "no plain linear layer" in folder.log(runs[0]).read_text()


def test_frozen_outputs_are_shared_and_gone_when_nothing_is_left_to_make(flowers, tmp_path):
    folder = StudyFolder(tmp_path / "a")
    first, second = folder.store(study(flowers, method=["adapter"], blocks=["last:1"], rank=[2, 4], seed=[0]))
    worker.work(folder, [first])
    kept = {file: file.stat().st_mtime_ns for file in folder.features.glob("*/*.npy")}
    worker.work(folder, [second])
    assert kept and kept == {file: file.stat().st_mtime_ns for file in folder.features.glob("*/*.npy")}
    grown = folder.store(study(flowers, method=["adapter"], blocks=["last:1"], rank=[2, 4], seed=[0, 1]))
    execute.execute(folder, grown)
    assert all(map(folder.done, grown)) and not folder.features.exists()


def test_a_run_that_another_process_holds_is_left_to_it(flowers, tmp_path):
    folder = StudyFolder(tmp_path / "a")
    first, second = folder.store(study(flowers))
    done: list[str] = []
    with folder.lock(first) as mine:
        assert mine and folder.state(first) == "running"
        other = threading.Thread(target=lambda: done.extend(work(folder)))
        other.start()
        wait_for(lambda: folder.done(second))
        assert done == [] and not folder.run(first).exists()
    other.join()  # the holder is gone: its run is taken over
    assert done == [second.name, first.name]


def wait_for(condition, seconds=600):  # on a machine that does much else too
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


DRIVER = """
import sys
from pathlib import Path
from pliant.study.execute import execute
from pliant.study.folder import StudyFolder
from pliant.study.grid import runs_of
folder = StudyFolder(Path(sys.argv[1]))
execute(folder, runs_of(folder.study()))
"""


def worker_of(driver: int) -> int | None:
    found = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    return int(found[0]) if found else None


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for child processes in /proc")
def test_kill_the_worker_kill_the_driver_then_two_drivers(flowers, tmp_path):
    plan = study(flowers, {"epochs": 12, "cache": "off"}, method=["ln1"], seed=[0, 1, 2])
    whole = StudyFolder(tmp_path / "whole")
    whole.store(plan)
    work(whole)

    folder = StudyFolder(tmp_path / "a")
    first, second, _ = folder.store(plan)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder.path)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        wait_for(lambda: (folder.run(first) / "checkpoint.safetensors").is_file())
        killed = worker_of(driver.pid)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: folder.done(first))
        assert "resuming at epoch" in folder.log(first).read_text()
        wait_for(lambda: (folder.run(second) / "checkpoint.safetensors").is_file())
        orphan = worker_of(driver.pid)
        assert orphan != killed
    finally:
        driver.kill()
        driver.wait()

    runs = runs_of(folder.study())
    drivers = [threading.Thread(target=execute.execute, args=(folder, runs)) for _ in range(2)]
    for each in drivers:
        each.start()
    for each in drivers:
        each.join()
    assert all(map(folder.done, runs)) and not any(map(folder.failed, runs))
    for run in runs:  # nobody began a run twice
        assert folder.log(run).read_text().count("plan: ln1") == 1 + folder.log(run).read_text().count("resuming at")
    assert written(folder) == written(whole)
    wait_for(lambda: not Path(f"/proc/{orphan}").exists() or "Z" in Path(f"/proc/{orphan}/stat").read_text().split())


def test_a_run_that_kills_its_processes_is_a_failed_one(flowers, tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "a")
    first, second = folder.store(study(flowers))
    crash = tmp_path / "crash.py"
    crash.write_text(f"import os\nprint('started', {first.name!r}, flush=True)\nos.abort()\n")
    popen = subprocess.Popen
    begun: list[list[str]] = []

    def instead(command, **options):
        begun.append(command)
        return popen([sys.executable, str(crash)] if len(begun) <= 2 else [sys.executable, "-c", ""], **options)

    monkeypatch.setattr(execute.subprocess, "Popen", instead)
    execute.execute(folder, [first, second])
    assert len(begun) == 3 and folder.state(first) == "failed"
    assert "2 processes ended by signal 6" in folder.message(first)


def test_threads_are_divided(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert [execute.threads_each(count) for count in (1, 2, 8)] == [5, 2, 1]
