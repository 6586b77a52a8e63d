"""The embedded backbone: the files that ship are those that the card describes, and the recipe resumes exactly."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "src" / "pliant" / "assets"


@pytest.fixture(scope="module")
def card() -> dict:
    return json.loads((ASSETS / "pico.json").read_text())


@pytest.fixture(scope="module")
def recipe():
    """The recipe as a module; it is a script outside the package."""
    spec = importlib.util.spec_from_file_location("pico_pretrain", ROOT / "recipes" / "pico" / "pretrain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(card):
    from safetensors.torch import load_file
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(**card["timm"])
    model.load_state_dict(load_file(ASSETS / "pico.safetensors"), strict=True)
    return model.eval()


def test_the_file_is_small_and_the_one_described(card):
    content = (ASSETS / "pico.safetensors").read_bytes()
    assert len(content) <= 1_500_000
    assert hashlib.sha256(content).hexdigest() == card["sha256"]


def test_the_weights_fit_strictly_and_are_half_a_million(card, model):
    count = sum(value.numel() for value in model.state_dict().values())
    assert count == card["parameters"]
    assert 400_000 <= count <= 650_000
    assert model.head.out_features == len(card["classes"]) == 10
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_the_model_is_the_recipes(card, recipe):
    """What the card says to build and how to prepare images is what the recipe trained."""
    assert card["timm"] == recipe.MODEL
    assert (tuple(card["preprocess"]["mean"]), tuple(card["preprocess"]["std"])) == (recipe.MEAN, recipe.STD)
    assert card["preprocess"]["size"] == card["timm"]["img_size"]


def test_the_model_card_states_the_measured_accuracy(card):
    text = (ROOT / "docs" / "pico.md").read_text()
    assert f"{card['test_top1']:.2%}".replace("%", " %") in text
    assert card["command"].split("--data")[1].split(maxsplit=1)[1] in " ".join(text.replace("\\\n", " ").split())


def test_500_test_images_score_near_the_card(card, model, recipe, shared):
    """500 images have a standard error of about 2 points; 6 allow for three."""
    import torch

    images, labels, classes = recipe.read(shared / "data" / "cifar10" / "test.parquet")
    assert classes == card["classes"]
    chosen = torch.arange(0, len(images), len(images) // 500)
    with torch.no_grad():
        right = model(recipe.normalised(images[chosen])).argmax(1) == labels[chosen]
    assert abs(right.float().mean().item() - card["test_top1"]) < 0.06


SMALL = ["--epochs", 2, "--decay", 1, "--whole", 1, "--batch", 16, "--warmup", 2, "--threads", 1]


def test_the_recipe_stopped_and_run_again_gives_the_same_file(recipe, tmp_path, monkeypatch, capsys):
    """Stopped after its first epoch, the run goes on to the very weights of the run that was not."""
    _write_images(tmp_path / "train.parquet", 48)
    _write_images(tmp_path / "test.parquet", 16)

    def run(name: str) -> bytes:
        _set_options(monkeypatch, "--data", tmp_path, "--work", tmp_path / name, "--out", tmp_path / name)
        recipe.main()
        return (tmp_path / name / "pico.safetensors").read_bytes()

    whole, save = run("whole"), recipe.save_checkpoint

    def stop(*arguments):
        save(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "save_checkpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        run("stopped")
    monkeypatch.setattr(recipe, "save_checkpoint", save)
    capsys.readouterr()
    assert run("stopped") == whole
    printed = capsys.readouterr().out
    assert "epoch 1/2" not in printed
    assert "epoch 2/2" in printed


def test_half_of_the_tokens_are_dropped_before_the_last_epoch(recipe, monkeypatch):
    """timm puts an Identity in the place of the dropping where a model is built with a rate of zero."""
    import torch
    from timm.models.vision_transformer import VisionTransformer

    _set_options(monkeypatch, "--data", ".")
    options = recipe._options()
    model = VisionTransformer(**recipe.MODEL, patch_drop_rate=options.patch_drop)
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    averaged = {name: value.clone() for name, value in model.state_dict().items()}
    images, labels = torch.zeros(16, 3, 32, 32, dtype=torch.uint8), torch.zeros(16, dtype=torch.long)
    for epoch in (0, 1):
        recipe.train_epoch(model, averaged, recipe.make_optimizers(model, options), images, labels, epoch, options)
    assert seen == [32, 64]


@pytest.mark.parametrize(("step", "factor"), [(0, 0.1), (9, 1.0), (50, 1.0), (90, 1.0), (95, 0.5), (99, 0.1)])
def test_the_rate_rises_stays_and_falls_to_zero(recipe, step, factor):
    assert recipe.rate_factor(step, warmup=10, steps=100, decay=10) == pytest.approx(factor)


def _set_options(monkeypatch, *more) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *map(str, SMALL), *map(str, more)])


def _write_images(path: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng = np.random.default_rng(count)
    rows = []
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "PNG")
        rows.append({"bytes": file.getvalue(), "path": None})
    table = pa.table({"image": rows, "label": rng.integers(0, 10, count)})
    features = {
        "features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list("abcdefghij")}}
    }
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": features})}), path)
