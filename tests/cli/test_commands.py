"""The command line: the block of examples works, and bad input is one clear line with exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from PIL import Image

from tests.adapt.conftest import write_images

TINY = (
    "--model",
    "test_vit",
    "--random-init",
    "--img-size",
    "32",
    "--rank",
    "4",
    "--epochs",
    "2",
    "--lr",
    "1e-2",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on three colours, and its data."""
    from pliant import adapt

    root = tmp_path_factory.mktemp("finished")
    data = write_images(root / "data", each=14)
    chosen = {
        "model": "test_vit",
        "random_init": True,
        "img_size": 32,
        "rank": 4,
        "epochs": 8,
        "lr": 1e-2,
        "device": "cpu",
    }
    return adapt.run(adapt.settings(data=str(data), out=str(root / "run"), batch_size=8, **chosen)), data


def test_adapt_then_evaluate_then_predict(pliant, tmp_path):
    data = write_images(tmp_path / "flowers", each=14)
    code, out, err = pliant("adapt", data, *TINY, "--batch-size", "8", "--epochs", "6", "--out", tmp_path / "a")
    assert code == 0, err
    assert out.splitlines()[0].startswith("test top-1 ")
    assert out.splitlines()[-1] == f"report: {tmp_path / 'a' / 'report.html'}"
    assert "adapter" in err and "trained" in err  # the plan
    new = write_images(tmp_path / "new", each=5, seed=9)
    code, out, _ = pliant("evaluate", tmp_path / "a", "--data", new, "--json")
    assert code == 0 and json.loads(out)["images"] == 15
    code, out, _ = pliant("predict", tmp_path / "a", new / "owl", "--json")
    found = json.loads(out)["images"]
    assert code == 0 and len(found) == 5
    assert sum(row["predictions"][0]["class"] == "owl" for row in found) >= 4


def test_the_command_in_the_summary_is_the_one_that_ran(pliant, tmp_path):
    data = write_images(tmp_path / "f")
    pliant("adapt", data, *TINY, "--out", tmp_path / "a")
    command = json.loads((tmp_path / "a" / "summary.json").read_text())["command"]
    assert command.startswith(f"pliant adapt {data} --model test_vit")


def test_evaluate_matches_classes_by_name(pliant, finished, tmp_path):
    run, _ = finished
    fewer = write_images(tmp_path / "fewer", each=6, seed=5)
    for file in (fewer / "dog").iterdir():
        file.unlink()
    code, out, _ = pliant("evaluate", run, "--data", fewer, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["per_class"][1] is None and found["top1"] > 0.8  # owls are still owls, though they are second now


def test_evaluate_refuses_unknown_classes(pliant, finished, tmp_path):
    run, _ = finished
    data = write_images(tmp_path / "new", classes=("cat", "newt"))
    code, _, err = pliant("evaluate", run, "--data", data)
    assert code == 2 and "newt" in err


def test_evaluate_prints_a_table(pliant, finished):
    run, data = finished
    code, out, _ = pliant("evaluate", run, "--data", data)
    assert code == 0 and "owl" in out and out.splitlines()[-1].startswith("top-1 ")


def test_predict_tells_of_files_it_cannot_read(pliant, finished, tmp_path):
    run, data = finished
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = data / "cat" / "0.png"
    code, out, err = pliant("predict", run, good, tmp_path / "bad.png", "--top", "3")
    assert code == 0 and out.count("%") == 3 and "bad.png" in err
    code, _, err = pliant("predict", run, tmp_path / "bad.png")
    assert code == 2 and "not readable" in err


def test_resume_of_a_finished_run(pliant, finished):
    code, out, err = pliant("adapt", "--resume", finished[0])
    assert code == 0 and "is finished" in err and out.splitlines()[-1].startswith("report: ")


@pytest.mark.parametrize(("make", "arguments", "message"), [
    (None, ["nowhere"], "nowhere"),
    ("empty", ["{data}"], "without images"),
    ("one", ["{data}"], "one class"),
    ("few", ["{data}"], "cat"),
    ("good", ["{data}", "--model", "test_vitt"], "did you mean test_vit"),
    ("good", ["{data}", "--method", "adaptor"], "did you mean adapter"),
    ("good", ["{data}", "--rank", "0"], "--rank 0"),
    ("good", ["{data}", "--rank", "65"], "--rank 65"),
    ("good", ["{data}", "--img-size", "40"], "not divisible"),
    ("good", ["{data}", "--blocks", "last:99"], "--blocks"),
    ("good", ["{data}", "--lr", "fast"], "--lr 'fast'"),
    ("good", ["{data}", "--epochs", "0"], "--epochs 0"),
    ("good", ["{data}", "--augment", "twist"], "--augment 'twist'"),
    ("good", ["{data}", "--out", "{data}"], "not an empty folder"),
    ("good", ["{data}", "--weights", "none.safetensors"], "contradict"),
    (None, ["cifar1000"], "cifar100"),
    (None, [], "nothing to adapt to"),
    (None, ["--resume", "{root}"], "no run folder"),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(pliant, tmp_path, make, arguments, message):
    data = tmp_path / "data"
    if make == "good":
        write_images(data)
    elif make == "one":
        write_images(data, classes=("cat",))
    elif make == "few":
        write_images(data, each=2)
    elif make == "empty":
        data.mkdir()
    given = [argument.format(data=data, root=tmp_path) for argument in arguments]
    resuming = "--resume" in given
    base = [] if resuming else [*TINY, *(() if "--out" in given else ("--out", tmp_path / "out"))]
    code, _, err = pliant("adapt", *base, *given)
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("pliant: ") and message in last
    assert not (tmp_path / "out").exists()


def test_an_output_folder_with_another_run_is_refused(pliant, finished):
    run, data = finished
    code, _, err = pliant("adapt", data, *TINY, "--out", run)
    assert code == 2 and f"--resume {run}" in err


def test_resume_refuses_other_settings(pliant, finished):
    code, _, err = pliant("adapt", "--resume", finished[0], "--epochs", "50")
    assert code == 2 and "--epochs cannot be changed" in err


def test_default_output_folders_are_numbered(pliant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "flowers")
    for number in (1, 2):
        code, out, _ = pliant("adapt", "flowers", *TINY, "--epochs", "1")
        assert code == 0
        assert out.splitlines()[-1] == f"report: runs/flowers-test_vit-adapter-{number}/report.html"


def test_odd_images_train(pliant, tmp_path):
    """Sizes, modes, suffixes and names as people have them, in one run."""
    data = write_images(tmp_path / "fötös", each=14)
    image = Image.open(data / "cat" / "0.png")
    image.convert("L").save(data / "cat" / "grey.PNG")
    image.convert("CMYK").save(data / "cat" / "print.JPG")
    image.resize((90, 20)).convert("P").save(data / "cat" / "ünï.gif")
    (data / ".DS_Store").write_bytes(b"x")
    (data / "empty").mkdir()
    code, _, err = pliant("adapt", data, *TINY, "--out", tmp_path / "a")
    assert code == 0, err
    assert "empty" in err


def test_inspect(pliant):
    code, out, _ = pliant("inspect", "vit_small_patch14_dinov2", "--json")
    found = json.loads(out)
    assert code == 0 and found["anatomy"]["width"] == 384
    assert found["trained"]["adapter"] == 12 * (2 * 384 * 16 + 16 + 384) + 3850
    code, out, _ = pliant("inspect", "test_vit")
    assert code == 0 and "what each method trains" in out


def test_models_and_data(pliant):
    code, out, _ = pliant("models", "--filter", "dinov2", "--json")
    assert code == 0 and "vit_small_patch14_dinov2.lvd142m" in json.loads(out)["models"]
    code, out, _ = pliant("models")
    assert out.splitlines()[0] == "pico"
    code, out, _ = pliant("data", "--json")
    assert {"cifar10", "digits"} <= {row["name"] for row in json.loads(out)["data"]}
    assert pliant("data")[0] == 0


def test_help_has_examples(pliant):
    code, out, _ = pliant("adapt", "--help")
    assert code == 0 and "pliant adapt ./flowers" in out


def test_the_command_line_does_not_import_torch():
    code = "import sys, pliant, pliant.cli; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    started = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert time.monotonic() - started < 30
