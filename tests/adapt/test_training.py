"""The loop: fast paths equal slow ones, frozen stays frozen, stopping changes nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from pliant import PliantError, adapt, backbone
from pliant.adapt import features, training
from pliant.adapt.learned import WEIGHTS


def run(small, folder, **changes) -> Path:
    return adapt.run(adapt.settings(**{**small, "out": str(folder), **changes}))


def learned(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "learned" / WEIGHTS)


def rows(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def assert_same(first: Path, second: Path) -> None:
    a, b = learned(first), learned(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [r["loss"] for r in rows(first, "step")] == [r["loss"] for r in rows(second, "step")]


def test_a_run_learns_and_says_everything(small, tmp_path):
    folder = run(small, tmp_path / "a", epochs=8)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["top1"] > 0.8  # three colours: random weights suffice
    assert rows(folder, "step")[0]["loss"] == pytest.approx(math.log(3), abs=0.25)
    assert rows(folder, "step")[-1]["loss"] < 0.5
    assert summary["data"]["classes"] == ["cat", "dog", "owl"]
    assert {p.name for p in folder.iterdir()} >= {
        "run.yaml",
        "metrics.jsonl",
        "summary.json",
        "report.html",
        "learned",
        "split.json",
    }
    assert not (folder / "checkpoint.safetensors").exists()
    assert summary["gap"] == pytest.approx(summary["train"]["top1"] - summary["test"]["top1"])
    assert "learned" in "\n".join(adapt.headline(folder))


@pytest.mark.parametrize("method", ["adapter", "lora", "ln1", "full"])
def test_the_same_seed_gives_the_same_run_and_another_does_not(small, tmp_path, method):
    small = {**small, "method": method, "rank": 4 if method in ("adapter", "lora") else None, "epochs": 2}
    assert_same(run(small, tmp_path / "a"), run(small, tmp_path / "b"))
    other = learned(run(small, tmp_path / "c", seed=1))
    assert any(not torch.equal(value, other[name]) for name, value in learned(tmp_path / "a").items())


@pytest.mark.parametrize("method", ["head", "adapter", "mha"])
@pytest.mark.parametrize("cache", ["memory", "file"])
def test_cached_equals_streamed(small, tmp_path, method, cache):
    """Half precision rounds inputs by 2^-11, so losses agree to about a thousandth."""
    blocks, rank = "all" if method == "head" else "last:2", 4 if method == "adapter" else None
    small = {**small, "method": method, "rank": rank, "blocks": blocks, "lr": 1e-3}
    slow, fast = run(small, tmp_path / "slow", cache="off"), run(small, tmp_path / "fast", cache=cache)
    a, b = rows(slow, "step"), rows(fast, "step")
    assert [row["loss"] for row in a] == pytest.approx([row["loss"] for row in b], rel=3e-3)
    for name, value in learned(slow).items():
        torch.testing.assert_close(value, learned(fast)[name], rtol=0.05, atol=2e-3)
    assert json.loads((fast / "summary.json").read_text())["training"]["cache"]["where"] == cache


def test_the_frozen_part_runs_once_an_image(small, tmp_path, monkeypatch):
    seen = []
    original = features.Streamed.seen

    def counted(self, indices, views):
        seen.append((self.images.name, len(indices)))
        return original(self, indices, views)

    monkeypatch.setattr(features.Streamed, "seen", counted)
    folder = run({**small, "method": "head", "rank": None}, tmp_path / "a", epochs=10)
    sizes = json.loads((folder / "summary.json").read_text())["data"]
    total = sum(count for _, count in seen)
    # Each image once, and the first chunk of training and validation once more to learn its size.
    assert total <= sizes["train"] + sizes["val"] + sizes["test"] + 2 * 32


def test_views_are_fixed_and_cached(small, tmp_path):
    small = {**small, "augment": "crop", "views": 2, "epochs": 4, "method": "head", "rank": None}
    slow, fast = run(small, tmp_path / "a", cache="off"), run(small, tmp_path / "b", cache="memory")
    assert json.loads((fast / "summary.json").read_text())["training"]["cache"]["where"] == "memory"
    assert [r["loss"] for r in rows(fast, "step")] == pytest.approx([r["loss"] for r in rows(slow, "step")], rel=3e-3)


def test_a_cached_view_is_the_streamed_view(flowers):
    from pliant.data import Preprocess, open_splits

    images = open_splits(str(flowers)).train
    preprocess, device = Preprocess(16, (0.5,) * 3, (0.5,) * 3), torch.device("cpu")
    source = features.Streamed(images, preprocess, lambda x: x, device, 8, "crop", seed=3, views=3)
    cached = features.cached(source, features.CacheRequest("memory", 3, {}), print, "x")
    indices = np.array([4, 1, 7])
    batches = [source.batch(indices, epoch) for epoch in range(4)]
    for epoch, batch in enumerate(batches):
        torch.testing.assert_close(cached.batch(indices, epoch), batch.half().float(), rtol=0, atol=0)
    assert torch.equal(batches[0], batches[3]) and not torch.equal(batches[0], batches[1])


@pytest.mark.parametrize("micro", [1, 3, 8])
def test_micro_batches_change_memory_not_results(small, tmp_path, micro):
    small = {**small, "lr": 1e-3}
    whole, parts = run(small, tmp_path / "whole", micro_batch=8), run(small, tmp_path / "parts", micro_batch=micro)
    assert [r["loss"] for r in rows(whole, "step")] == pytest.approx([r["loss"] for r in rows(parts, "step")], rel=1e-4)
    assert [r["grad_norm"] for r in rows(whole, "step")] == pytest.approx(
        [r["grad_norm"] for r in rows(parts, "step")], rel=1e-3
    )


def test_the_backbone_is_the_same_after_training(small, tmp_path, monkeypatch):
    models = []
    original = training.Trainer.run

    def kept(self):
        models.append((self.model, {k: v.clone() for k, v in self.model.state_dict().items()}))
        original(self)

    monkeypatch.setattr(training.Trainer, "run", kept)
    run(small, tmp_path / "a")
    model, before = models[0]
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen and all(torch.equal(model.state_dict()[name], before[name]) for name in frozen)
    torch.manual_seed(0)
    plain = backbone.load("test_vit", img_size=32, num_classes=3, random_init=True)
    restored = adapt.restore(plain, tmp_path / "a")  # the fingerprint of the untouched backbone still fits
    assert restored.pliant_adaptation.classes == ("cat", "dog", "owl")


COMMAND = """
import sys, os, signal
from pliant.adapt import training
original = training.Trainer._update
kill_at, soft = int(sys.argv[2]), sys.argv[3] == "soft"
def update(self, *args):
    if self.position.step == kill_at and self.checkpoint_path:
        if not soft: os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGINT)
    return original(self, *args)
training.Trainer._update = update
from pliant.cli import main
sys.argv = ["pliant", "adapt", *sys.argv[4:]]
main()
"""


def command(small, out, *more) -> list[str]:
    arguments = [small["data"], "--out", str(out)]
    for name, value in small.items():
        if name not in ("data", "out"):
            option = "--" + name.replace("_", "-")
            arguments += [option] if value is True else [option, str(value)]
    return [*arguments, *more]


@pytest.mark.parametrize(("step", "how", "optimizer"), [
    (0, "kill", "adamw"), (2, "kill", "adamw"), (7, "kill", "adamw"), (8, "kill", "sgd"), (7, "soft", "adamw"),
])  # fmt: skip
def test_a_killed_run_resumes_bit_for_bit(small, tmp_path, step, how, optimizer):
    small = {**small, "optimizer": optimizer, "checkpoint_minutes": 1e-6}  # a checkpoint after every step
    straight = run(small, tmp_path / "straight")
    out = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "x", str(step), how, *command(small, out)], capture_output=True, text=True
    )
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 130), done.stderr
    assert not (out / "summary.json").exists()
    if how == "soft":
        assert f"pliant adapt --resume {out}" in done.stderr
        assert "Traceback" not in done.stderr
    adapt.resume(out)
    assert_same(straight, out)
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (straight, out))
    assert a["test"] == b["test"] and a["val"] == b["val"]


def test_a_kill_between_checkpoints_repeats_at_most_that(small, tmp_path):
    straight = run(small, tmp_path / "straight")
    out = tmp_path / "killed"  # checkpoints at epochs only: step 6 lies inside the second
    subprocess.run([sys.executable, "-c", COMMAND, "x", "6", "kill", *command(small, out)], capture_output=True)
    adapt.resume(out)
    assert_same(straight, out)


def test_resuming_a_finished_run_changes_nothing(small, tmp_path, capsys):
    folder = run(small, tmp_path / "a")
    before = (folder / "summary.json").read_bytes()
    adapt.resume(folder)
    assert (folder / "summary.json").read_bytes() == before
    assert "is finished" in capsys.readouterr().err


def test_a_moved_run_resumes(small, tmp_path):
    straight = run(small, tmp_path / "straight")
    out = tmp_path / "killed"
    subprocess.run([sys.executable, "-c", COMMAND, "x", "6", "kill", *command(small, out)], capture_output=True)
    out.rename(tmp_path / "moved")
    assert_same(straight, adapt.resume(tmp_path / "moved"))


def test_resuming_on_other_weights_is_refused(small, tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = backbone.load("test_vit", img_size=32, num_classes=3, random_init=True).state_dict()
    weights = tmp_path / "w.safetensors"
    save_file(state, weights)
    small = {**small, "random_init": False, "weights": str(weights)}
    out = tmp_path / "killed"
    subprocess.run(
        [sys.executable, "-c", COMMAND, "x", "6", "kill", *command({k: v for k, v in small.items() if v}, out)]
    )
    save_file({name: value + 1 for name, value in state.items()}, weights)
    with pytest.raises(PliantError, match="not those that the run began with"):
        adapt.resume(out)


def test_a_loss_that_is_not_finite_stops_with_advice(small, tmp_path, monkeypatch):
    original = training.Trainer._update

    def poisoned(self, inputs, *rest):
        return original(self, inputs * float("nan") if self.position.step == 5 else inputs, *rest)

    monkeypatch.setattr(training.Trainer, "_update", poisoned)
    with pytest.raises(PliantError, match=r"the loss is nan at step 6 \(rate .*lower --lr"):
        run(small, tmp_path / "a")
    assert (tmp_path / "a" / "checkpoint.safetensors").exists()


def test_a_full_disk_keeps_the_last_good_checkpoint(small, tmp_path, monkeypatch):
    from pliant.adapt import checkpoint

    calls, original = [], checkpoint.write_tensors

    def full(*args):
        calls.append(1)
        if len(calls) == 3:
            raise PliantError("x: the disk is full; what was saved before is intact, free some space and --resume")
        original(*args)

    straight = run(small, tmp_path / "straight")
    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(PliantError, match="disk is full"):
        run(small, tmp_path / "a")
    monkeypatch.setattr(checkpoint, "write_tensors", original)
    assert_same(straight, adapt.resume(tmp_path / "a"))


def test_lr_auto_chooses_on_validation_and_leaves_no_trace(small, tmp_path):
    folder = run({**small, "lr": "auto"}, tmp_path / "auto", epochs=5)
    chosen = adapt.settings(**yaml.safe_load((folder / "run.yaml").read_text()))
    assert isinstance(chosen.lr, float)
    again = run({**small, "lr": chosen.lr, "head_lr": chosen.head_lr}, tmp_path / "given", epochs=5)
    assert_same(folder, again)


def test_two_processes_equal_one(small, tmp_path):
    small = {**small, "lr": 1e-3}
    one = run(small, tmp_path / "one")
    script = "import sys; from pliant.cli import main; sys.argv = ['pliant', 'adapt', *sys.argv[1:]]; main()"
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(29500 + os.getpid() % 1000),
    ]
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(path), *command(small, tmp_path / "two")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [[row["loss"] for row in rows(folder, "step")] for folder in (one, tmp_path / "two")]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)  # two processes always share a half-precision file
    a, b = (json.loads((f / "summary.json").read_text()) for f in (one, tmp_path / "two"))
    assert a["test"]["confusion"] == b["test"]["confusion"]


@pytest.mark.parametrize(
    "changes",
    [
        {"augment": "crop"},
        {"augment": "flip", "mixup": 0.2, "cutmix": 1.0},
        {"balanced": True},
        {"label_smoothing": 0.1},
    ],
)
def test_options_of_training_run(small, tmp_path, changes):
    folder = run({**small, "epochs": 1, **changes}, tmp_path / "a")
    assert math.isfinite(rows(folder, "step")[-1]["loss"])


def test_the_search_keeps_a_head_rate_that_was_given(small, tmp_path):
    folder = run({**small, "lr": "auto", "head_lr": 0.02}, tmp_path / "a", epochs=5)
    assert adapt.settings(**yaml.safe_load((folder / "run.yaml").read_text())).head_lr == 0.02


def test_rates_of_sgd_are_a_hundred_times_adamws():
    from pliant.adapt.defaults import rates_of

    adamw = rates_of(adapt.settings(data="x", method="mha"), 1.0)
    sgd = rates_of(adapt.settings(data="x", method="mha", optimizer="sgd"), 1.0)
    assert sgd == pytest.approx({name: 100 * rate for name, rate in adamw.items()})


def test_where_frozen_outputs_are_kept_is_settled_at_the_start(small, tmp_path):
    folder = run(small, tmp_path / "a")
    assert yaml.safe_load((folder / "run.yaml").read_text())["cache"] == "memory"


def test_checkpoints_come_by_time_too(small, tmp_path, monkeypatch):
    saved = []
    original = training.checkpoint.save
    monkeypatch.setattr(training.checkpoint, "save", lambda *args: (saved.append(time.monotonic()), original(*args)))
    folder = run(small, tmp_path / "a", checkpoint_minutes=1e-6, epochs=2)
    assert len(saved) == json.loads((folder / "summary.json").read_text())["training"]["steps"]
