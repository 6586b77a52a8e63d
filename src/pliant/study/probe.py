"""What a study will take in time and on disk, by timing every kind of run for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F

from pliant import adapt, anatomy, backbone
from pliant.adapt import heads
from pliant.adapt.defaults import micro_batch
from pliant.adapt.features import Streamed
from pliant.adapt.job import REPORT, SETTINGS, SPLIT, SUMMARY, TRAIN_SAMPLE, build
from pliant.adapt.settings import Settings
from pliant.adapt.training import Tail
from pliant.data import Preprocess, Splits
from pliant.data.spec import without_count
from pliant.study.grid import Run
from pliant.study.ready import Ready, backbone_key, data_key, plan_key
from pliant.study.worker import speaking_to

_ENOUGH = 0.3
"""Seconds that each figure is timed for."""
_PREDICTION, _STEP = 60, 170
"""Bytes of one predicted image and of one line of a run's log, as measured."""
_FEW = 64
"""Images of a part that the short run is made on."""
_BESIDE = 3
"""Heads that are made beside one, to see what one more costs."""
_SEARCH = 0.6
"""What `lr: auto` adds: three rates for a fifth of the epochs."""


@dataclass(frozen=True)
class Estimate:
    """For one worker: seconds, bytes that stay, and bytes that are needed besides until the study is done."""

    seconds: float
    bytes: int
    working_bytes: int


@dataclass(frozen=True)
class _Pace:
    """Seconds to read an image through the frozen stages, to train on one, and to predict one; bytes of what is kept."""

    read: float
    train: float
    predict: float
    kept: int


def estimate(runs: Sequence[Run], ready: Ready) -> Estimate:
    """Time a few steps of every kind of run (backbone, method and its options), and add up.

    What a run costs whatever its length is read off short runs, made in a temporary folder. Frozen outputs that runs
    share are counted once; where each seed draws its own images from many, as those of its own.
    """
    if not runs:
        return Estimate(0.0, 0, 0)
    paces: dict[tuple, _Pace] = {}
    seconds, kept, working, shared = 0.0, 0, 0, 0
    read: set[tuple] = set()
    for run in runs:
        splits, made = ready.splits[data_key(run.settings)], ready.plans[plan_key(run.settings)]
        kind = _kind(run)
        if kind not in paces:
            paces[kind] = _timed(run.settings, splits)
        pace, together = paces[kind], heads.kind(run.settings) is not None
        keeps = bool(made.prefix) and run.settings.cacheable and run.settings.cache != "off"
        for key, images in _images(run.settings, splits, made.prefix, keeps):
            if key not in read:
                read.add(key)
                seconds += images * pace.read
                shared += images * pace.kept * keeps
        seconds += _training(run.settings, splits, pace) * (not together)
        steps = -(-len(splits.train) // run.settings.batch_size) * int(run.settings.epochs or 0)
        learned = 4 * made.trained_parameters
        kept += learned + _PREDICTION * len(splits.test) + _STEP * steps
        working = max(working, 3 * learned)  # parameters, and AdamW's two moments
    around, page = _short_runs(min(runs, key=lambda run: paces[_kind(run)].train), ready, beside=0)
    seconds += around * sum(heads.kind(run.settings) is None for run in runs)
    if together_runs := [run for run in runs if heads.kind(run.settings)]:
        alone, few = (_short_runs(together_runs[0], ready, beside)[0] for beside in (0, _BESIDE))
        seconds += alone + max(0.0, few - alone) / _BESIDE * (len(together_runs) - 1)
    return Estimate(seconds, kept + len(runs) * page, working + shared)


def _kind(run: Run) -> tuple:
    return (plan_key(run.settings), run.settings.batch_size, run.settings.data)


def _images(chosen: Settings, splits: Splits, prefix: tuple[str, ...], keeps: bool) -> list[tuple[tuple, int]]:
    """Images that a run reads through its frozen stages, and keys that are the same where runs share them."""
    source, count = without_count(chosen.data)
    drawn = chosen.limit_train or count
    of = (*backbone_key(chosen), prefix, source)
    train, val, test = len(splits.train), len(splits.val), len(splits.test)
    tested = ((*of, "test", chosen.limit_test, chosen.seed if chosen.limit_test else None), test)
    if not keeps:  # a fresh view each epoch
        every = int(chosen.epochs or 1) * (train + val) + min(train, TRAIN_SAMPLE)
        return [((*of, "run", chosen.model_dump_json()), every), tested]
    views = (chosen.augment, chosen.views, chosen.seed if chosen.augment != "none" else None)
    return [((*of, *views, drawn, chosen.seed if drawn else None), train * (chosen.views or 1) + val), tested]


def _short_runs(run: Run, ready: Ready, beside: int) -> tuple[float, int]:
    """Seconds of one epoch on a few images: reading, testing and the page, with next to no training; and a run's bytes.

    With so many others made together with it.
    """
    splits = ready.splits[data_key(run.settings)]
    few = max(_FEW, len(splits.train.classes))
    changes = {"limit_train": min(few, len(splits.train)), "limit_val": few, "limit_test": few,
               "data": without_count(run.settings.data)[0], **({"epochs": 1} if run.settings.epochs else {})}  # fmt: skip
    with TemporaryDirectory() as place:
        asked = [run.settings.model_copy(update={**changes, "out": f"{place}/{n}"}) for n in range(1 + beside)]
        began = time.perf_counter()
        with speaking_to(Path(place) / "log.txt"):
            if beside:
                heads.run_together(asked, "", Path(place) / "shelf")
            else:
                adapt.run(asked[0])
        seconds = time.perf_counter() - began
        names = (SUMMARY, REPORT, SPLIT, SETTINGS)
        return seconds, sum((Path(place) / "0" / name).stat().st_size for name in names)


def _training(chosen: Settings, splits: Splits, pace: _Pace) -> float:
    """Seconds of what comes after the frozen stages."""
    epochs, train, val = int(chosen.epochs or 0), len(splits.train), len(splits.val)
    training = epochs * (train * pace.train + val * pace.predict) * (1 + _SEARCH * (chosen.lr == "auto"))
    return training + (val + len(splits.test) + min(train, TRAIN_SAMPLE)) * pace.predict


def _timed(chosen: Settings, splits: Splits) -> _Pace:
    device = _device(chosen)
    with torch.random.fork_rng(devices=[]):
        model, made = build(chosen, len(splits.train.classes))
        made.apply(model).to(device)
    stages = anatomy.stages(model)[: len(made.prefix)]
    chunk = chosen.micro_batch or micro_batch(model, device, chosen.batch_size, len(made.prefix))
    indices = np.arange(min(chunk, len(splits.train)))

    preprocess = Preprocess.from_dict(backbone.identity_of(model).preprocess)
    source = Streamed(
        splits.train, preprocess, partial(anatomy.through, stages), device, chunk, chosen.augment, views=chosen.views
    )
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
        inputs[0].numel() * 2,  # half precision
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
