"""`pliant reproduce` from plan to claims, with a protocol of seconds."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from pliant.study import execute, reproduction, worker
from pliant.study.reproduction import Protocol
from tests.adapt.conftest import write_images

TINY = {
    "says": "A study of seconds.",
    "differs": ["everything"],
    "optional": ["fashion-mnist"],
    "measure": {"pretrain": "cifar10", "models": ["test_vit"], "images": 8},
    "study": {
        "fixed": {
            "model": "test_vit", "random_init": True, "img_size": 32, "epochs": 1, "batch_size": 8, "device": "cpu",
            "head_lr": "same", "lr": 0.01,
        },
        "grids": [
            {"axes": {"data": ["cifar10", "fashion-mnist"], "method": ["mha", "ln1"], "seed": [0]}},
            {"axes": {"data": ["cifar10"], "method": ["probe"]}},
            {"axes": {"data": ["cifar10"], "init": ["zero", "small"]}, "fixed": {"method": "adapter", "rank": 2}},
        ],
    },
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduction, "protocol", lambda paper, scale: Protocol.model_validate(TINY))
    monkeypatch.setattr(reproduction, "_installed", lambda: {"digits"})
    # Runs are made in this process, which has imported torch.
    monkeypatch.setattr(execute, "execute", lambda folder, runs, workers=1, halve=False: worker.work(folder, runs))
    write_images(tmp_path / "photos")
    return tmp_path


def test_from_plan_to_claims(pliant, place, monkeypatch):
    asked = ("reproduce", "nonsmooth", "--data", "photos")
    code, out, err = pliant("reproduce", "nonsmooth", "--plan")
    assert code == 0, err
    assert "5 runs, 0 of them done" in out and "fashion-mnist is not installed" in out and "- everything" in out
    assert json.loads(pliant(*asked, "--plan", "--json")[1])["method"] == {"mha": 1, "ln1": 1, "probe": 1, "adapter": 2}
    assert not (place / "studies").exists()

    code, out, err = pliant(*asked)
    folder = place / "studies" / "reproduce-nonsmooth-laptop"
    assert code == 0, err
    assert "5 of 5 runs done" in out and f"claims: {folder.relative_to(place)}/report/claims.md" in out
    text = (folder / "report" / "claims.md").read_text()
    assert "`" * 3 + "\npliant reproduce nonsmooth --data photos\n" in text
    assert "fashion-mnist is not installed and was left out" in text and "- everything" in text
    # Plasticity was measured, so its claims were judged; of so few runs the others were not.
    judged = {line.split("**")[1]: line for line in text.splitlines() if line.startswith("- **")}
    assert "(not tested)" not in judged["plasticity-threshold"] and "(not tested)" not in judged["bounds-order"]
    assert "no runs of mha, fc1, fc2, ln2, ln1 have the same rate" in judged["larger-gradients"]
    assert "identity-at-start" not in judged
    assert len(list((folder / "plasticity").iterdir())) == 1

    from pliant.measure import run

    monkeypatch.setattr(run, "measure", lambda *given: pytest.fail("measured again"))
    code, out, err = pliant(*asked, "--json")
    assert code == 0 and json.loads(out)["done"] == 5

    from pliant.study import results
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import runs_of

    stored = StudyFolder(folder)
    runs = runs_of(stored.study())
    starts = results.starts(stored, runs).set_index("run")
    told = {run.settings.init or run.settings.method: starts.loc[run.name] for run in runs}
    assert {name: bool(row["identical"]) for name, row in told.items()} == {
        "mha": True, "ln1": True, "probe": True, "zero": True, "small": False,
    }  # fmt: skip
    assert starts["first_loss"].dropna().between(0.1, 10).all() and starts["first_loss"].isna().sum() == 1  # the probe


def test_what_cannot_be_had_is_named_at_once(pliant, place):
    code, out, err = pliant("reproduce", "nonsmooth", "--data", "none")
    assert code == 2 and out == "" and "1 of 1 data sets cannot be had: none" in err and len(err.splitlines()) == 1
    code, _, err = pliant("reproduce", "nonsmooth", "--data", "photos", "--pretrain", "nowhere")
    assert code == 2 and "1 of 2 data sets cannot be had: nowhere" in err
    code, _, err = pliant("reproduce", "nonsmooth", "--weights", "a.safetensors")
    assert code == 2 and "--weights" in err
    assert not (place / "studies").exists()


def test_without_pretraining_images_the_rest_is_told(pliant, place, monkeypatch):
    changed = {**TINY, "measure": {**TINY["measure"], "pretrain": "svhn"}}
    monkeypatch.setattr(reproduction, "protocol", lambda paper, scale: Protocol.model_validate(changed))
    monkeypatch.setenv("PLIANT_DATA", str(place / "empty"))
    monkeypatch.setattr("pliant.data.sources.torchvision_sets._load", refused)
    code, _, err = pliant("reproduce", "nonsmooth", "--data", "photos")
    assert code == 0, err
    text = (place / "studies" / "reproduce-nonsmooth-laptop" / "report" / "claims.md").read_text()
    assert "plasticity was not measured: svhn" in text and "no plasticity was measured" in text


def refused(*given, **named):
    raise OSError("no network")


def test_help_and_packaging(pliant):
    code, out, _ = pliant("reproduce", "--help")
    assert code == 0 and "Example" in out
    found = {each.name for each in (resources.files("pliant") / "study" / "reproductions").iterdir()}
    assert found == {f"{paper}-{scale}.yaml" for paper in reproduction.PAPERS for scale in reproduction.SCALES}
