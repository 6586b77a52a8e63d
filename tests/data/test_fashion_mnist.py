"""Fashion-MNIST from idx files, wherever they came from."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from pliant.data import catalogue, open_splits
from pliant.data.sources import fashion_mnist
from pliant.errors import PliantError


def write(folder, compress=True):
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for prefix, count in (("train", 60), ("t10k", 20)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, values in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            raw = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()
            file = folder / (f"{name}.gz" if compress else name)
            file.write_bytes(gzip.compress(raw) if compress else raw)
        written[prefix] = images
    return written


@pytest.fixture(autouse=True)
def no_package(monkeypatch, tmp_path):
    monkeypatch.setattr(fashion_mnist, "_DEBIAN", tmp_path / "debian")
    return tmp_path / "debian"


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("place", ["debian", "torchvision"])
def test_read(data_home, no_package, place, compress):
    written = write(no_package if place == "debian" else data_home / "FashionMNIST" / "raw", compress)
    splits = open_splits("fashion-mnist")
    assert splits.train.classes[:2] == ("T-shirt/top", "Trouser")
    assert len(splits.train) + len(splits.val) == 60
    assert splits.test.labels.tolist() == [*range(10)] * 2
    np.testing.assert_array_equal(np.asarray(splits.test.image(4))[..., 1], written["t10k"][4])
    assert {line.name: line.present for line in catalogue()}["fashion-mnist"] is True


def test_missing_says_how_to_get_it(data_home, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no network")

    monkeypatch.setattr("torchvision.datasets.FashionMNIST", fail)
    with pytest.raises(
        PliantError, match="fashion-mnist: cannot be downloaded .* package dataset-fashion-mnist, or put"
    ):
        open_splits("fashion-mnist")


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:100], lambda raw: b"no gzip", lambda raw: gzip.compress(b"\0" * 99)]
)
def test_damaged(data_home, no_package, damage):
    write(no_package)
    file = no_package / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(PliantError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        open_splits("fashion-mnist")


def test_labels_that_do_not_fit(data_home, no_package):
    write(no_package)
    (no_package / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">2I", 0x801, 3) + b"\0\1\2"))
    with pytest.raises(PliantError, match="images and labels of test in .* do not fit"):
        open_splits("fashion-mnist")


def test_debians_package(monkeypatch):
    monkeypatch.undo()
    if not fashion_mnist._DEBIAN.is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    splits = open_splits("fashion-mnist", limit_train=100, limit_test=100, verify=False)
    assert splits.train.counts().tolist() == [10] * 10
