"""Using an adapted model: metrics on a labelled set, class names for images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from pliant.adapt.features import Streamed
from pliant.adapt.learned import load_adapted
from pliant.adapt.metrics import measure
from pliant.adapt.settings import Settings
from pliant.adapt.training import Tail, predict_logits
from pliant.backbone import identity_of
from pliant.data import ImageSet, Preprocess, list_images, load_image, open_set
from pliant.errors import PliantError
from pliant.methods import adaptation_of
from pliant.progress import track


def evaluate(folder: Path, data: str, split: str = "test", batch_size: int = 32) -> dict[str, Any]:
    """Metrics of an adapted model on labelled images; classes are matched by name.

    Raises:
        PliantError: no adapted model in `folder`; a class that the model was not trained on.
    """
    model = load_adapted(folder)
    images = open_set(data, classes=_classes(model, folder), split=split)
    logits = _logits(model, images, batch_size)
    return measure(logits, torch.tensor(images.labels))


def predict(folder: Path, paths: Sequence[Path], top: int = 1) -> tuple[list[dict[str, Any]], list[str]]:
    """Class names and probabilities of images; folders are searched for images.

    Returns:
        One entry an image: `file`, and either `predictions` (the `top` best: class, probability) or `error`; and
        notes on what was ignored.

    Raises:
        PliantError: no adapted model in `folder`, no such path, no image found.
    """
    model = load_adapted(folder)
    classes = _classes(model, folder)
    files, notes = list_images(paths)
    preprocess = Preprocess.from_dict(identity_of(model).preprocess)
    device = Accelerator().device
    model.to(device)
    forward = Tail(model, 0)
    results: list[dict[str, Any]] = []
    for file in track(files, "predicting"):
        try:
            pixels = preprocess.evaluate(load_image(file))
        except PliantError as error:
            results.append({"file": str(file), "error": str(error)})
            continue
        with torch.no_grad():
            probabilities = forward(pixels.unsqueeze(0).to(device)).float().softmax(dim=1)[0].cpu()
        best = probabilities.topk(min(top, len(classes)))
        found = [
            {"class": classes[index], "probability": round(float(value), 6)}
            for value, index in zip(best.values, best.indices.tolist(), strict=True)
        ]
        results.append({"file": str(file), "predictions": found})
    return results, notes


def _logits(model: nn.Module, images: ImageSet, batch_size: int) -> torch.Tensor:
    accelerator = Accelerator()
    model.to(accelerator.device)
    preprocess = Preprocess.from_dict(identity_of(model).preprocess)
    inputs = Streamed(images, preprocess, lambda x: x, accelerator.device, batch_size)
    return predict_logits(model, Tail(model, 0), inputs, accelerator, Settings(data="", batch_size=batch_size))


def _classes(model: nn.Module, folder: Path) -> tuple[str, ...]:
    classes = adaptation_of(model).classes
    if classes is None:
        raise PliantError(f"{folder}: holds no class names; save with pliant.save(model, folder, classes=...)")
    return classes
