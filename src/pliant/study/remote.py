"""One run of a study on a node of a cluster: what a Ray task does there, and what it tells the driver.

Orders and events are plain values, which also a node with another version of pliant can read.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypedDict

from pliant import __version__
from pliant.interrupt import Interrupted
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run


class Order(TypedDict):
    """All that a node needs to make a run.

    name, settings: of the run.
    sign: a file in `locks` of the study's folder; a node that sees it sees the folder.
    needs: paths that the run reads, of data, weights or a model.
    threads: that torch computes with.
    versions: of the driver's packages, pliant among them.
    """

    name: str
    settings: dict[str, Any]
    sign: str
    needs: list[str]
    threads: int
    versions: dict[str, str]


class Event(TypedDict, total=False):
    """What a task tells, in this order: that this node cannot make the run, or that it began and how it ended.

    node: Ray's name of the node.
    sees: (began) does it see the study's folder, so that the run is made there?
    note: (began) what may make results differ.
    why: (refused) what the node lacks.
    end: (ended) `worker.End`, or `stopped` by something else than the driver.
    files: (ended) the run, from a node that does not see the folder; see `parcel`.
    """

    event: Literal["refused", "began", "ended"]
    node: str
    sees: bool
    note: str
    why: str
    end: str
    files: dict[str, bytes]


def versions() -> dict[str, str]:
    """Of this process: pliant, and what most decides on the digits of results."""
    return {"pliant": __version__, "torch": _version("torch"), "timm": _version("timm")}


def make(order: Order) -> Iterator[Event]:
    """Make one run. Its errors are recorded as in any study; what this raises is the node's fault.

    The driver takes each event before this goes on after it (Ray's backpressure).
    """
    import ray

    node, where = _here(ray)
    if why := lacking(order):
        yield {"event": "refused", "node": node, "why": why}
        return
    sees = Path(order["sign"]).is_file()
    yield {"event": "began", "node": node, "sees": sees, "note": differing(order["versions"])}
    end, files = _make(order, sees, where)
    yield {"event": "ended", "node": node, "end": end, "files": files}
    if end == "harmed":
        sys.exit()  # Ray makes another process


def _make(order: Order, sees: bool, where: str) -> tuple[str, dict[str, bytes]]:
    import torch

    from pliant.adapt.settings import settings
    from pliant.study import parcel, worker

    torch.set_num_threads(order["threads"])
    run = Run(order["name"], settings(**order["settings"]))
    with _workplace(Path(order["sign"]), sees) as folder:
        try:
            end: str = worker.take(folder, run, where=where)
        except Interrupted:
            end = "stopped"
        return end, {} if sees else parcel.pack(folder, run)


@contextmanager
def _workplace(sign: Path, sees: bool) -> Iterator[StudyFolder]:
    """The study's own folder, or one for the time of a run."""
    if sees:
        yield StudyFolder(sign.parent.parent)
        return
    with tempfile.TemporaryDirectory(prefix="pliant-") as place:
        yield StudyFolder(Path(place))


def lacking(order: Order) -> str:
    """Why this node cannot make the run; empty where it can."""
    if (wanted := order["versions"]["pliant"]) != __version__:
        return f"it has pliant {__version__}, and not {wanted}; install {wanted} there"
    missing = [path for path in order["needs"] if not Path(path).exists()]
    return f"it has no {', '.join(missing)}; put that there, at the same path" if missing else ""


def differing(wanted: dict[str, str]) -> str:
    """Which packages have another version here; empty where none has."""
    mine = versions()
    other = [f"{name} {mine[name]} and not {it}" for name, it in wanted.items() if mine[name] != it]
    return f"it has {', '.join(other)}: results may differ in the last digits" if other else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _here(ray: Any) -> tuple[str, str]:
    """Ray's name of this node, and people's."""
    node = ray.get_runtime_context().get_node_id()
    return node, names(ray.nodes()).get(node, node[:8])


def names(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """What people call the nodes that `ray.nodes()` lists: the name they were given, or the machine's."""
    return {
        node["NodeID"]: node["NodeManagerHostname"]
        if node.get("NodeName") in (None, "", node["NodeManagerAddress"])
        else node["NodeName"]
        for node in nodes
    }
