"""A small folder of images with signal in them, and settings that train on it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def write_images(folder: Path, classes=("cat", "dog", "owl"), each=12, size=24, seed=0) -> Path:
    """Noise around one colour a class."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        colour = np.eye(3)[number % 3] * 160 + 40
        for index in range(each):
            pixels = np.clip(rng.normal(colour, 60, (size, size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture
def flowers(tmp_path) -> Path:
    return write_images(tmp_path / "flowers")


@pytest.fixture
def small(flowers, tmp_path) -> dict:
    """Settings of a quick run on `flowers`: a ViT of 0.4 M random weights at 32 px."""
    return {
        "data": str(flowers), "model": "test_vit", "random_init": True, "img_size": 32, "epochs": 3, "batch_size": 8,
        "method": "adapter", "rank": 4, "device": "cpu", "out": str(tmp_path / "run"), "lr": 1e-2,
    }  # fmt: skip
