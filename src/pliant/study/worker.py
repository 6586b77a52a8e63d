"""A process that makes runs of a study: python -m pliant.study.worker FOLDER THREADS [halving]."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Literal

from pliant.errors import PliantError
from pliant.files import explained
from pliant.interrupt import Interrupted
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run, runs_of

FINISHED, RENEW, STOPPED = 0, 3, 130
"""Exit codes: no run is left; a run failed in a way that may have harmed the process; asked to stop."""
_POLL = 0.5
HALVING = "halving"
"""The argument by which a worker is told to halve."""
MOST = 256
"""Runs made together at most, so that memory does not grow with the study."""

Tell = Callable[[str, Run], None]
End = Literal["settled", "harmed", "taken"]
"""Of taking up a run: nothing is left of it; it failed in a way that may have harmed the process; another one is at it."""


def attempt(folder: StudyFolder, run: Run, until: int | None = None) -> Exception | None:
    """Make one run from wherever it stands, to its end or `until` so many epochs; returns, and records, its error.

    The caller holds the run's lock.

    Raises:
        Interrupted: asked to stop; the run's state is saved.
    """
    from pliant import adapt
    from pliant.adapt.hooks import Paused, pause_after

    try:
        if folder.resumable(run):
            adapt.resume(folder.run(run), shelf=folder.features, hooks=pause_after(until))
        else:
            folder.clear(run)
            out = str(folder.run(run))
            chosen = run.settings.model_copy(update={"out": out})
            adapt.run(chosen, _command(run), shelf=folder.features, hooks=pause_after(until))
    except Paused:
        return None
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(folder.path) from None
    except Exception as error:
        folder.record_exception(run, error)
        return error
    folder.failure(run).unlink(missing_ok=True)
    return None


def attempt_together(folder: StudyFolder, runs: Sequence[Run]) -> list[Exception]:
    """Make runs of the same `heads.kind` at once; where that cannot be, one at a time. Returns, and records, errors.

    The caller holds the locks of all.

    Raises:
        Interrupted: asked to stop.
    """
    from pliant.adapt import heads

    asked = []
    for run in runs:
        folder.clear(run)
        asked.append(run.settings.model_copy(update={"out": str(folder.run(run))}))
    try:
        failed = heads.run_together(asked, _command(runs[0]), folder.features)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(folder.path) from None
    except Exception as problem:
        print(f"one at a time, since together: {type(problem).__name__}: {problem}", file=sys.stderr)
        return _one_by_one(folder, runs)
    for run in runs:
        if error := failed.get(str(folder.run(run))):
            folder.record_exception(run, error)
        else:
            folder.failure(run).unlink(missing_ok=True)
    return list(failed.values())


def _one_by_one(folder: StudyFolder, runs: Sequence[Run]) -> list[Exception]:
    """Up to an error that may have harmed the process."""
    problems: list[Exception] = []
    for run in runs:
        if problem := attempt(folder, run):
            problems.append(problem)
            if not isinstance(problem, PliantError):
                break
    return problems


def _command(run: Run) -> str:
    return f"pliant study run (run {run.name})"


def take(
    folder: StudyFolder,
    run: Run,
    until: int | None = None,
    alike: Sequence[Run] = (),
    tell: Tell = lambda event, run: None,
    where: str = "",
) -> End:
    """Make a run that nobody else makes. This is all that a place of work needs to do, whatever hands out the runs.

    Args:
        until: how many epochs to train; None: to the end.
        alike: runs of the same `heads.kind`; those that nobody else makes are made with it.
        where: what people call this machine, where that is not its own name.

    Raises:
        Interrupted: asked to stop; the run's state is saved.
    """
    from pliant.study.halving import reached

    with folder.lock(run, where) as mine:
        if not mine:
            return "taken"
        if reached(folder, run, until):  # another process may have been faster, before the lock was ours
            return "settled"
        problems = _make(folder, run, until, alike, tell)
    return "settled" if all(isinstance(problem, PliantError) for problem in problems) else "harmed"


def _make(folder: StudyFolder, run: Run, until: int | None, alike: Sequence[Run], tell: Tell) -> list[Exception]:
    """Make `run`, whose lock is held, and what can be made with it; returns, and records, errors."""
    from pliant.adapt import heads

    together = heads.kind(run.settings) is not None and not folder.trained_partly(run)
    with ExitStack() as locks:
        group = [run]
        for other in alike if together else []:
            free = other.name != run.name and not folder.settled(other) and not folder.trained_partly(other)
            # Looked at again, since another process may have finished it before the lock was ours.
            if free and locks.enter_context(folder.lock(other)) and not folder.settled(other):
                group.append(other)
            if len(group) == MOST:
                break
        tell("started", run)
        with speaking_to(folder.log(run)):
            if together:
                problems = attempt_together(folder, group)
            else:
                problems = list(filter(None, [attempt(folder, run, until)]))
        for other in group[1:]:
            with speaking_to(folder.log(other)):
                print(f"made together with others; see {folder.log(run).name}")
        for each in group:
            if folder.settled(each) or until is not None:
                tell("failed" if folder.failed(each) else "done" if folder.settled(each) else "paused", each)
    return problems


def due(folder: StudyFolder, runs: Sequence[Run], halve: bool) -> list[tuple[Run, int | None]]:
    """What is left to do: runs, each up to a number of epochs or, with None, to its end."""
    if not halve:
        return [(run, None) for run in runs if not folder.settled(run)]
    from pliant.study import halving

    halving.record(folder, runs)
    return halving.due(folder, runs)


def work(folder: StudyFolder, runs: Sequence[Run], tell: Tell = lambda event, run: None, halve: bool = False) -> int:
    """Make all runs that nobody else makes, in order, and wait for those that others make; returns an exit code.

    It waits because another one's process may die, and its run is then taken over here. With `halve`, rates are halved,
    and what is left to do shows as runs come to their rungs.
    """
    from pliant.adapt import heads
    from pliant.study.halving import reached

    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if kind := heads.kind(run.settings):
            kinds.setdefault(kind, []).append(run)
    while left := due(folder, runs, halve):
        taken = False
        for run, until in left:
            if reached(folder, run, until):
                continue
            end = take(folder, run, until, kinds.get(heads.kind(run.settings) or "", []), tell)
            if end == "harmed":
                return RENEW
            taken = taken or end == "taken"
        if taken:
            time.sleep(_POLL)
    return FINISHED


@contextmanager
def speaking_to(log: Path) -> Iterator[None]:
    """Send standard output and error, also of native code, to the end of `log`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise explained(log, error) from error
    with file:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            with redirect_stdout(file), redirect_stderr(file):
                yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)


def _stop_without_driver() -> None:
    """Standard input ends when the driver does, also when it is killed: nobody would know of this process then."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(place: str, threads: str, how: str = "") -> int:
    # Training catches SIGTERM between two steps; elsewhere it unwinds like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    faulthandler.enable()
    events = os.fdopen(os.dup(1), "w", buffering=1)

    def tell(event: str, run: Run) -> None:
        print(event, run.name, file=events)

    try:
        _stop_without_driver()
        import torch

        torch.set_num_threads(int(threads))
        folder = StudyFolder(Path(place))
        return work(folder, runs_of(folder.study()), tell, halve=how == HALVING)
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except PliantError as error:
        print(f"pliant: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    # Not sys.exit: the thread that reads standard input would hold up the interpreter's end.
    os._exit(code)
