"""`pliant landscape`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pliant import adapt, anatomy
from tests.adapt.conftest import write_images


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    chosen = {"model": "test_vit", "random_init": True, "img_size": 32, "epochs": 3, "batch_size": 8, "device": "cpu"}
    data = write_images(root / "data")
    return adapt.run(adapt.settings(data=str(data), out=str(root / "run"), method="head", **chosen))


def test_two_components_side_by_side(pliant, finished):
    options = ("--component", "ln2", "--grid", 3, "--images", 8)
    code, out, err = pliant("landscape", finished, *options, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [row["component"] for row in told["landscapes"]] == ["ln2", "ln1"]
    for row in told["landscapes"]:
        assert row["lowest"] <= row["end"] + 1 and row["end"] < row["start"] and 0 < sum(row["shares"]) <= 1 + 1e-9
    where = finished / "landscape"
    assert {path.name for path in where.iterdir()} == {"ln1", "ln2", "ln2-ln1.svg", "ln2-ln1.png"}
    assert len((where / "ln1" / "loss-3x3-8.csv").read_text().splitlines()) == 1 + 9 + 2
    code, out, err = pliant("landscape", finished, *options, "--beside", "none")
    assert (
        code == 0 and out.startswith("ln2: loss ") and out.splitlines()[-1].startswith(f"figure: {where / 'ln2.svg'}")
    )
    assert err == ""  # all is there: drawn again, nothing trained


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--component", "mah"), "'mah' is no part of a backbone, did you mean mha"),
        (("--component", "adapter"), "component 'adapter': 'adapter' is no part of a backbone"),
        (("--beside", "lora"), "component 'lora'"),
    ],
)
def test_what_is_no_component_is_told_in_one_line(pliant, finished, options, said):
    code, out, err = pliant("landscape", finished, *options)
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1


def test_what_is_no_finished_run_or_has_no_such_part_is_told_in_one_line(pliant, finished, tmp_path, monkeypatch):
    code, _, err = pliant("landscape", tmp_path)
    assert code == 2 and "is no run folder" in err and len(err.splitlines()) == 1
    (tmp_path / "run.yaml").write_text((finished / "run.yaml").read_text())
    code, _, err = pliant("landscape", tmp_path)
    assert code == 2 and "is not finished" in err and len(err.splitlines()) == 1

    find = anatomy.find

    def without_fc1(model):
        described = find(model)
        return replace(described, blocks=tuple(replace(block, fc1=()) for block in described.blocks))

    monkeypatch.setattr(anatomy, "find", without_fc1)
    code, _, err = pliant("landscape", finished, "--component", "fc1")
    assert code == 2 and "has no parameters in 'fc1'" in err and len(err.splitlines()) == 1
