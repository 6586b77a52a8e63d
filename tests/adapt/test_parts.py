"""The small parts of training: schedule, order, mixing, metrics, settings, files."""

from __future__ import annotations

import errno
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from pliant import PliantError
from pliant.adapt.batches import epoch_batches, epoch_order, mix, one_hot
from pliant.adapt.metrics import measure, predictions_table
from pliant.adapt.schedule import rate_factor
from pliant.adapt.settings import read_settings, settings, settings_yaml
from pliant.files import write_json, write_tensors, write_text


@given(total=st.integers(2, 500), share=st.floats(0, 0.9))
def test_schedule_rises_then_falls_to_zero(total, share):
    warmup = max(1, round(share * total))
    factors = [rate_factor(step, total, warmup) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert factors[warmup - 1] == pytest.approx(1)
    if total - warmup > 50:
        assert factors[-1] < 0.01


def test_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    labels = np.arange(100) % 3
    first = epoch_order(labels, seed=0, epoch=2)
    assert sorted(first) == list(range(100))
    assert (first == epoch_order(labels, seed=0, epoch=2)).all()
    assert (first != epoch_order(labels, seed=0, epoch=3)).any()
    assert (first != epoch_order(labels, seed=1, epoch=2)).any()
    assert np.concatenate(list(epoch_batches(first, 32))).tolist() == first.tolist()


def test_balanced_order_draws_classes_equally():
    labels = np.array([0] * 900 + [1] * 100)
    drawn = labels[np.concatenate([epoch_order(labels, 0, epoch, balanced=True) for epoch in range(20)])]
    assert drawn.mean() == pytest.approx(0.5, abs=0.02)


@given(mixup=st.sampled_from([0.0, 0.8]), cutmix=st.sampled_from([0.0, 1.0]), step=st.integers(0, 50))
def test_mixing_keeps_probabilities_and_the_mean(mixup, cutmix, step):
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    y = F.one_hot(torch.arange(6) % 4, 4).float()
    mixed, targets = mix(x.clone(), y, mixup, cutmix, seed=1, step=step)
    again, _ = mix(x.clone(), y, mixup, cutmix, seed=1, step=step)
    assert torch.equal(mixed, again)
    assert mixed.shape == x.shape
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    if not mixup and not cutmix:
        assert torch.equal(mixed, x)


def test_cutmix_targets_are_the_shares_of_pixels():
    x = torch.arange(2.0)[:, None, None, None].expand(2, 1, 16, 16).clone()
    y = torch.eye(2)
    for step in range(30):
        mixed, targets = mix(x, y, 0.0, 1.0, seed=0, step=step)
        torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), targets[:, 1])


def test_smoothing_equals_torchs():
    logits, labels = torch.randn(5, 7), torch.arange(5)
    ours = F.cross_entropy(logits, one_hot(labels, 7, 0.1))
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=0.1))


def test_metrics_equal_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 7, generator=generator), torch.randint(0, 6, (200,), generator=generator)
    found, predicted = measure(logits, labels), logits.argmax(1)
    assert found["top1"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0), abs=1e-6)
    assert found["confusion"] == confusion_matrix(labels, predicted, labels=range(7)).tolist()
    top5 = np.mean([label in row.topk(5).indices for row, label in zip(logits, labels, strict=True)])
    assert found["top5"] == pytest.approx(top5)
    assert found["per_class"][6] is None  # a class without images
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item())
    confidence, right = logits.softmax(1).max(1).values, (predicted == labels).float()
    bins = torch.clamp((confidence * 15).long(), max=14)
    ece = sum((abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).float().mean()).item()
              for b in range(15) if (bins == b).any())  # fmt: skip
    assert found["ece"] == pytest.approx(ece, abs=1e-4)


def test_top5_of_two_classes_is_clamped():
    found = measure(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert found["top5"] == 1 and found["top5_k"] == 2 and found["top1"] == 0.5


def test_predictions_table():
    table = predictions_table(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), ["a", "b"])
    assert table["prediction"].tolist() == [0, 0]
    assert table["confidence"][1] == pytest.approx(math.exp(2) / (math.exp(2) + 1))
    assert table["label_confidence"][1] == pytest.approx(1 / (math.exp(2) + 1))


@pytest.mark.parametrize(("given", "message"), [
    ({"epochs": 0}, "--epochs 0"), ({"lr": -1.0}, "must be positive"), ({"val_fraction": 1.0}, "--val-fraction"),
    ({"optimizer": "lion"}, "--optimizer 'lion'"), ({"batchsize": 3}, "unknown setting 'batchsize'"),
    ({"views": 2}, "views needs an augmentation"), ({"cache": "memory", "augment": "crop"}, "cannot be cached"),
    ({"cache": "file", "mixup": 0.2}, "cannot be cached"),
])  # fmt: skip
def test_bad_settings_are_one_line_that_names_the_option(given, message):
    with pytest.raises(PliantError) as caught:
        settings(data="x", **given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_settings_survive_their_file(tmp_path):
    chosen = settings(data="d/ü", method="mha,fc1", lr=1e-3, limit_train=10)
    write_text(tmp_path / "run.yaml", settings_yaml(chosen))
    assert read_settings(tmp_path / "run.yaml") == chosen


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for write in (lambda: write_json(path, {"new": 2}), lambda: write_tensors(path, {"x": torch.zeros(1)})):
        with pytest.raises(PliantError, match="the disk is full"):
            write()
    assert path.read_text().startswith('{\n  "old"')
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
