"""The plane, the replay and the losses equal what is computed plainly; a stopped call goes on to the same numbers."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from pliant import adapt
from pliant.adapt import landscape as made
from pliant.adapt import plane as planes
from pliant.adapt import replay
from pliant.adapt.features import Streamed
from pliant.adapt.landscape import Surface, landscape
from pliant.adapt.settings import read_settings
from pliant.adapt.training import Trainer
from pliant.backbone import identity_of
from pliant.data import Preprocess, load_batch, open_splits
from pliant.errors import PliantError
from pliant.files import read_json
from pliant.interrupt import Interrupted


@pytest.fixture
def path():
    """Seven points in two parameters of shapes (3, 4) and (5,), a bent path and noise."""
    generator = torch.Generator().manual_seed(0)
    bend = torch.tensor([[t, 0.3 * t * (6 - t)] for t in range(7)], dtype=torch.float)
    points = bend @ torch.randn(2, 17, generator=generator) + 0.05 * torch.randn(7, 17, generator=generator)
    return {"a": [row[:12].view(3, 4) for row in points], "b": [row[12:] for row in points]}


def test_the_plane_is_that_of_a_singular_value_decomposition(path, monkeypatch):
    monkeypatch.setattr(planes, "_COLUMNS", 5)  # in parts that do not divide the parameters
    plane = planes.find_plane(planes.inner_products(path.values()))
    both = planes.directions(plane, path.items())

    points = np.hstack([torch.stack(values).flatten(1).numpy() for values in path.values()]).astype(np.float64)
    moved = points - points[-1]
    _, values, rows = np.linalg.svd(moved - moved.mean(axis=0), full_matrices=False)
    expected = moved @ rows[:2].T
    signs = np.sign((plane.points * expected).sum(axis=0))
    np.testing.assert_allclose(plane.points, expected * signs, atol=1e-8)
    np.testing.assert_allclose(plane.shares, (values**2 / (values**2).sum())[:2], rtol=1e-8)
    np.testing.assert_allclose(plane.off, np.linalg.norm(moved - expected @ rows[:2], axis=1), atol=1e-6)
    flat = np.stack([np.concatenate([each[name].flatten() for name in path]) for each in both])
    np.testing.assert_allclose(flat, rows[:2] * signs[:, None], atol=1e-6)
    assert 0.9 < sum(plane.shares) < 1 and plane.points[0, 0] < 0 and (plane.points[-1] == 0).all()


def test_a_plane_holds_a_path_that_lies_in_it_and_a_line_has_none(path):
    flat = [torch.tensor([t, t**2, 2.0 * t]) for t in range(5)]
    plane = planes.find_plane(planes.inner_products([flat]))
    assert sum(plane.shares) == pytest.approx(1) and plane.off == pytest.approx(0, abs=1e-5)
    end, both = {"p": flat[-1]}, planes.directions(plane, [("p", flat)])
    for value, (x, y) in zip(flat, plane.points, strict=True):
        torch.testing.assert_close(planes.at(end, both, x, y)["p"], value, atol=1e-5, rtol=1e-5)
    with pytest.raises(PliantError, match="straight line"):
        planes.find_plane(planes.inner_products([[torch.tensor([t, 2.0 * t]) for t in range(4)]]))
    x, y = planes.axes_around(np.array([[-4.0, 0.0], [0.0, 2.0]]), 4)
    assert x == pytest.approx([-5, -3, -1, 1]) and y == pytest.approx([-0.5, 0.5, 1.5, 2.5])


@pytest.fixture
def run(small):
    """A run of ln1, so that its replay is the same training."""
    return adapt.run(adapt.settings(**{**small, "method": "ln1", "rank": None, "epochs": 4}))


def plain_loss(folder, own: dict[str, torch.Tensor] | None, rest: dict[str, torch.Tensor], images: int) -> float:
    """On the first `images` training images that the seed draws: one forward pass of the whole model, nothing cached."""
    model = adapt.load_adapted(folder)
    model.load_state_dict(rest | (own or {}), strict=False)
    chosen = read_settings(folder / "run.yaml")
    train = open_splits(chosen.data, stored=read_json(folder / "split.json")).train
    indices = np.sort(np.random.default_rng(chosen.seed).permutation(len(train))[:images])
    preprocess = Preprocess.from_dict(identity_of(model).preprocess)
    pixels = load_batch(train, indices, lambda image, index: preprocess.evaluate(image))
    with torch.no_grad():
        return float(F.cross_entropy(model(pixels), torch.tensor(train.labels[indices])))


def test_losses_are_those_of_a_plainly_set_model_and_the_replay_is_the_run(run, monkeypatch):
    kept: list[dict[str, torch.Tensor]] = []
    find = made._find_plane

    def keep(folder, component):
        kept.extend(load_file(file) for file in replay.points_of(folder / "run"))
        find(folder, component)

    monkeypatch.setattr(made, "_find_plane", keep)
    found = landscape(run, ["ln1"], size=3, images=20)[0]
    folder = run / "landscape" / "ln1"
    first, second = (load_file(each / "learned" / "learned.safetensors") for each in (run, folder / "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)  # bit for bit
    assert found.test_top1 == read_json(run / "summary.json")["test"]["top1"] and found.images == 20
    assert not (folder / "path").exists()

    names = made.trained_by(folder / "run", "ln1")
    assert names and all("norm1" in name for name in names) and len(kept) == len(found.path) > 3
    points = np.stack([torch.cat([state[name].flatten() for name in names]).double().numpy() for state in kept])
    moved = points - points[-1]
    _, values, rows = np.linalg.svd(moved - moved.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found.path[["x", "y"]]), np.abs(moved @ rows[:2].T), atol=1e-6)
    np.testing.assert_allclose(found.shares, (values**2 / (values**2).sum())[:2], rtol=1e-5)

    rest = {name: value for name, value in kept[-1].items() if name not in names}
    assert found.end == pytest.approx(plain_loss(folder / "run", kept[-1], {}, 20), rel=1e-5)
    # The path's beginning, moved onto the plane: its own values but for the distance that `off` tells.
    assert found.start == pytest.approx(plain_loss(folder / "run", {n: kept[0][n] for n in names}, rest, 20), rel=0.05)
    tensors = load_file(folder / "plane.safetensors")
    for row, column in ((0, 0), (2, 1)):
        x, y = found.x[column], found.y[row]
        set_by_hand = {
            name: tensors[f"end.{name}"] + x * tensors[f"first.{name}"] + y * tensors[f"second.{name}"]
            for name in names
        }
        assert found.loss[row, column] == pytest.approx(plain_loss(folder / "run", set_by_hand, rest, 20), rel=1e-5)
    assert found.loss.max() > 2 * found.loss.min()


def test_a_stopped_call_goes_on_to_the_same_numbers_and_computes_nothing_twice(run, tmp_path, monkeypatch):
    other = shutil.copytree(run, tmp_path / "other")
    whole = landscape(run, ["ln1", "mha"], size=3, images=20)

    epoch = Trainer._close_epoch

    def stop(trainer, *arguments):
        epoch(trainer, *arguments)
        if trainer.position.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_close_epoch", stop)
    with pytest.raises(Interrupted):
        landscape(other, ["ln1", "mha"], size=3, images=20)
    monkeypatch.undo()
    count = [0]
    loss = Surface.loss

    def stop_after(times):
        def counted(surface, x, y):
            count[0] += 1
            if count[0] > times:
                raise KeyboardInterrupt
            return loss(surface, x, y)

        return counted

    monkeypatch.setattr(Surface, "loss", stop_after(5))
    with pytest.raises(Interrupted):
        landscape(other, ["ln1", "mha"], size=3, images=20)
    count[0] = 0
    monkeypatch.setattr(Surface, "loss", stop_after(100))
    again = landscape(other, ["ln1", "mha"], size=3, images=20)
    assert count[0] == 11 - 5 + 11  # nine of the grid, the path's beginning and its end
    for before, after in zip(whole, again, strict=True):
        assert (before.loss == after.loss).all() and before.path.equals(after.path) and before.end == after.end
    monkeypatch.setattr(Streamed, "seen", None)  # what is there is read, and nothing else is touched
    landscape(other, ["ln1", "mha"], size=3, images=20)
