"""A process that makes runs of a study: python -m pliant.study.worker FOLDER THREADS."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from pliant.errors import PliantError
from pliant.files import explained
from pliant.interrupt import Interrupted
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run, runs_of

FINISHED, RENEW, STOPPED = 0, 3, 130
"""Exit codes: no run is left; a run failed in a way that may have harmed the process; asked to stop."""
_POLL = 0.5

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
            adapt.resume(folder.run(run))
        else:
            folder.clear(run)
            out = str(folder.run(run))
            adapt.run(run.settings.model_copy(update={"out": out}), f"pliant study run (run {run.name})")
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(folder.path) from None
    except Exception as error:
        folder.record_exception(run, error)
        return error
    folder.failure(run).unlink(missing_ok=True)
    return None


def work(folder: StudyFolder, runs: Sequence[Run], tell: Tell = lambda event, run: None) -> int:
    """Make all runs that nobody else makes, in order, and wait for those that others make; returns an exit code.

    It waits because another one's process may die, and its run is then taken over here.
    """
    while True:
        taken = False
        for run in runs:
            if folder.settled(run):
                continue
            with folder.lock(run) as mine:
                if not mine:
                    taken = True
                elif not folder.settled(run):  # another process may have finished it before the lock was ours
                    tell("started", run)
                    with speaking_to(folder.log(run)):
                        problem = attempt(folder, run)
                    tell("failed" if problem else "done", run)
                    if problem is not None and not isinstance(problem, PliantError):
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
