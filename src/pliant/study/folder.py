"""A study's folder: where things lie, in what state each run is, and locks that die with their holders."""

from __future__ import annotations

import json
import platform
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pliant.adapt.checkpoint import NAME as CHECKPOINT
from pliant.adapt.job import REPORT, SETTINGS, SUMMARY
from pliant.errors import PliantError
from pliant.files import held, read_json, write_json, write_text
from pliant.study.file import Study, read
from pliant.study.grid import Run, left_out, runs_of

State = Literal["done", "failed", "running", "pruned", "stopped", "waiting"]
FILE = "study.yaml"


@dataclass(frozen=True)
class StudyFolder:
    """One study on disk. All paths follow from `path`, so that the folder may be moved.

    study.yaml    the study
    runs/NAME     a run folder, as `pliant adapt` makes it
    logs/NAME.txt what the run had to say; it lies beside, since a run begins in an empty folder
    failed/NAME.json    why a run failed
    pruned/NAME.json    that halving left a run out, after how many epochs and by which accuracy
    locks/NAME    held by the process that makes the run, and says on which machine; a dead process holds none
    features/     frozen outputs that runs share, until none is left to make
    """

    path: Path

    @property
    def features(self) -> Path:
        return self.path / "features"

    def run(self, run: Run) -> Path:
        return self.path / "runs" / run.name

    def log(self, run: Run) -> Path:
        return self.path / "logs" / f"{run.name}.txt"

    def failure(self, run: Run) -> Path:
        return self.path / "failed" / f"{run.name}.json"

    def pruning(self, run: Run) -> Path:
        return self.path / "pruned" / f"{run.name}.json"

    def done(self, run: Run) -> bool:
        """The report is what a run writes last."""
        return (self.run(run) / SUMMARY).is_file() and (self.run(run) / REPORT).is_file()

    def failed(self, run: Run) -> bool:
        return self.failure(run).is_file() and not self.done(run)

    def settled(self, run: Run) -> bool:
        """Is there nothing to do for this run?"""
        return self.done(run) or self.failure(run).is_file()

    def pruned(self, run: Run) -> bool:
        """Has halving left this run out? Made in full later, it is no longer."""
        return self.pruning(run).is_file() and not self.settled(run)

    def resumable(self, run: Run) -> bool:
        return (self.run(run) / SETTINGS).is_file()

    def trained_partly(self, run: Run) -> bool:
        return (self.run(run) / CHECKPOINT).is_file()

    def state(self, run: Run) -> State:
        """Read off the files and the lock: nothing is written down that could grow stale."""
        if self.done(run):
            return "done"
        if self.failed(run):
            return "failed"
        if _is_held(self._lock(run)):
            return "running"
        if self.pruned(run):
            return "pruned"
        return "stopped" if self.resumable(run) else "waiting"

    def where(self, run: Run) -> str:
        """The machine that the run is running on, or last ran on."""
        try:
            return self._lock(run).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    @contextmanager
    def lock(self, run: Run, where: str = "") -> Iterator[bool]:
        """Inside, this process alone works on the run, on machine `where` (this one); False where another one does."""
        with held(self._lock(run), wait=False) as file:
            if file is not None:
                with suppress(OSError):  # for people to read: nothing depends on it
                    file.truncate(0)
                    file.write(where or platform.node())
                    file.flush()
            yield file is not None

    def _lock(self, run: Run) -> Path:
        return self.path / "locks" / run.name

    def study(self) -> Study:
        """The stored study. Raises PliantError where the folder holds none."""
        if not (self.path / FILE).is_file():
            raise PliantError(f"{self.path}: holds no {FILE}, so it is no study folder")
        return read(self.path / FILE)

    def store(self, study: Study) -> list[Run]:
        """Make the folder the one of `study`, or let the study that it holds grow to it; returns all runs.

        Raises:
            PliantError: the folder holds something else, or a study with runs that `study` leaves out.
        """
        study = study.absolute()
        runs = runs_of(study)
        with held(self.path / "locks" / "study", wait=True):
            self.refuse(study)
            write_text(self.path / FILE, study.yaml())
        return runs

    def refuse(self, study: Study) -> None:
        """Raises PliantError where the folder is none for `study`."""
        if not (self.path / FILE).is_file():
            others = {path.name for path in self.path.iterdir()} - {"locks"} if self.path.is_dir() else set()
            if others or self.path.is_file():
                raise PliantError(f"--out {self.path} exists and is no study folder; name another one")
            return
        if said := left_out(runs_of(self.study()), runs_of(study.absolute())):
            raise PliantError(
                f"--out {self.path} holds a study with {'; '.join(said)}, which {study.source} leaves out; a study may "
                "grow but not shrink: put that back, or name another folder"
            )

    def record_failure(self, run: Run, message: str, trace: str) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"run": run.name, "message": message, "traceback": trace, "when": when}
        write_json(self.failure(run), content)

    def record_pruning(self, run: Run, epochs: int, accuracy: float | None) -> None:
        write_json(self.pruning(run), {"run": run.name, "epochs": epochs, "val_top1": accuracy})

    def record_exception(self, run: Run, error: BaseException) -> None:
        message = str(error) if isinstance(error, PliantError) else f"{type(error).__name__}: {error}"
        self.record_failure(run, message, "".join(traceback.format_exception(error)))

    def message(self, run: Run) -> str:
        """Why a run failed, in one line."""
        return " ".join(str(read_json(self.failure(run))["message"]).split())

    def forget_failure(self, run: Run) -> None:
        """As if the run had never begun: what failed once may have left a state that fails again."""
        with self.lock(run) as mine:
            if mine and self.failed(run):
                self.clear(run)
                self.failure(run).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what runs share; none is left to make."""
        shutil.rmtree(self.features, ignore_errors=True)

    def clear(self, run: Run) -> None:
        """Remove what a run left, its settings first, so that a folder that is half removed is not resumed."""
        (self.run(run) / SETTINGS).unlink(missing_ok=True)
        shutil.rmtree(self.run(run), ignore_errors=True)


def rows_of(log: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind (`step` or `epoch`) that a run logged; none where it logs nothing.

    A line that another process is still writing has no end.
    """
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
    return [json.loads(line) for line in lines if f'"kind": "{kind}"' in line]


def _is_held(path: Path) -> bool:
    import fcntl

    if not path.is_file():
        return False
    with path.open() as file:
        try:
            # Shared, and for a moment only: a worker that finds it taken comes back to the run.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
