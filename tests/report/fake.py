"""A run folder as the trainer writes it, made of random numbers with a fixed seed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from PIL import Image

from pliant.report.statistics import reliability

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def fake_run(folder: Path, classes=CIFAR, images=1000, skill=2.6, epochs=5, steps=32, seed=0) -> Path:
    """Writes a finished run into `folder`; a greater `skill` makes fewer mistakes."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    labels = np.arange(images) % len(classes)
    logits = draw.normal(size=(images, len(classes)))
    logits[np.arange(images), labels] += skill + draw.normal(size=len(classes))[labels] * 0.5
    probabilities = np.exp(1.4 * logits) / np.exp(1.4 * logits).sum(axis=1, keepdims=True)
    table = pd.DataFrame({
        "key": [f"test/{classes[label]}/{index:05d}.png" for index, label in enumerate(labels)],
        "label": labels,
        "prediction": probabilities.argmax(axis=1),
        "confidence": probabilities.max(axis=1) if images else np.zeros(0),
        "label_confidence": probabilities[np.arange(images), labels],
    })  # fmt: skip
    table.to_parquet(folder / "predictions.parquet", index=False)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _log(draw, epochs, steps)))
    (folder / "run.yaml").write_text(yaml.safe_dump(_SETTINGS, sort_keys=False))
    write_summary(folder, _summary(table, classes, epochs, steps))
    return folder


def read_summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def write_summary(folder: Path, summary: dict) -> None:
    (folder / "summary.json").write_text(json.dumps(summary))


def thumbnails(keys, side=32) -> dict[str, Image.Image]:
    draw = np.random.default_rng(1)
    small = [draw.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in keys]
    return {key: Image.fromarray(pixels).resize((side, side)) for key, pixels in zip(keys, small, strict=True)}


def _metrics(table: pd.DataFrame, count: int) -> dict:
    confusion = np.zeros((count, count), dtype=int)
    np.add.at(confusion, (table["label"], table["prediction"]), 1)
    pairs = zip(confusion.diagonal().tolist(), confusion.sum(axis=1).tolist(), strict=True)
    bins = reliability(table)
    filled = bins.images > 0
    errors = np.abs(bins.accuracy - bins.confidence)[filled] * bins.images[filled]
    return {
        "top1": float((table["label"] == table["prediction"]).mean()) if len(table) else float("nan"),
        "top5": 0.978, "top5_k": min(5, count), "macro_f1": 0.713, "ece": float(errors.sum() / max(1, len(table))),
        "loss": 0.842, "images": len(table),
        "per_class": [right / n if n else None for right, n in pairs],
        "confusion": confusion.tolist(),
    }  # fmt: skip


def _log(draw, epochs, steps):
    total = epochs * steps
    for step in range(1, total + 1):
        rate = 1e-3 * min(step / 10, 0.5 * (1 + np.cos(np.pi * step / total)))
        loss = 0.6 + 1.8 * np.exp(-step / 30) + 0.15 * draw.normal()
        yield {"kind": "step", "step": step, "epoch": (step - 1) // steps, "loss": loss, "lr": rate,
               "grad_norm": 1 + 3 * np.exp(-step / 20) + 0.3 * draw.random(), "images_per_second": 19.8}  # fmt: skip
        if step % steps == 0:
            epoch = step // steps - 1
            yield {"kind": "epoch", "epoch": epoch, "step": step, "train_loss": 0.62 + 1.6 * np.exp(-step / 30),
                   "val_loss": 0.85 + 1.2 * np.exp(-step / 25), "val_top1": 0.72 - 0.4 * np.exp(-step / 30),
                   "seconds": 53.2 * (epoch + 1)}  # fmt: skip


def _summary(table, classes, epochs, steps) -> dict:
    test = _metrics(table, len(classes))
    split = {name: test[name] for name in ("top5", "top5_k", "macro_f1", "ece", "loss")}
    return {
        "pliant": "0.1.0",
        "command": "pliant adapt data/cifar10 --model vit_small_patch14_dinov2 --weights weights/vit_small.safetensors "
        "--img-size 112 --limit-train 1000 --limit-test 1000 --epochs 5 --seed 0 --out runs/a",
        "finished": "2026-12-01T02:00:00+00:00",
        "environment": {"python": "3.11.2", "torch": "2.9.1", "timm": "1.0.22", "threads": 2, "device": "cpu"},
        "data": {"spec": "data/cifar10", "classes": list(classes), "train": 900, "val": 100, "test": len(table),
                 "notes": ["2 hidden files were ignored"], "skipped": ["train/cat/broken.jpg"]},
        "model": {"name": "vit_small_patch14_dinov2", "weights": "weights/vit_small.safetensors",
                  "fingerprint": "9f2c" * 16, "img_size": 112, "parameters": 21_887_242, "family": "timm-vit"},
        "method": {"name": "adapter", "rank": 16, "every": 1, "alpha": 1.0, "init": "zero", "blocks": "all"},
        "plan": [
            {"part": "embed", "blocks": "", "parameters": 251_136, "trained": False, "share": 0.0115},
            {"part": "blocks", "blocks": "0-11", "parameters": 21_479_040, "trained": False, "share": 0.9813},
            {"part": "adapter", "blocks": "0-11", "parameters": 152_256, "trained": True, "share": 0.007},
            {"part": "norm", "blocks": "", "parameters": 768, "trained": False, "share": 0.0},
            {"part": "head", "blocks": "", "parameters": 4_042, "trained": True, "share": 0.0002},
        ],
        "training": {"epochs": epochs, "steps": epochs * steps, "best_epoch": epochs - 2, "seconds": 266.4,
                     "images_per_second": 19.8, "lr": 0.001, "head_lr": 0.003, "batch_size": 32,
                     "memory_mb": {"weights": 87.5, "optimizer": 1.3, "activations": 412.6, "peak": 731.2},
                     "cache": {"stages": "embed to block 8", "bytes": 115_200_000, "where": "memory"}},
        "train": {**split, "top1": 0.851, "images": 900}, "val": {**split, "top1": 0.71, "images": 100}, "test": test,
        "gap": 0.851 - test["top1"], "learned_bytes": 634_112,
    }  # fmt: skip


_SETTINGS = {
    "data": "data/cifar10", "model": "vit_small_patch14_dinov2", "weights": "weights/vit_small.safetensors",
    "method": "adapter", "rank": 16, "img_size": 112, "epochs": 5, "batch_size": 32, "lr": 0.001, "weight_decay": 0.05,
    "warmup": 0.1, "clip": 1.0, "label_smoothing": 0.0, "mixup": 0.0, "balanced": False, "views": None, "seed": 0,
    "device": "auto", "precision": "no", "out": "runs/a", "betas": [0.9, 0.999],
}  # fmt: skip
