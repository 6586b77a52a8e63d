"""How good predictions are, from torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_confusion_matrix,
    multiclass_f1_score,
)


def measure(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Metrics of logits (N, C) against labels (N,), as fractions from 0 to 1.

    top1, top5 (with k = min(5, C), told as `top5_k`), macro F1, expected calibration error (15 bins), mean
    cross-entropy `loss`, per-class accuracy (None for a class without images) and the confusion matrix (rows are true
    classes).
    """
    classes = logits.shape[1]
    k = min(5, classes)
    logits = logits.float()
    probabilities = logits.softmax(dim=1)
    confusion = multiclass_confusion_matrix(logits, labels, num_classes=classes)
    counts = confusion.sum(dim=1)
    correct = confusion.diagonal()
    return {
        "top1": float(multiclass_accuracy(logits, labels, num_classes=classes, average="micro")),
        "top5": float(multiclass_accuracy(logits, labels, num_classes=classes, average="micro", top_k=k)),
        "top5_k": k,
        "macro_f1": float(multiclass_f1_score(logits, labels, num_classes=classes, average="macro")),
        "ece": float(multiclass_calibration_error(probabilities, labels, num_classes=classes, n_bins=15)),
        "loss": float(F.cross_entropy(logits, labels)),
        "images": len(labels),
        "per_class": [float(c) / float(n) if n else None for c, n in zip(correct, counts, strict=True)],
        "confusion": confusion.tolist(),
    }


def top1_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Fraction of logits (N, C) that are largest at their label, and mean cross-entropy: what an epoch is judged by."""
    logits = logits.float()
    right = int((logits.argmax(dim=1) == labels).sum())
    return right / len(labels), float(F.cross_entropy(logits, labels))


def predictions_table(logits: Tensor, labels: Tensor, keys: list[str]) -> Any:
    """A DataFrame with one row an image: key, label, prediction, confidence, label_confidence."""
    import pandas as pd

    probabilities = logits.float().softmax(dim=1)
    confidence, prediction = probabilities.max(dim=1)
    return pd.DataFrame({
        "key": keys,
        "label": labels.numpy(),
        "prediction": prediction.numpy(),
        "confidence": confidence.numpy(),
        "label_confidence": probabilities[torch.arange(len(labels)), labels].numpy(),
    })  # fmt: skip
