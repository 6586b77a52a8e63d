"""Driving a study on a Ray cluster: a task a run, on whichever node has room; progress, and a clean stop.

Where a node sees the study's folder, it works there as a local worker would. Elsewhere a run is made in a temporary
folder, and arrives here when it is done. Nothing that Ray keeps is needed to go on: the folder says what is left.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pliant.data import place
from pliant.errors import PliantError
from pliant.files import write_text
from pliant.interrupt import Interrupt, Interrupted
from pliant.study import parcel, remote
from pliant.study.cluster import Share, connected, line_of, overview, share
from pliant.study.execute import DEATHS, STOPPING, Progress, thread_counts
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run

LIMITS = {"process": DEATHS, "node": 5, "start": 5}
"""After how many losses of its process, of its node, or of processes before it began, a run is given up. A node's end
is more often chance: somebody wanted the machine back."""
_POLL = 0.5
_PAUSE = 2.0
"""Seconds until a run that another process is at is tried again."""
_SHOWN = 6


def execute(folder: StudyFolder, runs: Sequence[Run], address: str = "auto") -> None:
    """Make all runs that are neither done nor failed, as `study.execute.execute` does, on a cluster.

    Args:
        address: as `cluster.reach` takes it.

    Raises:
        PliantError: no cluster, no node that fits or that has what runs need, a full disk.
        Interrupted: Ctrl-C or SIGTERM; what was under way where nodes see the folder was saved.
    """
    left = {run.name: run for run in runs if not folder.settled(run)}
    if not left:
        return
    progress = Progress(folder, runs)
    try:
        with connected(address, folder.path / "logs" / "ray.txt") as ray, signed(folder) as sign:
            devices: list[str] = sorted({run.settings.device for run in left.values()})
            tasks = {device: _task(ray, device) for device in devices}
            progress.announce("; ".join(dict.fromkeys([overview(ray), *(str(task.share) for task in tasks.values())])))
            crew = _Crew(ray, folder, sign, tasks, left, progress.announce)
            with Interrupt() as interrupt:
                _watch(crew, progress, interrupt)
    except KeyboardInterrupt:
        raise Interrupted(folder.path) from None
    if all(map(folder.settled, runs)):
        folder.tidy()


@contextmanager
def signed(folder: StudyFolder) -> Iterator[str]:
    """A file by which a node knows that the folder it sees at this path is this one."""
    sign = folder.path.resolve() / "locks" / f"driver-{secrets.token_hex(8)}"
    write_text(sign, "")
    try:
        yield str(sign)
    finally:
        sign.unlink(missing_ok=True)


def _watch(crew: _Crew, progress: Progress, interrupt: Interrupt) -> None:
    while crew.left:
        crew.submit()
        crew.attend(_POLL)
        if interrupt.asked:
            progress.announce(STOPPING)
            crew.stop()
            raise Interrupted(crew.folder.path)
        progress.show(crew.places())
    progress.live.clear()


@dataclass(frozen=True)
class _Task:
    """The function that Ray runs, and what it takes."""

    function: Any
    share: Share


def _task(ray: Any, device: str) -> _Task:
    found = share(ray.nodes(), device)
    decorate = ray.remote(
        num_cpus=found.cores,
        num_gpus=found.gpus,
        max_retries=0,  # a run is resubmitted here, where its losses are counted
        runtime_env={"env_vars": thread_counts(found.cores)},
        _generator_backpressure_num_objects=1,  # a task goes on when its word was heard
    )
    return _Task(decorate(remote.make), found)


@dataclass
class _Job:
    """A task that Ray has, and where it is at work; until it said so, nowhere."""

    run: Run
    stream: Any
    node: str | None = None
    held: ExitStack = field(default_factory=ExitStack)


@dataclass
class _Crew:
    """The tasks of one driver; a run whose task is lost is submitted again."""

    ray: Any
    folder: StudyFolder
    sign: str
    tasks: Mapping[str, _Task]
    left: dict[str, Run]
    announce: Callable[[str], None]
    jobs: dict[Any, _Job] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    losses: Counter[tuple[str, str]] = field(default_factory=Counter)
    unfit: dict[str, str] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)

    def submit(self) -> None:
        """Hand Ray all runs that it does not have, in their order."""
        out = {job.run.name for job in self.jobs.values()}
        for run in [run for name, run in self.left.items() if name not in out]:
            if self.folder.settled(run):  # by another driver
                del self.left[run.name]
            elif time.monotonic() >= self.due.get(run.name, 0):
                stream = self._task_for(run).remote(self._order(run))
                self.jobs[stream] = _Job(run, stream)

    def _task_for(self, run: Run) -> Any:
        where: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if self.unfit:
            where["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.unfit)})"}
        return self.tasks[run.settings.device].function.options(name=run.label, **where)

    def _order(self, run: Run) -> remote.Order:
        chosen = run.settings
        paths = [place(chosen.data), *(each for each in (chosen.weights, chosen.model) if each and Path(each).exists())]
        return {
            "name": run.name,
            "settings": chosen.model_dump(),
            "sign": self.sign,
            "needs": [path for path in paths if path is not None],
            "threads": self.tasks[chosen.device].share.cores,
            "versions": remote.versions(),
        }

    def attend(self, seconds: float) -> None:
        """Wait at most so long for a word of some task, and see to it."""
        if not self.jobs:  # other processes are at all runs that are left
            time.sleep(seconds)
            return
        ready, _ = self.ray.wait(list(self.jobs), timeout=seconds, fetch_local=False)
        for stream in ready:
            self._hear(self.jobs[stream])

    def _hear(self, job: _Job) -> None:
        errors = self.ray.exceptions
        try:
            event: remote.Event = self.ray.get(next(job.stream))
        except (StopIteration, errors.TaskCancelledError):
            self._close(job)
        except errors.RayTaskError as error:
            mine = remote.versions()["pliant"]
            raise PliantError(f"a node cannot make runs; is pliant {mine} there? {line_of(error.cause)}") from error
        except errors.RayError as error:
            node = isinstance(error, errors.NodeDiedError)
            self._lost(job, "start" if job.node is None else "node" if node else "process", line_of(error))
        else:
            {"refused": self._refused, "began": self._began, "ended": self._ended}[event["event"]](job, event)

    def _began(self, job: _Job, event: remote.Event) -> None:
        job.node = event["node"]
        name = self._name(job.node)
        if event["note"] and job.node not in self.noted:
            self.noted.add(job.node)
            self.announce(f"note: {name}: {event['note']}")
        # A node that does not see the folder cannot hold its lock.
        if not event["sees"] and not job.held.enter_context(self.folder.lock(job.run, name)):
            self.ray.cancel(job.stream)
            self._close(job)

    def _refused(self, job: _Job, event: remote.Event) -> None:
        self._close(job, pause=0)
        node, why = event["node"], event["why"]
        if node not in self.unfit:
            self.announce(f"left out: {self._name(node)}: {why}")
        self.unfit[node] = why
        taking = self.tasks[job.run.settings.device].share
        fitting = {each["NodeID"] for each in self.ray.nodes() if taking.fits(each)}
        if fitting <= self.unfit.keys():
            said = "; ".join(f"{self._name(each)}: {self.unfit[each]}" for each in sorted(fitting or {node}))
            raise PliantError(f"no node of the cluster can make runs: {said}")

    def _ended(self, job: _Job, event: remote.Event) -> None:
        run = job.run
        if event["end"] == "stopped":
            self._lost(job, "process", "it was asked to end")
            return
        if event["files"]:
            parcel.unpack(event["files"], self.folder, run)
        self._close(job)
        if self.folder.settled(run):  # else another process is at it, or a network's file system takes its time
            del self.left[run.name]
        if self.folder.failed(run):
            self.announce(f"failed on {self._name(event['node'])}: {run.label}: {self.folder.message(run)}")

    def _lost(self, job: _Job, what: str, why: str) -> None:
        """The task is gone; after too many such losses, so is the run."""
        run = job.run
        self._close(job, pause=0)
        self.losses[run.name, what] += 1
        if self.losses[run.name, what] < LIMITS[what]:
            return
        if what == "start":
            raise PliantError(f"{self.folder.path}: processes on the cluster end before they begin a run: {why}")
        many = f"{LIMITS[what]} {'processes' if what == 'process' else 'nodes'} ended in this run"
        log = self.folder.log(run).relative_to(self.folder.path)
        self.folder.record_failure(run, f"{many}, the last: {why}", f"see {log}, where its node saw this folder")
        self.announce(f"failed: {run.label}: {self.folder.message(run)}")

    def _close(self, job: _Job, pause: float = _PAUSE) -> None:
        self.due[job.run.name] = time.monotonic() + pause
        del self.jobs[job.stream]
        job.held.close()

    def _name(self, node: str) -> str:
        if node not in self.names:
            self.names = remote.names(self.ray.nodes())
        return self.names.get(node, node[:8])

    def places(self) -> str:
        """How many runs are under way on each node."""
        counts = Counter(self._name(job.node) for job in self.jobs.values() if job.node)
        if not counts:
            return "; none has begun on a node yet"
        more = f" and {len(counts) - _SHOWN} nodes more" if len(counts) > _SHOWN else ""
        return "; under way: " + ", ".join(f"{count} on {name}" for name, count in counts.most_common(_SHOWN)) + more

    def stop(self) -> None:
        """Ask all to save and end, and wait until they have."""
        for stream in self.jobs:
            self.ray.cancel(stream)
        while self.jobs:
            ready, _ = self.ray.wait(list(self.jobs), timeout=_POLL, fetch_local=False)
            for stream in ready:
                self._hear_out(self.jobs[stream])

    def _hear_out(self, job: _Job) -> None:
        """While stopping: what arrives is kept, all else only says that the task has ended."""
        try:
            event: remote.Event = self.ray.get(next(job.stream))
        except (StopIteration, self.ray.exceptions.RayError):
            self._close(job)
            return
        if event["event"] == "ended" and event["files"]:
            parcel.unpack(event["files"], self.folder, job.run)
