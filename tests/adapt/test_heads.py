"""Heads trained together are the heads trained one at a time; runs that share frozen outputs compute them once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pliant import adapt
from pliant.adapt import features, heads, job
from pliant.adapt.settings import settings
from pliant.adapt.shelf import Shelf
from pliant.errors import PliantError
from tests.adapt.test_training import learned, rows, run

VARIED = [
    {"lr": 1e-2}, {"lr": 3e-1, "weight_decay": 0.1}, {"lr": 1e-3, "seed": 1}, {"lr": 1e-2, "head_lr": 3e-2, "seed": 1},
]  # fmt: skip


def asked(small: dict, folder: Path, varied=tuple(VARIED), **changes) -> list:
    given = {**small, "method": "head", "rank": None, "epochs": 3, **changes}
    return [settings(**{**given, **each, "out": str(folder / str(number))}) for number, each in enumerate(varied)]


@pytest.fixture
def pretrained(small, tmp_path):
    """A fixed backbone for all seeds: random weights would be others for each."""
    from pliant import backbone
    from pliant.files import write_tensors

    model = backbone.load(small["model"], num_classes=3, img_size=small.get("img_size"), random_init=True)
    write_tensors(tmp_path / "weights.safetensors", model.state_dict())
    return {**small, "random_init": False, "weights": str(tmp_path / "weights.safetensors")}


@pytest.mark.parametrize("changes", [
    {"optimizer": "adamw"}, {"optimizer": "sgd", "label_smoothing": 0.1}, {"clip": 0.0}, {"augment": "flip", "views": 2},
    {"balanced": True, "batch_size": 5},
])  # fmt: skip
def test_together_equals_one_at_a_time(pretrained, tmp_path, changes):
    together = asked(pretrained, tmp_path / "together", **changes)
    assert heads.run_together(together, "test", tmp_path / "shelf") == {}
    for number, alone in enumerate(asked(pretrained, tmp_path / "alone", **changes)):
        one, other = adapt.run(alone), tmp_path / "together" / str(number)
        for kind, names in (("step", ("loss", "grad_norm", "lr")), ("epoch", ("train_loss", "val_loss", "val_top1"))):
            for name in names:
                wanted = [row[name] for row in rows(one, kind)]
                assert [row[name] for row in rows(other, kind)] == pytest.approx(wanted, rel=1e-5), name
        for name, value in learned(one).items():
            torch.testing.assert_close(learned(other)[name], value, rtol=1e-5, atol=1e-6)
        a, b = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
        assert b["training"]["together"] == 4 and a["training"]["together"] == 1
        for part in ("train", "val", "test"):
            assert b[part]["top1"] == a[part]["top1"] and b[part]["loss"] == pytest.approx(a[part]["loss"], rel=1e-5)
        assert a["training"]["best_epoch"] == b["training"]["best_epoch"] and a["plan"] == b["plan"]
        assert (other / "report.html").is_file() and (other / "predictions.parquet").is_file()


def test_a_head_does_not_depend_on_those_beside_it(pretrained, tmp_path):
    """Bit for bit, so that a study that was stopped, and makes fewer at once, ends as one that was not."""
    heads.run_together(asked(pretrained, tmp_path / "all"), "test", tmp_path / "shelf")
    heads.run_together(asked(pretrained, tmp_path / "few", VARIED[1:3]), "test", tmp_path / "other shelf")
    for number in (1, 2):
        few = learned(tmp_path / "few" / str(number - 1))
        assert all(torch.equal(value, few[name]) for name, value in learned(tmp_path / "all" / str(number)).items())


def test_one_that_diverges_fails_alone(pretrained, tmp_path):
    varied = [{"lr": 1e-2}, {"lr": 1e38}]
    runs = asked(pretrained, tmp_path, varied, optimizer="sgd", clip=0.0)
    failed = heads.run_together(runs, "test", tmp_path / "shelf")
    assert list(failed) == [str(tmp_path / "1")] and "try a lower --lr" in str(failed[str(tmp_path / "1")])
    assert (tmp_path / "0" / "report.html").is_file()


def test_what_differs_in_more_is_another_kind(small):
    def kind(**changes):
        return heads.kind(settings(**{**small, "method": "head", "rank": None, **changes}))

    small = {**small, "random_init": False}
    same = kind()
    assert same and same == kind(lr=1.0) == kind(seed=5) == kind(weight_decay=0.5) == kind(head_lr=1.0)
    assert same not in (kind(epochs=9), kind(batch_size=7), kind(optimizer="sgd"), kind(img_size=64))
    assert kind(random_init=True, seed=1) != kind(random_init=True, seed=2)
    assert {kind(lr="auto"), kind(augment="flip"), kind(cache="off"), kind(method="ln1")} == {None}


def test_runs_that_share_a_shelf_read_each_image_once(pretrained, tmp_path, monkeypatch):
    """Over seeds, which split the images otherwise, and over what comes after the frozen stages."""
    read: list[int] = []
    original = features.Streamed.seen

    def counted(self, indices, views):
        read.append(len(indices))
        return original(self, indices, views)

    monkeypatch.setattr(features.Streamed, "seen", counted)
    given = {**pretrained, "epochs": 2, "method": "adapter", "blocks": "last:1"}
    for seed, rank in [(0, 2), (1, 2)]:
        out = str(tmp_path / f"{seed}")
        adapt.run(settings(**{**given, "seed": seed, "rank": rank, "out": out}), shelf=tmp_path / "shelf")
    kept = [
        np.concatenate([np.load(file) for file in kind.glob("*.ids.npy")]) for kind in (tmp_path / "shelf").iterdir()
    ]
    assert len(kept) == 2  # rounded for training, exact for testing
    assert all(len(np.unique(ids, axis=0)) == len(ids) <= 36 for ids in kept)
    read.clear()
    again = settings(**{**given, "seed": 1, "rank": 4, "lr": 1e-3, "out": str(tmp_path / "again")})
    adapt.run(again, shelf=tmp_path / "shelf")
    assert read == []


@pytest.mark.parametrize("method", ["head", "adapter", "full"])
def test_a_shared_run_equals_one_of_its_own(pretrained, tmp_path, method, monkeypatch):
    monkeypatch.setattr(
        job, "decoded_by", lambda store: None
    )  # as if images were computed, so that `full` shares pixels
    given = {**pretrained, "epochs": 2, "method": method, "rank": 2 if method == "adapter" else None}
    given["blocks"] = "last:1" if method == "adapter" else "all"
    adapt.run(settings(**{**given, "seed": 1, "out": str(tmp_path / "before")}), shelf=tmp_path / "shelf")
    shared = adapt.run(settings(**{**given, "out": str(tmp_path / "shared")}), shelf=tmp_path / "shelf")
    own = run(given, tmp_path / "own")
    assert all(torch.equal(value, learned(own)[name]) for name, value in learned(shared).items())
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (own, shared))
    assert all(a[part] == b[part] for part in ("train", "val", "test"))


def test_a_shelf_grows_by_what_is_missing(tmp_path):
    rng = np.random.default_rng(0)
    ids, values = rng.integers(0, 255, (10, 16), dtype=np.uint8), rng.normal(size=(10, 2, 3))
    computed: list[int] = []

    def fill(array, images):
        computed.extend(images.tolist())
        array[:] = values[images]

    shelf = Shelf(tmp_path / "shelf")
    shelf.add(ids[:4], (2, 3), np.float64, lambda array, images: fill(array, images))
    (tmp_path / "shelf" / "1.npy").write_bytes(b"half of a file whose writer was killed")
    shelf.add(ids, (2, 3), np.float64, fill)
    assert sorted(computed) == list(range(10)) and len(shelf.missing(ids)) == 0
    order = np.array([7, 0, 3, 9])
    found = shelf.inputs(ids[order], order)
    for epoch in (0, 1):
        wanted = np.stack([values[order[i], (epoch + i) % 2] for i in range(4)]).astype(np.float32)
        np.testing.assert_array_equal(found.batch(np.arange(4), epoch).numpy(), wanted)
    assert found.nbytes == 4 * 2 * 3 * 8


def test_a_full_disk_is_told_plainly(tmp_path, monkeypatch):
    import errno
    import os

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PliantError, match="no space for a cache"):
        Shelf(tmp_path / "s").add(np.zeros((1, 16), np.uint8), (1, 2), np.float32, lambda array, images: None)
    assert not list((tmp_path / "s").glob("*.npy"))
