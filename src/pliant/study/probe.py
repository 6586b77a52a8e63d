"""What a study will take in time and on disk, by timing every kind of run for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F

from pliant import adapt, anatomy, backbone
from pliant.adapt.defaults import micro_batch
from pliant.adapt.features import Streamed
from pliant.adapt.job import REPORT, SETTINGS, SPLIT, SUMMARY, TRAIN_SAMPLE, build
from pliant.adapt.settings import Settings
from pliant.adapt.training import Tail
from pliant.data import Preprocess, Splits
from pliant.data.spec import without_count
from pliant.study.grid import Run
from pliant.study.ready import Ready, data_key, plan_key
from pliant.study.worker import speaking_to

_ENOUGH = 0.3
"""Seconds that each figure is timed for."""
_PREDICTION, _STEP = 60, 170
"""Bytes of one predicted image and of one line of a run's log, as measured."""
_FEW = 64
"""Images of a part that the short run is made on."""
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
    """Seconds to read an image through the frozen stages, to train on one, and to predict one."""

    read: float
    train: float
    predict: float


def estimate(runs: Sequence[Run], ready: Ready) -> Estimate:
    """Time a few steps of every kind of run (backbone, method and its options), and add up.

    What a run costs whatever its length is read off one short run, made in a temporary folder.
    """
    if not runs:
        return Estimate(0.0, 0, 0)
    paces: dict[tuple, _Pace] = {}
    seconds, kept, working = 0.0, 0, 0
    for run in runs:
        splits, made = ready.splits[data_key(run.settings)], ready.plans[plan_key(run.settings)]
        kind = _kind(run)
        if kind not in paces:
            paces[kind] = _timed(run.settings, splits)
        seconds += _seconds(run.settings, splits, paces[kind], cached=bool(made.prefix) and run.settings.cacheable)
        steps = -(-len(splits.train) // run.settings.batch_size) * int(run.settings.epochs or 0)
        learned = 4 * made.trained_parameters
        kept += learned + _PREDICTION * len(splits.test) + _STEP * steps
        working = max(working, 3 * learned)  # parameters, and AdamW's two moments
    around, page = _short_run(min(runs, key=lambda run: paces[_kind(run)].train), ready)
    return Estimate(seconds + len(runs) * around, kept + len(runs) * page, working)


def _kind(run: Run) -> tuple:
    return (plan_key(run.settings), run.settings.batch_size, run.settings.data)


def _short_run(run: Run, ready: Ready) -> tuple[float, int]:
    """Seconds and bytes of one epoch on a few images: reading, testing and the page, with next to no training."""
    splits = ready.splits[data_key(run.settings)]
    few = max(_FEW, len(splits.train.classes))
    limits = {"limit_train": min(few, len(splits.train)), "limit_val": few, "limit_test": few}
    with TemporaryDirectory() as place:
        changes = {**limits, "epochs": 1, "out": f"{place}/run", "data": without_count(run.settings.data)[0]}
        began = time.perf_counter()
        with speaking_to(Path(place) / "log.txt"):
            folder = adapt.run(run.settings.model_copy(update=changes))
        seconds = time.perf_counter() - began
        names = (SUMMARY, REPORT, SPLIT, SETTINGS)
        return seconds, sum((folder / name).stat().st_size for name in names)


def _seconds(chosen: Settings, splits: Splits, pace: _Pace, cached: bool) -> float:
    epochs = int(chosen.epochs or 0)
    train, val, test = len(splits.train), len(splits.val), len(splits.test)
    read = train * (chosen.views or 1) + val if cached and chosen.cache != "off" else epochs * (train + val)
    training = epochs * (train * pace.train + val * pace.predict) * (1 + _SEARCH * (chosen.lr == "auto"))
    last = val + test + min(train, TRAIN_SAMPLE)
    return (read + test) * pace.read + training + last * pace.predict


def _timed(chosen: Settings, splits: Splits) -> _Pace:
    device = _device(chosen)
    with torch.random.fork_rng(devices=[]):
        model, made = build(chosen, len(splits.train.classes))
        made.apply(model).to(device)
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
