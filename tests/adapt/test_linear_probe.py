"""The yardstick: the published recipe, through the same runs as everything else."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pliant import PliantError, adapt, backbone
from pliant.data import Preprocess, open_splits
from pliant.study.file import parse
from pliant.study.grid import runs_of
from tests.adapt.test_training import run


def test_equals_the_recipe_written_out(small, tmp_path):
    folder = run(
        {**small, "method": "probe", "rank": None, "epochs": None, "lr": None, "batch_size": 32}, tmp_path / "a"
    )
    torch.manual_seed(0)
    model = backbone.load("test_vit", num_classes=3, img_size=32, random_init=True).eval()
    preprocess = Preprocess.from_dict(backbone.identity_of(model).preprocess)
    splits = open_splits(small["data"])
    tokens = []
    # Without the final norm, which timm applies at the end of its forward_features.
    model.norm.register_forward_pre_hook(lambda module, given: tokens.append(given[0].detach().double().mean(dim=1)))
    features = {}
    for name, images in splits.parts().items():
        with torch.no_grad():
            model(torch.stack([preprocess.evaluate(images.image(i)) for i in range(len(images))]))
        found = tokens.pop().half() if name == "train" else tokens.pop()
        features[name] = found.double().numpy() / np.linalg.norm(found.double().numpy(), axis=1, keepdims=True)
    mean, scale = features["train"].mean(axis=0), features["train"].std(axis=0)
    regression = LogisticRegression(max_iter=2000)
    regression.fit((features["train"] - mean) / scale, splits.train.labels)
    wanted = regression.predict_proba((features["test"] - mean) / scale)
    table = pd.read_parquet(folder / "predictions.parquet")
    np.testing.assert_allclose(table["confidence"], wanted.max(axis=1), atol=2e-3)
    assert table["prediction"].tolist() == wanted.argmax(axis=1).tolist()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["top1"] == pytest.approx((wanted.argmax(axis=1) == splits.test.labels).mean())
    assert sum(row["parameters"] for row in summary["plan"] if row["trained"]) == 64 * 3 + 3
    assert (folder / "report.html").is_file()


def test_takes_no_setting_of_training_and_is_no_model_to_use(small, tmp_path):
    given = {**small, "method": "probe", "rank": None, "epochs": None, "batch_size": 32}
    with pytest.raises(PliantError, match="--lr does not go with --method probe"):
        run(given, tmp_path / "a")
    folder = run(given, tmp_path / "b", lr=None)
    with pytest.raises(PliantError, match="no model to use; take --method head"):
        adapt.load_adapted(folder)


def test_a_study_makes_it_once_for_all_rates():
    runs = runs_of(
        parse(
            {
                "axes": {"method": ["probe", "ln1"], "lr": [1e-3, 1e-2], "optimizer": ["adamw", "sgd"], "seed": [0, 1]},
                "fixed": {"data": "x"},
            },
            "study",
        )
    )
    assert [run.settings.method for run in runs].count("probe") == 2 and len(runs) == 2 + 8
