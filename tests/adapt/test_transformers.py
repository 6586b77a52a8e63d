"""A backbone in transformers' layout, adapted end to end: metrics and class names do not vanish behind a wrapper."""

from __future__ import annotations

import json

import pytest
import torch

from pliant import adapt, load_adapted


@pytest.fixture
def folder(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3})
    )
    return tmp_path / "vit"


@pytest.mark.parametrize("method", ["lora", "adapter", "mha", "full"])
def test_a_transformers_model_is_adapted_like_any_other(small, folder, tmp_path, method):
    rank = 4 if method in ("lora", "adapter") else None
    small = {**small, "model": str(folder), "random_init": False, "method": method, "rank": rank, "epochs": 10}
    run = adapt.run(adapt.settings(**small))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test"]["top1"] > 0.6
    assert summary["data"]["classes"] == ["cat", "dog", "owl"]
    model = load_adapted(run)
    assert model.pliant_identity.preprocess["mean"] == [0.5, 0.5, 0.5]
    assert model.pliant_identity.preprocess["std"] == [0.25, 0.25, 0.25]
    assert model.pliant_adaptation.classes == ("cat", "dog", "owl")
