"""The linear probe (arXiv 2602.06883): logistic regression on the mean token of the last block's output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from pliant.adapt import learned
from pliant.adapt.checkpoint import Position
from pliant.progress import say

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

    from pliant.adapt.features import Inputs
    from pliant.adapt.job import Job


def fit(features: np.ndarray, labels: np.ndarray) -> Pipeline:
    """Logistic regression on features (N, d) that are l2-normalised, then standardised.

    Of scikit-learn, with its own strength of regularisation (C = 1); the published text names none.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer, StandardScaler

    return make_pipeline(Normalizer(), StandardScaler(), LogisticRegression(max_iter=2000)).fit(features, labels)


def finish(job: Job) -> Path:
    """Read the images once, fit, test, and write the run's folder."""
    train, val = job.inputs()
    job.settle(train)
    began = time.monotonic()
    found = fit(_read(train), train.labels)
    seconds = time.monotonic() - began
    say(f"fitted a linear probe on {len(train.labels)} images in {seconds:.1f} s")
    if job.main:
        _save(job, found)
    position = Position(best_epoch=0, seconds=seconds, done=True)
    return job.conclude(train, val, position, lambda inputs: torch.from_numpy(found.predict_log_proba(_read(inputs))))


def _read(inputs: Inputs) -> np.ndarray:
    """Features (N, d) of all images, in float64."""
    return inputs.batch(np.arange(len(inputs.labels)), 0).double().cpu().numpy()


def _save(job: Job, found: Pipeline) -> None:
    """Beside the settings, what was fitted."""
    scaler, regression = found[1], found[2]
    values = {
        "mean": scaler.mean_, "scale": scaler.scale_, "weight": regression.coef_, "bias": regression.intercept_,
    }  # fmt: skip
    state = {name: torch.from_numpy(value) for name, value in values.items()}
    learned.save(job.model, job.folder / "learned", job.splits.train.classes, state)
