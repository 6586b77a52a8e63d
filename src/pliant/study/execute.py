"""Driving a study: worker processes that take the runs in order, progress, and a clean stop."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pliant.errors import PliantError
from pliant.interrupt import Interrupt, Interrupted
from pliant.progress import Live, clock, say
from pliant.study import worker
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run

DEATHS = 2
"""A run in which so many processes died is a failed one; a single death may be chance, or somebody's kill."""
STOPPING = "stopping after a checkpoint; Ctrl-C again stops at once"
_POLL = 0.5


def execute(folder: StudyFolder, runs: Sequence[Run], workers: int = 1, halve: bool = False) -> None:
    """Make all runs that are neither done nor failed; with `halve`, of the rates those that halving leaves.

    Runs are made in processes of their own, also by a single worker, so that one that is killed for its memory or
    crashes in native code takes neither the study nor the other runs down.

    Raises:
        PliantError: a worker cannot start, or a failure cannot be recorded (a full disk).
        Interrupted: Ctrl-C or SIGTERM; all runs under way were saved. The same command goes on.
    """
    for run in runs if not halve else []:
        folder.pruning(run).unlink(missing_ok=True)  # all are wanted now
    if not worker.due(folder, runs, halve):
        return
    progress = Progress(folder, runs)
    crew = _Crew(folder, {run.name: run for run in runs}, threads_each(workers), progress.announce, halve)
    try:
        with Interrupt() as interrupt:
            for _ in range(min(workers, len(progress.open))):
                crew.hire()
            _watch(crew, progress, interrupt)
    except KeyboardInterrupt:
        raise Interrupted(folder.path) from None
    finally:
        crew.dismiss()
    if not worker.due(folder, runs, halve):
        folder.tidy()


def threads_each(workers: int) -> int:
    """This machine's cores, or OMP_NUM_THREADS where it is set, divided among the workers."""
    return max(1, (threads_told() or len(os.sched_getaffinity(0))) // workers)


def threads_told() -> int | None:
    """OMP_NUM_THREADS, where it is set."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) else None


def thread_counts(threads: int) -> dict[str, str]:
    """The environment variables by which libraries learn, when they are loaded, how many threads to take."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def _watch(crew: _Crew, progress: Progress, interrupt: Interrupt) -> None:
    stopping = False
    while crew.members:
        crew.attend(_POLL)
        if interrupt.asked and not stopping:
            stopping = True
            progress.announce(STOPPING)
            crew.stop()
        progress.show()
    progress.live.clear()
    if stopping:
        raise Interrupted(crew.folder.path)


@dataclass
class _Member:
    """A worker process, and the run that it said it is at."""

    process: subprocess.Popen
    at: str | None = None


@dataclass
class _Crew:
    """The worker processes of one driver; one that dies is replaced."""

    folder: StudyFolder
    runs: dict[str, Run]
    threads: int
    announce: Callable[[str], None]
    halve: bool = False
    members: list[_Member] = field(default_factory=list)
    deaths: Counter[str | None] = field(default_factory=Counter)
    stopping: bool = False
    events: queue.Queue[tuple[_Member, str | None]] = field(default_factory=queue.Queue)

    def hire(self) -> None:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                worker.__name__,
                str(self.folder.path.resolve()),
                str(self.threads),
                worker.HALVING * self.halve,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **thread_counts(self.threads)},
            start_new_session=True,  # Ctrl-C in the terminal goes to the driver, which asks them once
        )
        member = _Member(process)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()

    def _listen(self, member: _Member) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            self.events.put((member, line))
        member.process.wait()
        self.events.put((member, None))

    def attend(self, seconds: float) -> None:
        """Wait at most so long for something to happen, and see to it."""
        try:
            member, line = self.events.get(timeout=seconds)
        except queue.Empty:
            return
        if line is None:
            self._ended(member)
            return
        event, _, name = line.strip().partition(" ")
        member.at = name if event == "started" else None
        if event == "failed" and (run := self.runs.get(name)):
            self.announce(f"failed: {run.label}: {self.folder.message(run)}")

    def _ended(self, member: _Member) -> None:
        self.members.remove(member)
        code = member.process.returncode
        if self.stopping or code == worker.FINISHED:
            return
        if code == 2:
            raise PliantError(f"{self.folder.path}: a worker could not go on; what it said stands above")
        if code != worker.RENEW:
            self._died(member.at, code)
        self.hire()

    def _died(self, name: str | None, code: int) -> None:
        self.deaths[name] += 1
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if self.deaths[name] < DEATHS:
            return
        run = self.runs.get(name or "")
        if run is None:
            raise PliantError(f"{self.folder.path}: worker processes end {how} before they begin a run")
        message = f"{DEATHS} processes ended {how} in this run" + (", perhaps for lack of memory" if code == -9 else "")
        self.folder.record_failure(run, message, f"see {self.folder.log(run).relative_to(self.folder.path)}")
        self.announce(f"failed: {run.label}: {message}")

    def stop(self) -> None:
        """Ask all to save and end."""
        self.stopping = True
        for member in self.members:
            member.process.terminate()

    def dismiss(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()


class Progress:
    """Runs settled or left out, by whichever driver, and the time that the rest will take at this pace."""

    def __init__(self, folder: StudyFolder, runs: Sequence[Run]):
        self.folder, self.runs, self.live = folder, runs, Live()
        self.open = [run for run in runs if not folder.settled(run)]
        self.at_start = len(self.open)
        self.began = time.monotonic()

    def announce(self, line: str) -> None:
        self.live.clear()
        say(line)

    def show(self, note: str = "") -> None:
        self.open = [run for run in self.open if not (self.folder.settled(run) or self.folder.pruned(run))]
        settled = self.at_start - len(self.open)
        pace = (time.monotonic() - self.began) / settled if settled else None
        left = f", {clock(pace * len(self.open))} left" if pace and self.open else ""
        self.live.show(f"{len(self.runs) - len(self.open)}/{len(self.runs)} runs{left}{note}")
