"""The packaged protocols: complete, runnable as studies, and filled in with what a machine has."""

from __future__ import annotations

import math

import pytest

from pliant.errors import PliantError
from pliant.study import reproduction
from pliant.study.claims import read_claims
from pliant.study.grid import runs_of
from pliant.study.reproduction import PAPERS, SCALES, check_data, data_of, fill, protocol


def filled(paper, scale, **given):
    return fill(protocol(paper, scale), f"{paper} {scale}", **{"installed": ["fashion-mnist"], **given})


def counted(paper, scale, **given):
    return len(runs_of(filled(paper, scale, **given).study))


def test_as_many_runs_as_the_papers():
    components, data, optimizers, rates, seeds = 6, 11, 2, 4, 3
    runs = runs_of(filled("nonsmooth", "paper").study)
    assert len(runs) >= components * data * optimizers * rates * seeds == 1584
    lone = {"ln1", "mha", "ln2", "fc1", "fc2", "full"}
    chosen = [run.settings for run in runs if run.settings.method in lone]
    assert len(chosen) == 1584
    for sgd in (run for run in chosen if run.optimizer == "sgd" and run.seed == 42 and run.method == "mha"):
        twin = [each for each in chosen if each.optimizer == "adamw" and each.data == sgd.data and each.method == "mha"]
        assert any(math.isclose(each.lr, sgd.lr / 100) and each.head_lr == each.lr for each in twin)
    pairs = {(run.settings.data, run.settings.model) for run in runs_of(filled("adaptertune", "paper").study)}
    assert len(pairs) == 9 * 3


@pytest.mark.parametrize(
    ("data", "train", "steps"),
    [("cifar100", 40_000, 10_000), ("domainnet:clipart", 26_820, 20_000), ("domainnet:sketch", 38_570, 20_000),
     ("flowers102", 1_020, 5_000), ("pet", 2_944, 4_000)],
)  # fmt: skip
def test_the_papers_steps_in_epochs(data, train, steps):
    """The training images after the 80/20 split, in batches of 512: the fewest epochs that reach the paper's steps."""
    every = [run.settings for run in runs_of(filled("nonsmooth", "paper").study)]
    runs = [run for run in every if run.data == data and run.method != "probe"]
    assert {(run.epochs, run.batch_size, run.val_fraction) for run in runs} == {
        (math.ceil(steps / math.ceil(train / 512)), 512, 0.2)
    }


def test_a_laptop_makes_a_thousand_runs():
    assert counted("nonsmooth", "laptop", installed=[]) + counted("adaptertune", "laptop", installed=[]) >= 1000
    without, whole = (filled("nonsmooth", "laptop", installed=there) for there in ([], ["fashion-mnist"]))
    assert set(data_of(whole.study)) - set(data_of(without.study)) == {"fashion-mnist"}
    assert not whole.notes and without.notes[0].startswith("fashion-mnist is not installed and was left out")
    assert {run.name for run in runs_of(without.study)} < {run.name for run in runs_of(whole.study)}


def test_cifar10_where_it_is(tmp_path):
    found = filled("nonsmooth", "laptop", data=str(tmp_path))
    assert f"cifar10c-snow-5:{tmp_path}" in data_of(found.study) and "digits" in data_of(found.study)
    assert found.measure.pretrain == str(tmp_path)
    wanted = found.measurements(runs_of(found.study))
    assert [each.downstream for each in wanted] == data_of(found.study)
    assert {(each.model, each.pretrain, each.protocol) for each in wanted} == {("pico", str(tmp_path), "both")}


def test_what_is_left_open():
    given = {"model": "test_vit", "weights": "a.safetensors", "img_size": 32}
    found = filled("nonsmooth", "vits", given=given, pretrain="images", data="my-cifar")
    runs = runs_of(found.study)
    assert {(r.settings.model, r.settings.weights, r.settings.img_size, r.settings.data) for r in runs} == {
        ("test_vit", "a.safetensors", 32, "my-cifar[n=300]")
    }
    (wanted,) = found.measurements(runs)
    assert (wanted.model, wanted.weights, wanted.img_size, wanted.pretrain) == (*given.values(), "images")
    alone = filled("nonsmooth", "vits")
    assert alone.measure is None and "--pretrain names the images" in alone.notes[0]
    with pytest.raises(PliantError, match="--img-size: .* names its own"):
        filled("nonsmooth", "laptop", given={"img_size": 64})


def test_every_protocol_tells_where_it_differs():
    for paper in PAPERS:
        assert [claim for claim in read_claims() if claim.source == paper]
        for scale in SCALES:
            assert protocol(paper, scale).differs and counted(paper, scale)
    for paper, scale, said in (("smooth", "laptop", "PAPER 'smooth'"), ("nonsmooth", "huge", "--scale 'huge'")):
        with pytest.raises(PliantError, match=said):
            protocol(paper, scale)


def test_all_data_that_cannot_be_had_are_named(monkeypatch):
    def opened(name):
        if name != "digits":
            raise PliantError(f"{name}: not here")

    monkeypatch.setattr(reproduction, "open_source", opened)
    with pytest.raises(PliantError, match="2 of 3 data sets cannot be had: pet, svhn; the first: pet: not here"):
        check_data(["digits", "pet", "svhn"])
    check_data(["digits"])
