"""One adaptation: data, backbone, plan, training, one test, and what it writes. Built from settings alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from pliant import anatomy, backbone, report
from pliant.adapt import checkpoint, learned, linear_probe
from pliant.adapt.checkpoint import Position
from pliant.adapt.defaults import micro_batch, resolve
from pliant.adapt.features import CacheRequest, Inputs, Streamed, cached, sampled
from pliant.adapt.hooks import NO_HOOKS, Hooks
from pliant.adapt.metrics import measure, predictions_table
from pliant.adapt.search import best_rate
from pliant.adapt.settings import Settings, settings_yaml
from pliant.adapt.shelf import Cached
from pliant.adapt.start import applied
from pliant.adapt.summary import summary
from pliant.adapt.training import Trainer, predict_logits
from pliant.backbone.weights import read_safetensors
from pliant.data import ImageSet, Preprocess, Splits, open_splits
from pliant.data.spec import without_count
from pliant.data.stores import decoded_by
from pliant.errors import PliantError
from pliant.files import read_json, write_atomic, write_json, write_text
from pliant.memory import Memory, keep_freed_memory
from pliant.methods import Plan, adaptation_of, is_fitted, plan
from pliant.progress import say

SETTINGS, SPLIT, LOG, SUMMARY = "run.yaml", "split.json", "metrics.jsonl", "summary.json"
START, PREDICTIONS, REPORT = "start.json", "predictions.parquet", "report.html"
READING = 32
"""Images that the frozen part reads at a time, at most: the same for all runs, whose rounding then is the same."""
TRAIN_SAMPLE = 500
"""Training images on which the gap between training and test accuracy is measured: enough for about a point."""


Predicts = Callable[[Inputs], Tensor]
"""Logits (N, C) of all images, in order, on the CPU."""


def build(chosen: Settings, num_classes: int) -> tuple[nn.Module, Plan]:
    """The backbone with a fresh head, and the plan, not yet applied; the same for the same settings and seed."""
    torch.manual_seed(chosen.seed)
    model = backbone.load(
        chosen.model,
        weights=chosen.weights,
        num_classes=num_classes,
        img_size=chosen.img_size,
        random_init=chosen.random_init,
    )
    # A new head for a new task, also where the backbone's own head happens to have as many classes.
    backbone.replace_head(model, num_classes)
    return model, plan(model, chosen.method, blocks=chosen.blocks, **chosen.method_options())


def splits_of(chosen: Settings, verify: bool = True, stored: dict | None = None) -> Splits:
    """The images that a run with these settings is made on; the options are those of `open_splits`."""
    return open_splits(
        chosen.data,
        seed=chosen.seed,
        val_fraction=chosen.val_fraction,
        limit_train=chosen.limit_train,
        limit_val=chosen.limit_val,
        limit_test=chosen.limit_test,
        max_corrupt=chosen.max_corrupt,
        verify=verify,
        stored=stored,
    )


@dataclass
class Job:
    """Everything that a run needs, built from its settings alone, so that resuming builds the same."""

    settings: Settings
    folder: Path
    splits: Splits
    model: nn.Module
    plan: Plan
    accelerator: Accelerator
    memory: Memory
    identical: bool
    shelf: Path | None = None

    @property
    def fitted(self) -> bool:
        """Is the method fitted at once, and not trained by steps?"""
        return is_fitted(self.plan.name)

    @property
    def main(self) -> bool:
        return self.accelerator.is_main_process

    @classmethod
    def prepare(
        cls, chosen: Settings, accelerator: Accelerator, stored: dict | None = None, shelf: Path | None = None
    ) -> Job:
        """Open the data, load the backbone, and apply the plan.

        Args:
            stored: the split that a run began with.
            shelf: folder of frozen outputs that runs share.
        """
        keep_freed_memory()
        _check_device(chosen, accelerator.device)
        splits = splits_of(chosen, stored=stored)
        model, made = build(chosen, len(splits.train.classes))
        identical = applied(made, model, splits.val)
        done = replace(adaptation_of(model), classes=splits.train.classes)
        model.pliant_adaptation = done  # type: ignore[assignment]
        model.to(accelerator.device)
        resolved = resolve(chosen, model, accelerator.device, len(made.prefix))
        job = cls(resolved, Path(str(chosen.out)), splits, model, made, accelerator, Memory(model), identical, shelf)
        if accelerator.is_main_process:
            job._introduce()
        return job

    def begin(self, command: str) -> None:
        """Write what it takes to go on."""
        if self.main:
            write_json(self.folder / SPLIT, self.splits.to_dict())
            mark = adaptation_of(self.model).fingerprint
            said = {"command": command, "fingerprint": mark, "identical": self.identical}
            write_json(self.folder / START, said)
            # Last of the three: a folder with a run.yaml can be resumed.
            write_text(self.folder / SETTINGS, settings_yaml(self.settings))

    def finish(self, resume: bool, hooks: Hooks = NO_HOOKS) -> Path:
        """Cache, train, test once, write everything."""
        if self.fitted:
            return linear_probe.finish(self)
        train, val = self.inputs()
        self.settle(train)
        if self.settings.lr == "auto":
            self.settings = best_rate(self.settings, self.trainer(train, val), say)
        if self.main:
            write_text(self.folder / SETTINGS, settings_yaml(self.settings))
        trainer = self.trainer(train, val)
        trainer.log = self.folder / LOG
        trainer.checkpoint_path = self.folder / checkpoint.NAME
        trainer.hooks = hooks
        trainer.on_best = self.keep_best
        if resume and trainer.checkpoint_path.is_file():
            trainer.resume()
            say(f"resuming at epoch {trainer.position.epoch + 1}, step {trainer.position.step}")
        elif self.main:
            trainer.log.unlink(missing_ok=True)
        trainer.run()
        self.accelerator.wait_for_everyone()
        self._load_best()
        self.memory.read(trainer.optimizer)
        return self.conclude(train, val, trainer.position, self.predicts(trainer))

    def predicts(self, trainer: Trainer) -> Predicts:
        return lambda inputs: predict_logits(self.model, trainer.forward, inputs, self.accelerator, self.settings)

    def conclude(self, train: Inputs, val: Inputs, position: Position, predicts: Predicts, together: int = 1) -> Path:
        """Test what was learned, as it stands, once, and write everything; so many were trained at once."""
        result = self._test(train, val, predicts)
        if self.main:
            said = summary(self, train, position, result, read_json(self.folder / START)["command"])
            said["training"]["together"] = together
            self._write(said)
        self.accelerator.wait_for_everyone()
        return self.folder

    def settle(self, train: Inputs) -> None:
        """What was decided by the memory that happens to be free must not be decided anew on resuming."""
        self.settings = self.settings.model_copy(update={"cache": train.where if isinstance(train, Cached) else "off"})

    def _introduce(self) -> None:
        from rich.console import Console

        for note in [*self.splits.notes, *backbone.identity_of(self.model).notes]:
            say(f"note: {note}")
        if self.splits.skipped:
            say(f"note: {len(self.splits.skipped)} unreadable images skipped: {', '.join(self.splits.skipped[:5])}")
        parts = self.splits
        sizes = f"{len(parts.train)} train, {len(parts.val)} validation, {len(parts.test)} test"
        say(f"data: {parts.spec}, {len(parts.train.classes)} classes, images: {sizes}")
        say(
            f"model: {backbone.identity_of(self.model).name} at {self.settings.img_size} px on {self.accelerator.device}"
        )
        Console(stderr=True).print(self.plan)

    def inputs(self) -> tuple[Inputs, Inputs]:
        """Training and validation inputs of the trained part, cached where that is possible and pays."""
        chosen = self.settings
        train = self._streamed(self.splits.train, chosen.augment, chosen.views)
        val = self._streamed(self.splits.val)
        if not chosen.cacheable or not self._pays:
            return train, val
        with self.accelerator.main_process_first():
            return self._cached(train, "training images"), self._cached(val, "validation images")

    @property
    def _pays(self) -> bool:
        """Is there something to keep: what frozen stages give, or pixels that are computed and that runs share?"""
        store = self.splits.train.store
        computed = self.shelf is not None and decoded_by(store) is not store
        return self.settings.cache != "off" and (bool(self.plan.prefix) or computed)

    def _cached(self, source: Streamed, what: str, exact: bool = False) -> Inputs:
        identity = {
            "data": without_count(self.splits.spec)[0],
            "backbone": asdict(backbone.identity_of(self.model)),
            "fingerprint": adaptation_of(self.model).fingerprint,
            "stages": [stage.name for stage in self._stages()] + ["mean"] * self.fitted,
            "precision": self.settings.precision,
        }
        shared = self.accelerator.num_processes > 1  # then one process writes a file and the others map it
        mode = "file" if shared else self.settings.cache
        exact = exact or not self.plan.prefix  # pixels are never rounded
        return cached(source, CacheRequest(mode, source.views or 1, identity, self.shelf, exact), say, what)

    def _test_inputs(self) -> Inputs:
        """Test images are read once in a run, so keeping what the frozen part gives pays only where runs share it.

        Unrounded, so that a study's figures are those of its runs made alone.
        """
        test = self._streamed(self.splits.test)
        if self.shelf is None or not self._pays:
            return test
        return self._cached(test, "test images", exact=True)

    def _stages(self) -> list[anatomy.Stage]:
        """What is frozen and comes first; of a probe, the blocks alone."""
        return anatomy.stages(self.model)[: len(self.plan.prefix) - self.fitted]

    def _streamed(self, images: ImageSet, augment: str = "none", views: int | None = None) -> Streamed:
        stages = self._stages()

        def prefix(x: Tensor) -> Tensor:
            with self.accelerator.autocast():
                x = anatomy.through(stages, x)
            return x.flatten(1, -2).mean(dim=1) if self.fitted else x

        preprocess = Preprocess.from_dict(backbone.identity_of(self.model).preprocess)
        device = self.accelerator.device
        chunk = micro_batch(self.model, device, READING, 0)
        return Streamed(images, preprocess, prefix, device, chunk, augment, self.settings.seed, views)

    def trainer(self, train: Inputs, val: Inputs) -> Trainer:
        classes = len(self.splits.train.classes)
        return Trainer(self.settings, self.accelerator, self.model, self.plan, train, val, classes)

    def keep_best(self) -> None:
        learned.save(self.model, self.folder / "learned", self.splits.train.classes)

    def _load_best(self) -> None:
        state, _ = read_safetensors(self.folder / "learned" / learned.WEIGHTS)
        self.model.load_state_dict(state, strict=False)

    def _test(self, train: Inputs, val: Inputs, predicts: Predicts) -> dict[str, Any]:
        """Metrics of the best checkpoint; the test set is read here, once."""
        test = self._test_inputs()
        plain = self._streamed(self.splits.train) if self.settings.augment != "none" else train
        parts = {"train": sampled(plain, TRAIN_SAMPLE, self.settings.seed), "val": val, "test": test}
        logits = {name: predicts(part) for name, part in parts.items()}
        result = {name: measure(logits[name], torch.tensor(part.labels)) for name, part in parts.items()}
        if self.main:
            keys = [self.splits.test.key(index) for index in range(len(self.splits.test))]
            table = predictions_table(logits["test"], torch.tensor(test.labels), keys)
            write_atomic(self.folder / PREDICTIONS, lambda temporary: table.to_parquet(temporary, index=False))
        return result

    def _write(self, said: dict[str, Any]) -> None:
        write_json(self.folder / SUMMARY, said)
        keys = {self.splits.test.key(index): index for index in range(len(self.splits.test))}
        hardest = {key: self.splits.test.image(keys[key]) for key in report.hardest(self.folder)}
        report.write(self.folder, hardest)
        (self.folder / checkpoint.NAME).unlink(missing_ok=True)


def accelerator_for(chosen: Settings) -> Accelerator:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        AcceleratorState._reset_state(True)  # it would insist on the precision and device of an earlier run
    # A few parameters of some backbones take no part in a forward pass; one process may cache for hours.
    handlers = [
        DistributedDataParallelKwargs(find_unused_parameters=True),
        InitProcessGroupKwargs(timeout=timedelta(hours=12)),
    ]
    return Accelerator(mixed_precision=chosen.precision, cpu=chosen.device == "cpu", kwargs_handlers=handlers)


def _check_device(chosen: Settings, device: torch.device) -> None:
    if chosen.device not in ("auto", device.type):
        raise PliantError(f"--device {chosen.device}: torch {torch.__version__} sees none on this machine; take cpu")
    if chosen.precision == "fp16" and device.type == "cpu":
        raise PliantError("--precision fp16 needs a GPU; take bf16 or no on a CPU")
