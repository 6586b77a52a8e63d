"""`pliant study` and `pliant compare`: what they print, write and refuse."""

from __future__ import annotations

import json
import sys

import pytest

from pliant.study import execute, worker
from tests.adapt.conftest import write_images

STUDY = """
axes:
  method: [head, adapter]
  lr: [1e-4, 1e-2]
  rank: [2]
  seed: [0]
fixed: {data: flowers, model: test_vit, random_init: true, img_size: 32, epochs: 2, batch_size: 8, device: cpu}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "flowers")
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path


@pytest.fixture
def at_once(monkeypatch):
    """Runs are made in this process, which has imported torch; the workers' own tests are in tests/study."""
    monkeypatch.setattr(
        execute, "execute", lambda folder, runs, workers=1, halve=False: worker.work(folder, runs, halve=halve)
    )


def test_plan_run_status_report(pliant, place, at_once):
    code, out, err = pliant("study", "plan", "study.yaml", "--json")
    planned = json.loads(out)
    assert code == 0, err
    assert (planned["runs"], planned["done"]) == (4, 0) and planned["seconds"] > 0 and planned["bytes"] > 0
    assert not (place / "studies").exists()

    code, out, err = pliant("study", "run", "study.yaml", "--out", "a", "--json")
    found = json.loads(out)
    assert code == 0 and (found["runs"], found["done"], found["failed"]) == (4, 4, 0)
    assert [row["method"] for row in found["selection"]] == ["adapter", "head"]
    assert "chosen by mean validation accuracy" in found["sentence"]
    assert {path.name for path in (place / "a").iterdir()} >= {"results.csv", "selection.csv", "selection.tex"}

    code, out, _ = pliant("study", "status", "a")
    assert code == 0 and out == "4 runs: 4 done\n"
    code, out, _ = pliant("study", "report", "a")
    assert code == 0 and "4 of 4 runs done" in out and "Choosing on test would have claimed" in out
    assert json.loads(pliant("study", "plan", "study.yaml", "--out", "a", "--json")[1])["done"] == 4


def test_a_failed_run_is_told_and_retried(pliant, place, at_once, monkeypatch):
    from pliant import adapt
    from pliant.errors import PliantError

    run = adapt.run

    def broken(chosen, *arguments, **options):
        if chosen.method == "adapter":
            raise PliantError("the loss is nan")
        return run(chosen, *arguments, **options)

    monkeypatch.setattr(adapt, "run", broken)
    code, out, err = pliant("study", "run", "study.yaml", "--out", "a")
    assert code == 1 and "2 of 4 runs done, 2 failed" in out and "--retry runs them again" in err
    code, out, _ = pliant("study", "status", "a", "--json")
    assert set(json.loads(out)["failures"].values()) == {"the loss is nan"}
    monkeypatch.undo()
    monkeypatch.chdir(place)
    monkeypatch.setattr(
        execute, "execute", lambda folder, runs, workers=1, halve=False: worker.work(folder, runs, halve=halve)
    )
    code, out, _ = pliant("study", "run", "study.yaml", "--out", "a", "--retry")
    assert code == 0 and "4 of 4 runs done" in out


def test_compare(pliant, place, at_once):
    options = (
        "--model",
        "test_vit",
        "--random-init",
        "--img-size",
        32,
        "--epochs",
        2,
        "--batch-size",
        8,
        "--device",
        "cpu",
    )
    code, out, err = pliant("compare", "flowers", "--methods", "head,ln1+ln2", "--seeds", 2, *options, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert {row["method"] for row in found["methods"]} == {"head", "ln1,ln2"}
    assert "2 seeds are not enough" in found["sentence"] and "--seeds 5" in found["sentence"]
    code, out, _ = pliant("compare", "flowers", "--methods", "head,ln1+ln2", "--seeds", 2, *options)
    assert code == 0 and "best on validation" in out
    code, _, err = pliant("compare", "flowers", "--methods", "head", "--seeds", 2, *options)
    assert code == 2 and "holds a study with method ln1,ln2" in err


def test_halving_says_what_it_saved(pliant, place, at_once, monkeypatch):
    (place / "study.yaml").write_text(
        STUDY.replace("[head, adapter]", "[adapter]").replace("seed: [0]", "seed: [0, 1]")
    )
    code, out, err = pliant("study", "run", "study.yaml", "--out", "a", "--halving", "--json")
    found = json.loads(out)
    assert code == 0, err
    assert (found["runs"], found["done"]) == (4, 2)
    # Of 4 x 2 epochs, one rate trained for one and was not begun on the other seed.
    assert (
        found["halving"] == "halving: 2 of 4 runs made in full, 1 stopped early, 1 never begun; 38% of the epochs saved"
    )
    assert pliant("study", "status", "a")[1] == "4 runs: 2 done, 2 pruned\n"
    assert found["halving"] in pliant("study", "report", "a")[1]
    assert found["halving"] in (place / "a" / "report" / "report.html").read_text()
    code, out, _ = pliant("study", "run", "study.yaml", "--out", "a")
    assert code == 0 and "4 of 4 runs done" in out and "halving" not in out
    code, _, err = pliant(
        "compare", "flowers", "--methods", "head", "--halving", "--random-init", "--model", "test_vit"
    )
    assert code == 2 and "nothing to halve" in err and len(err.splitlines()) == 1
    from pliant.study import halving

    monkeypatch.setattr(halving, "find_spec", lambda name: None)
    code, _, err = pliant("study", "run", "study.yaml", "--out", "b", "--halving")
    assert code == 2 and "pip install 'pliant[search]'" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("flowers", "flwrs", "flwrs"),
        ("test_vit", "test_vti", "unknown model 'test_vti'"),
        ("rank: [2]", "rank: [999]", "--rank 999"),
        ("rank: [2]", "ranks: [2]", "unknown axis 'ranks', did you mean rank"),
        ("[head, adapter]", "[head]", "rank is set, but none of the study's methods"),
        ("device: cpu", "device: mps", "device mps"),
    ],
)
def test_what_cannot_be_had_is_told_before_anything_runs(pliant, place, old, new, said):
    (place / "study.yaml").write_text(STUDY.replace(old, new))
    for command in ("run", "plan"):
        code, out, err = pliant("study", command, "study.yaml", "--out", "a")
        assert code == 2 and said in err and out == "" and len(err.splitlines()) == 1
    assert not (place / "a").exists()


def test_other_folders_are_refused(pliant, place):
    code, _, err = pliant("study", "run", "study.yaml", "--out", "flowers")
    assert code == 2 and "flowers exists and is no study folder" in err
    code, _, err = pliant("study", "status", "flowers")
    assert code == 2 and "holds no study.yaml" in err


def test_a_cluster_that_cannot_be_had_is_told_in_a_line(pliant, place, monkeypatch):
    code, _, err = pliant("study", "run", "study.yaml", "--ray", "auto", "--workers", 2)
    assert code == 2 and "leave one out" in err and len(err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (("study", "run", "study.yaml"), ("compare", "flowers", "--random-init")):
        code, _, err = pliant(*command, "--ray", "auto")
        assert code == 2 and "pip install 'pliant[ray]'" in err and len(err.splitlines()) == 1


def test_help_has_examples(pliant):
    for command in (("study", "run"), ("study", "plan"), ("study", "status"), ("study", "report"), ("compare",)):
        code, out, _ = pliant(*command, "--help")
        assert code == 0 and "Example" in out
