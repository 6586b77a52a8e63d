"""What a study will take in time and on disk, by timing every kind of run for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from pliant import anatomy, backbone
from pliant.adapt.defaults import micro_batch
from pliant.adapt.features import Streamed
from pliant.adapt.run import TRAIN_SAMPLE, build
from pliant.adapt.settings import Settings
from pliant.adapt.training import Tail
from pliant.data import Preprocess, Splits
from pliant.study.grid import Run
from pliant.study.ready import Ready, data_key, plan_key

_ENOUGH = 0.3
"""Seconds that each figure is timed for."""
_PAGE, _PREDICTION, _STEP = 350_000, 60, 170
"""Bytes of a run's page and small files, of one predicted image and of one line of its log, as measured."""
_SEARCH = 0.6
"""What `lr: auto` adds: three rates for a fifth of the epochs."""


@dataclass(frozen=True)
class Estimate:
    """For runs made one at a time: seconds, bytes that stay, and the most that a run needs besides while training."""

    seconds: float
    bytes: int
    working_bytes: int


@dataclass(frozen=True)
class _Pace:
    """Seconds to prepare a run, to read an image through the frozen stages, to train on one, and to predict one."""

    prepare: float
    read: float
    train: float
    predict: float


def estimate(runs: Sequence[Run], ready: Ready) -> Estimate:
    """Time a few steps of every kind of run (backbone, method and its options), and add up."""
    paces: dict[tuple, _Pace] = {}
    seconds, kept, working = 0.0, 0, 0
    for run in runs:
        splits, made = ready.splits[data_key(run.settings)], ready.plans[plan_key(run.settings)]
        kind = (plan_key(run.settings), run.settings.batch_size, run.settings.data)
        if kind not in paces:
            paces[kind] = _timed(run.settings, splits)
        seconds += _seconds(run.settings, splits, paces[kind], cached=bool(made.prefix) and run.settings.cacheable)
        steps = -(-len(splits.train) // run.settings.batch_size) * int(run.settings.epochs or 0)
        learned = 4 * made.trained_parameters
        kept += learned + _PAGE + _PREDICTION * len(splits.test) + _STEP * steps
        working = max(working, 3 * learned)  # parameters, and AdamW's two moments
    return Estimate(seconds, kept, working)


def _seconds(chosen: Settings, splits: Splits, pace: _Pace, cached: bool) -> float:
    epochs = int(chosen.epochs or 0)
    train, val, test = len(splits.train), len(splits.val), len(splits.test)
    read = train * (chosen.views or 1) + val if cached and chosen.cache != "off" else epochs * (train + val)
    training = epochs * (train * pace.train + val * pace.predict) * (1 + _SEARCH * (chosen.lr == "auto"))
    last = val + test + min(train, TRAIN_SAMPLE)
    return pace.prepare + (read + test) * pace.read + training + last * pace.predict


def _timed(chosen: Settings, splits: Splits) -> _Pace:
    device = _device(chosen)
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        model, made = build(chosen, len(splits.train.classes))
        made.apply(model).to(device)
    prepare = time.perf_counter() - began
    stages = anatomy.stages(model)[: len(made.prefix)]
    chunk = chosen.micro_batch or micro_batch(model, device, chosen.batch_size, len(made.prefix))
    indices = np.arange(min(chunk, len(splits.train)))

    def prefix(x: torch.Tensor) -> torch.Tensor:
        for stage in stages:
            x = stage.run(x)
        return x

    preprocess = Preprocess.from_dict(backbone.identity_of(model).preprocess)
    source = Streamed(splits.train, preprocess, prefix, device, chunk, chosen.augment, views=chosen.views)
    inputs, tail = source.batch(indices, 0).to(device), Tail(model, len(made.prefix))
    labels = torch.tensor(splits.train.labels[indices]).to(device)

    def train() -> None:
        F.cross_entropy(tail(inputs).float(), labels).backward()
        float(labels[0])  # waits for the device

    def predict() -> None:
        with torch.no_grad():
            float(tail(inputs).sum())

    return _Pace(
        prepare,
        _per_image(lambda: source.batch(indices, 0).cpu(), len(indices)),
        _per_image(train, len(indices)),
        _per_image(predict, len(indices)),
    )


def _per_image(work: Callable[[], object], images: int) -> float:
    """The median of a few repetitions after one that warms up."""
    work()
    times: list[float] = []
    while sum(times) < _ENOUGH:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.median(times)) / images


def _device(chosen: Settings) -> torch.device:
    if chosen.device != "auto":
        return torch.device(chosen.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
