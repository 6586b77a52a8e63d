"""A Ray cluster: reaching it, and what a run takes of its nodes."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.errors import PliantError
from pliant.files import explained
from pliant.study.execute import threads_told

_ANSWER = 5.0
"""Seconds that a cluster has to answer in."""
_LONG = 160


def reach(address: str) -> str:
    """HOST:PORT of the head of the cluster that `address` (`auto`: of this machine, or HOST:PORT) names.

    Raises:
        PliantError: Ray is not installed, or nothing answers there. Ray itself would try for minutes.
    """
    _import()
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address(address)
    except ConnectionError:
        raise PliantError(
            "--ray auto: no Ray is running on this machine; start a cluster with `ray start --head`, or join one with "
            "`ray start --address=HOST:6379`"
        ) from None
    except ValueError:
        found = None
    if found is None:
        raise PliantError(f"--ray {address}: give auto, or the address of the cluster's head, as in 10.0.0.1:6379")
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PliantError(
            f"--ray {address}: no cluster answers at {found} ({error}); `ray start --head` on that machine starts one"
        ) from None
    return found


@contextmanager
def connected(address: str, log: Path) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; what Ray prints, on standard output, goes to `log`.

    A caller who is connected already stays so, to whichever cluster that is.
    """
    ray = _import()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise explained(log, error) from error
    with file, redirect_stdout(file):
        if ray.is_initialized():
            yield ray
        else:
            with _initialized(ray, address):
                yield ray


@contextmanager
def _initialized(ray: Any, address: str) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)  # ray.init takes it for itself
    found = reach(address)
    try:
        ray.init(address=found, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # not a node of it; another version of Ray or Python
        raise PliantError(f"--ray {address}: {line_of(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Share:
    """Of a node, what one run takes."""

    cores: int
    gpus: int

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"a run takes {cores}{' and a GPU' if self.gpus else ''}"

    def fits(self, node: Mapping[str, Any]) -> bool:
        has = node["Resources"]
        return bool(node["Alive"]) and has.get("CPU", 0) >= self.cores and has.get("GPU", 0) >= self.gpus


def share(nodes: Sequence[Mapping[str, Any]], device: str) -> Share:
    """What a run on `device` takes of the nodes that `ray.nodes()` lists.

    A GPU for `cuda`, and for `auto` where there is one. As many cores as OMP_NUM_THREADS says; else one, and with a GPU
    the cores that there are for each.

    Raises:
        PliantError: no node has as much.
    """
    having = [node["Resources"] for node in nodes if node["Alive"]]
    with_gpu = [has for has in having if has.get("GPU", 0) >= 1]
    if device == "cuda" and not with_gpu:
        raise PliantError("device cuda: no node of the cluster has a GPU; take cpu")
    gpus = int(device in ("auto", "cuda") and bool(with_gpu))
    most = [int(has.get("CPU", 0) // (has["GPU"] if gpus else 1)) for has in (with_gpu if gpus else having)]
    found = Share(threads_told() or (max(1, min(most)) if gpus else 1), gpus)
    if not any(map(found.fits, nodes)):
        raise PliantError(
            f"no node of the cluster is large enough: {found}; start nodes with more, or set OMP_NUM_THREADS"
        )
    return found


def _import() -> Any:
    try:
        import ray
    except ImportError:
        raise PliantError("--ray needs Ray: pip install 'pliant[ray]', here and on every node") from None
    return ray


def overview(ray: Any) -> str:
    """What the cluster is."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total = {what: int(sum(node["Resources"].get(what, 0) for node in nodes)) for what in ("CPU", "GPU")}
    board = ray.get_runtime_context().gcs_address
    return f"cluster at {board}: nodes: {len(nodes)}, cores: {total['CPU']}, GPUs: {total['GPU']}"


def line_of(error: BaseException) -> str:
    """An error of Ray's, which may be pages, in one line that is not too long to read."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= _LONG else f"{line[:_LONG]}..."
