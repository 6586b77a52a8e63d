"""A process that makes runs of a study: python -m pliant.study.worker FOLDER THREADS."""

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

from pliant.errors import PliantError
from pliant.files import explained
from pliant.interrupt import Interrupted
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run, runs_of

FINISHED, RENEW, STOPPED = 0, 3, 130
"""Exit codes: no run is left; a run failed in a way that may have harmed the process; asked to stop."""
_POLL = 0.5
MOST = 256
"""Runs made together at most, so that memory does not grow with the study."""

Tell = Callable[[str, Run], None]


def attempt(folder: StudyFolder, run: Run) -> Exception | None:
    """Make one run from wherever it stands; returns, and records, the error that it failed with.

    The caller holds the run's lock. This is all that a place of work needs to do, whatever hands out the runs.

    Raises:
        Interrupted: asked to stop; the run's state is saved.
    """
    from pliant import adapt

    try:
        if folder.resumable(run):
            adapt.resume(folder.run(run), shelf=folder.features)
        else:
            folder.clear(run)
            out = str(folder.run(run))
            adapt.run(run.settings.model_copy(update={"out": out}), _command(run), shelf=folder.features)
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


def _make(folder: StudyFolder, run: Run, alike: Sequence[Run], tell: Tell) -> list[Exception]:
    """Make `run`, whose lock is held, together with those of `alike` that nobody else makes."""
    with ExitStack() as locks:
        group = [run]
        for other in alike if not folder.trained_partly(run) else []:
            free = other.name != run.name and not folder.settled(other) and not folder.trained_partly(other)
            # Looked at again, since another process may have finished it before the lock was ours.
            if free and locks.enter_context(folder.lock(other)) and not folder.settled(other):
                group.append(other)
            if len(group) == MOST:
                break
        tell("started", run)
        with speaking_to(folder.log(run)):
            if alike and not folder.trained_partly(run):
                problems = attempt_together(folder, group)
            else:
                problems = _one_by_one(folder, [run])
        for other in group[1:]:
            with speaking_to(folder.log(other)):
                print(f"made together with others; see {folder.log(run).name}")
        for each in filter(folder.settled, group):
            tell("failed" if folder.failed(each) else "done", each)
    return problems


def work(folder: StudyFolder, runs: Sequence[Run], tell: Tell = lambda event, run: None) -> int:
    """Make all runs that nobody else makes, in order, and wait for those that others make; returns an exit code.

    It waits because another one's process may die, and its run is then taken over here.
    """
    from pliant.adapt import heads

    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if kind := heads.kind(run.settings):
            kinds.setdefault(kind, []).append(run)
    while True:
        taken = False
        for run in runs:
            if folder.settled(run):
                continue
            with folder.lock(run) as mine:
                if not mine:
                    taken = True
                elif not folder.settled(run):  # another process may have finished it before the lock was ours
                    problems = _make(folder, run, kinds.get(heads.kind(run.settings) or "", []), tell)
                    if not all(isinstance(problem, PliantError) for problem in problems):
                        return RENEW
        if not taken:
            return FINISHED
        time.sleep(_POLL)


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


def main(place: str, threads: str) -> int:
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
        return work(folder, runs_of(folder.study()), tell)
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
