"""A study on a real Ray cluster of two nodes: the loss of one, results that are copied back, a stop, what it refuses."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch

from pliant.errors import PliantError
from pliant.study import cluster, on_ray, parcel, remote
from pliant.study.file import parse
from pliant.study.folder import StudyFolder
from tests.study.test_execute import FIXED, flowers, study, wait_for, work, written  # noqa: F401


@pytest.fixture(scope="module")
def nodes():
    """Two nodes, `a` and `b`, of one core each. The first test kills `b`."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'pliant[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    sooner = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    one = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={**one, "node_name": "a", "_system_config": sooner})
    made.b = made.add_node(**one, node_name="b")
    try:
        with cluster._initialized(ray, made.address):  # one connection, so that processes are used again
            yield made
    finally:
        made.shutdown()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def meanwhile(do):
    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_stop_saves_and_a_lost_node_is_made_up_for(flowers, nodes, tmp_path, capfd):  # noqa: F811
    # Long enough that the loss of a node finds a run half-way.
    plan = study(flowers, {"epochs": 40, "cache": "off"}, method=["ln1"], seed=list(range(4)))
    whole = StudyFolder(tmp_path / "whole")
    whole.store(plan)
    work(whole)

    folder = StudyFolder(tmp_path / "a")
    runs = folder.store(plan)
    begun = lambda node: [  # noqa: E731
        run for run in runs if folder.where(run) == node and (folder.run(run) / "checkpoint.safetensors").is_file()
    ]

    def stop():
        wait_for(lambda: begun("a"))
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(stop), pytest.raises(on_ray.Interrupted):
        on_ray.execute(folder, runs)
    states = [folder.state(run) for run in runs]
    assert "stopped" in states and "waiting" in states and "running" not in states

    lost = []

    def kill():
        wait_for(lambda: begun("b"))
        lost.extend(begun("b"))
        nodes.remove_node(nodes.b, allow_graceful=False)

    with meanwhile(kill):
        on_ray.execute(folder, runs)
    assert [folder.state(run) for run in runs] == ["done"] * 4
    assert folder.where(lost[0]) == "a" and "resuming at epoch" in folder.log(lost[0]).read_text()
    assert written(folder) == written(whole)
    assert not list((folder.path / "locks").glob("driver-*"))
    out, err = capfd.readouterr()
    assert "nodes: 2, cores: 2" in err and "a run takes 1 core" in err and "raylet" not in out


def test_where_no_node_sees_the_folder_runs_are_copied_back(flowers, nodes, tmp_path, monkeypatch, capsys):  # noqa: F811
    broken = tmp_path / "broken"
    for name in ("cat", "dog"):
        (broken / name).mkdir(parents=True)
        (broken / name / "0.png").write_bytes(b"no image")
    plan = parse({"axes": {"data": [flowers, str(broken)], "method": ["head"]}, "fixed": FIXED}, "study")
    whole, folder = StudyFolder(tmp_path / "whole"), StudyFolder(tmp_path / "a")
    good, bad = whole.store(plan)
    work(whole)
    folder.store(plan)
    monkeypatch.setattr(on_ray, "signed", lambda folder: nullcontext(str(tmp_path / "elsewhere" / "locks" / "sign")))
    on_ray.execute(folder, [good, bad])
    assert folder.done(good) and folder.where(good) in ("a", "b") and folder.failed(bad)
    names = [
        sorted(str(path.relative_to(each.run(good))) for path in each.run(good).rglob("*.*"))
        for each in (whole, folder)
    ]
    assert names[0] == names[1] == sorted(parcel.FILES)
    assert written(folder) == written(whole) and folder.message(bad) == whole.message(bad)
    assert "plan: head" in folder.log(good).read_text() and f": {bad.label}: {broken}" in capsys.readouterr().err
    assert not list(tmp_path.glob("elsewhere"))


def test_a_node_that_lacks_something_makes_no_run(flowers, nodes, tmp_path, monkeypatch):  # noqa: F811
    folder = StudyFolder(tmp_path / "a")
    run, _ = folder.store(study(flowers))
    order = on_ray._Crew._order
    monkeypatch.setattr(on_ray._Crew, "_order", lambda crew, run: order(crew, run) | {"needs": ["/no/flowers"]})
    with pytest.raises(PliantError, match="no node of the cluster can make runs: a: it has no /no/flowers"):
        on_ray.execute(folder, [run])
    monkeypatch.setattr(on_ray._Crew, "_order", order)
    monkeypatch.setattr(remote, "__version__", "9")
    with pytest.raises(PliantError, match="a: it has pliant .*, and not 9; install 9 there"):
        on_ray.execute(folder, [run])
    assert folder.state(run) == "waiting"
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    with pytest.raises(PliantError, match="no node of the cluster is large enough: a run takes 1000 cores"):
        on_ray.execute(folder, [run])


def test_a_run_that_kills_its_processes_is_a_failed_one(flowers, nodes, tmp_path, monkeypatch):  # noqa: F811
    folder = StudyFolder(tmp_path / "a")
    harmful, deadly = folder.store(study(flowers, method=["ln1"], seed=[0, 1]))
    first = harmful.name

    def instead(order):
        """Sent to the node as it stands here."""
        with (tmp_path / order["name"]).open("a") as begun:
            begun.write(f"{os.getpid()}\n")
        if order["name"] != first:
            yield {"event": "began", "node": "", "sees": True, "note": ""}
            os.abort()
        from pliant.study import remote, worker

        worker.attempt = lambda folder, run, _: folder.record_exception(run, MemoryError("no room")) or MemoryError()
        yield from remote.make(order)

    monkeypatch.setattr(remote, "make", instead)
    on_ray.execute(folder, [harmful, deadly])
    assert folder.failed(harmful) and folder.message(harmful) == "MemoryError: no room"
    assert folder.failed(deadly) and folder.message(deadly).startswith("2 processes ended in this run, the last: ")
    one, others = ((tmp_path / run.name).read_text().split() for run in (harmful, deadly))
    assert len(one) == 1 and len({*one, *others}) == 3  # a process in which such a thing happened makes no other run


def test_only_files_of_a_run_arrive(tmp_path, flowers):  # noqa: F811
    folder = StudyFolder(tmp_path / "a")
    run, _ = folder.store(study(flowers))
    for name in ("../study.yaml", "/etc/passwd", "learned/../run.yaml", "code.pkl"):
        with pytest.raises(PliantError, match="is no file of a run"):
            parcel.unpack({"log": b"", name: b""}, folder, run)
    with pytest.raises(PliantError, match="is no file of a run"):
        parcel.unpack({"log": "text"}, folder, run)
    assert not folder.log(run).exists() and not folder.run(run).exists()
    (folder.run(run) / "learned").mkdir(parents=True)  # half made, before
    folder.log(run).parent.mkdir()
    folder.log(run).write_bytes(b"1")
    parcel.unpack({"log": b"2", "run.yaml": b"data: x"}, folder, run)
    assert folder.log(run).read_bytes() == b"12"
    assert [path.name for path in folder.run(run).iterdir()] == ["run.yaml"]


def node(cpu, gpu=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": float(cpu), **({"GPU": float(gpu)} if gpu else {})}}


def test_what_a_run_takes(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    mixed = [node(64), node(16, 4), node(12, 2), node(8, 8, alive=False)]
    assert cluster.share(mixed, "cpu") == cluster.Share(1, 0)
    assert cluster.share(mixed, "auto") == cluster.share(mixed, "cuda") == cluster.Share(4, 1)
    assert cluster.share([node(64)], "auto") == cluster.Share(1, 0)
    with pytest.raises(PliantError, match="device cuda: no node of the cluster has a GPU"):
        cluster.share([node(64)], "cuda")
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert cluster.share(mixed, "auto") == cluster.Share(16, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "32")
    with pytest.raises(PliantError, match="large enough: a run takes 32 cores and a GPU"):
        cluster.share(mixed, "auto")


def test_no_ray_and_no_cluster(monkeypatch):
    for address, said in (
        ("127.0.0.1:1", "no cluster answers at"),
        ("ray://x:1", "give auto, or"),
        ("x", "give auto, or"),
    ):
        pytest.importorskip("ray", reason="needs Ray: pip install 'pliant[ray]'")
        with pytest.raises(PliantError, match=said):
            cluster.reach(address)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PliantError, match=r"--ray needs Ray: pip install 'pliant\[ray\]'"):
        cluster.reach("auto")
