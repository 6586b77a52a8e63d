"""The whole job: data, backbone, plan, training, one test, and a folder that says all of it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

import pliant
from pliant import anatomy, backbone, report
from pliant.adapt import checkpoint, learned
from pliant.adapt.defaults import micro_batch, resolve
from pliant.adapt.features import Cached, CacheRequest, Inputs, Streamed, cached, sampled
from pliant.adapt.metrics import measure, predictions_table
from pliant.adapt.search import best_rate
from pliant.adapt.settings import LIBRARIES, Settings, read_settings, settings_yaml
from pliant.adapt.training import Trainer, predict_logits
from pliant.backbone.weights import read_safetensors
from pliant.data import ImageSet, Preprocess, Splits, absolute, open_splits
from pliant.errors import PliantError
from pliant.files import read_json, write_atomic, write_json, write_text
from pliant.interrupt import Interrupted
from pliant.memory import Memory, keep_freed_memory
from pliant.methods import Plan, adaptation_of, plan
from pliant.progress import say
from pliant.report.words import size

SETTINGS, SPLIT, LOG, SUMMARY = "run.yaml", "split.json", "metrics.jsonl", "summary.json"
START, PREDICTIONS, REPORT = "start.json", "predictions.parquet", "report.html"
TRAIN_SAMPLE = 500
"""Training images on which the gap between training and test accuracy is measured: enough for about a point."""


def run(chosen: Settings, command: str | None = None) -> Path:
    """Adapt a backbone as `chosen` says; returns the run folder, with its report written.

    Raises:
        PliantError: bad settings or data, weights that do not fit, an output folder that holds another run.
        Interrupted: stopped by Ctrl-C or SIGTERM; `resume` continues.
    """
    accelerator = _accelerator(chosen)
    # One process names the folder: the others would find it taken.
    named = [str(_new_folder(chosen)) if accelerator.is_main_process else ""]
    folder = Path(broadcast_object_list(named)[0])
    # Absolute, so that the run can be resumed and its model loaded from any folder.
    places: dict[str, str | None] = {"data": absolute(chosen.data), "weights": _absolute(chosen.weights)}
    if (Path(chosen.model).expanduser() / "config.json").is_file():
        places["model"] = _absolute(chosen.model)
    job = _Job.prepare(chosen.model_copy(update={**places, "out": str(folder)}), folder, accelerator, stored=None)
    if job.main:
        write_json(folder / SPLIT, job.splits.to_dict())
        mark = adaptation_of(job.model).fingerprint
        write_json(folder / START, {"command": command or "pliant.adapt.run(...)", "fingerprint": mark})
        # Last of the three: a folder with a run.yaml can be resumed.
        write_text(folder / SETTINGS, settings_yaml(job.settings))
    return _stoppable(job, resume=False)


def resume(folder: Path) -> Path:
    """Continue a run that was stopped or killed; a finished one is only reported again.

    Raises:
        PliantError: no run folder; the data or the backbone's weights are no longer what they were.
    """
    chosen = read_settings(folder / SETTINGS).model_copy(update={"out": str(folder)})
    if (folder / SUMMARY).is_file():
        if not (folder / REPORT).is_file():
            report.write(folder)
        say(f"{folder} is finished; results are in {folder / REPORT}")
        return folder
    job = _Job.prepare(chosen, folder, _accelerator(chosen), stored=read_json(folder / SPLIT))
    if adaptation_of(job.model).fingerprint != read_json(folder / START)["fingerprint"]:
        raise PliantError(
            f"{folder}: the weights of {chosen.model} are not those that the run began with; restore them"
        )
    return _stoppable(job, resume=True)


def _stoppable(job: _Job, resume: bool) -> Path:
    try:
        return job.finish(resume)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(job.folder) from None


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


@dataclass
class _Job:
    """Everything that a run needs, built from its settings alone, so that resuming builds the same."""

    settings: Settings
    folder: Path
    splits: Splits
    model: nn.Module
    plan: Plan
    accelerator: Accelerator
    memory: Memory

    @property
    def main(self) -> bool:
        return self.accelerator.is_main_process

    @classmethod
    def prepare(cls, chosen: Settings, folder: Path, accelerator: Accelerator, stored: dict | None) -> _Job:
        keep_freed_memory()
        _check_device(chosen, accelerator.device)
        splits = open_splits(
            chosen.data,
            seed=chosen.seed,
            val_fraction=chosen.val_fraction,
            limit_train=chosen.limit_train,
            limit_val=chosen.limit_val,
            limit_test=chosen.limit_test,
            max_corrupt=chosen.max_corrupt,
            stored=stored,
        )
        model, made = build(chosen, len(splits.train.classes))
        made.apply(model)
        done = replace(adaptation_of(model), classes=splits.train.classes)
        model.pliant_adaptation = done  # type: ignore[assignment]
        model.to(accelerator.device)
        resolved = resolve(chosen, model, accelerator.device, len(made.prefix))
        job = cls(resolved, folder, splits, model, made, accelerator, Memory(model))
        if accelerator.is_main_process:
            job._introduce()
        return job

    def finish(self, resume: bool) -> Path:
        """Cache, train, test once, write everything."""
        train, val = self._inputs()
        # What was decided by the memory that happens to be free must not be decided anew on resuming.
        kept = train.where if isinstance(train, Cached) else "off"
        self._settle(self.settings.model_copy(update={"cache": kept}))
        if self.settings.lr == "auto":
            self._settle(best_rate(self.settings, self._trainer(self.settings, train, val), say))
        trainer = self._trainer(self.settings, train, val)
        trainer.log = self.folder / LOG
        trainer.checkpoint_path = self.folder / checkpoint.NAME
        trainer.on_best = self._keep_best
        if resume and trainer.checkpoint_path.is_file():
            trainer.resume()
            say(f"resuming at epoch {trainer.position.epoch + 1}, step {trainer.position.step}")
        elif self.main:
            trainer.log.unlink(missing_ok=True)
        trainer.run()
        self.accelerator.wait_for_everyone()
        self.memory.read(trainer.optimizer)
        self._load_best()
        result = self._test(trainer, train, val)
        if self.main:
            self._write(trainer, result, train)
        self.accelerator.wait_for_everyone()
        return self.folder

    def _settle(self, settled: Settings) -> None:
        if self.main and settled != self.settings:
            write_text(self.folder / SETTINGS, settings_yaml(settled))
        self.settings = settled

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

    def _inputs(self) -> tuple[Inputs, Inputs]:
        """Training and validation inputs of the trained part, cached where that is possible and pays."""
        chosen = self.settings
        train = self._streamed(self.splits.train, chosen.augment, chosen.views)
        val = self._streamed(self.splits.val)
        if chosen.cache == "off" or not chosen.cacheable or not self.plan.prefix:
            return train, val
        identity = {
            "backbone": asdict(backbone.identity_of(self.model)),
            "fingerprint": adaptation_of(self.model).fingerprint,
            "stages": list(self.plan.prefix),
            "precision": chosen.precision,
        }
        shared = self.accelerator.num_processes > 1  # then one process writes a file and the others map it
        mode = "file" if shared else chosen.cache
        with self.accelerator.main_process_first():
            return (
                cached(train, CacheRequest(mode, chosen.views or 1, identity), say, "training images"),
                cached(val, CacheRequest(mode, 1, identity), say, "validation images"),
            )

    def _streamed(self, images: ImageSet, augment: str = "none", views: int | None = None) -> Streamed:
        stages = anatomy.stages(self.model)[: len(self.plan.prefix)]

        def prefix(x: Tensor) -> Tensor:
            with self.accelerator.autocast():
                for stage in stages:
                    x = stage.run(x)
            return x

        preprocess = Preprocess.from_dict(backbone.identity_of(self.model).preprocess)
        device = self.accelerator.device
        chunk = micro_batch(self.model, device, self.settings.batch_size, 0)
        return Streamed(images, preprocess, prefix, device, chunk, augment, self.settings.seed, views)

    def _trainer(self, chosen: Settings, train: Inputs, val: Inputs) -> Trainer:
        classes = len(self.splits.train.classes)
        return Trainer(chosen, self.accelerator, self.model, self.plan, train, val, classes)

    def _keep_best(self, position, metrics) -> None:
        learned.save(self.model, self.folder / "learned", self.splits.train.classes)

    def _load_best(self) -> None:
        state, _ = read_safetensors(self.folder / "learned" / learned.WEIGHTS)
        self.model.load_state_dict(state, strict=False)

    def _test(self, trainer: Trainer, train: Inputs, val: Inputs) -> dict[str, Any]:
        """Metrics of the best checkpoint; the test set is read here, once."""
        test = self._streamed(self.splits.test)
        plain = self._streamed(self.splits.train) if self.settings.augment != "none" else train
        parts = {"train": sampled(plain, TRAIN_SAMPLE, self.settings.seed), "val": val, "test": test}
        logits = {
            name: predict_logits(self.model, trainer.forward, part, self.accelerator, self.settings)
            for name, part in parts.items()
        }
        result = {name: measure(logits[name], torch.tensor(part.labels)) for name, part in parts.items()}
        if self.main:
            keys = [self.splits.test.key(index) for index in range(len(self.splits.test))]
            table = predictions_table(logits["test"], torch.tensor(test.labels), keys)
            write_atomic(self.folder / PREDICTIONS, lambda temporary: table.to_parquet(temporary, index=False))
        return result

    def _write(self, trainer: Trainer, result: dict[str, Any], train: Inputs) -> None:
        write_json(self.folder / SUMMARY, self._summary(trainer, result, train))
        keys = {self.splits.test.key(index): index for index in range(len(self.splits.test))}
        hardest = {key: self.splits.test.image(keys[key]) for key in report.hardest(self.folder)}
        report.write(self.folder, hardest)
        (self.folder / checkpoint.NAME).unlink(missing_ok=True)

    def _summary(self, trainer: Trainer, result: dict[str, Any], train: Inputs) -> dict[str, Any]:
        chosen, identity, position = self.settings, backbone.identity_of(self.model), trainer.position
        kept = train if isinstance(train, Cached) else None
        file = self.folder / "learned" / learned.WEIGHTS
        return {
            "pliant": pliant.__version__,
            "command": read_json(self.folder / START)["command"],
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(self.accelerator.device),
            "data": {
                "spec": self.splits.spec,
                "classes": list(self.splits.train.classes),
                **{name: len(part) for name, part in self.splits.parts().items()},
                "notes": self.splits.notes,
                "skipped": self.splits.skipped,
            },
            "model": {
                "name": identity.name,
                "weights": identity.weights,
                "fingerprint": adaptation_of(self.model).fingerprint,
                "img_size": identity.img_size,
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "family": anatomy.find(self.model).family,
            },
            "method": {"name": chosen.method, **self.plan.options.model_dump(), "blocks": chosen.blocks},
            "plan": [asdict(row) for row in self.plan.rows],
            "training": {
                "epochs": chosen.epochs,
                "steps": position.step,
                "best_epoch": position.best_epoch,
                "seconds": round(position.seconds, 2),
                "images_per_second": round(
                    len(train.labels) * int(chosen.epochs or 0) / max(position.seconds, 1e-9), 1
                ),
                "lr": chosen.lr,
                "head_lr": chosen.head_lr,
                "batch_size": chosen.batch_size,
                "memory_mb": self.memory.parts(),
                "cache": {
                    "stages": f"{self.plan.prefix[0]} to {self.plan.prefix[-1]}" if kept else "",
                    "bytes": kept.nbytes if kept else 0,
                    "where": kept.where if kept else "none",
                },
            },
            **result,
            "gap": result["train"]["top1"] - result["test"]["top1"],
            "learned_bytes": file.stat().st_size,
        }


def environment(device: torch.device) -> dict[str, Any]:
    """What a result may depend on besides its settings."""
    return {
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def headline(folder: Path) -> list[str]:
    """The last lines of a run: how good, how big, and where."""
    summary = read_json(folder / SUMMARY)
    test, data = summary["test"], summary["data"]
    trained = sum(row["parameters"] for row in summary["plan"] if row["trained"])
    return [
        f"test top-1 {test['top1']:.2%} on {test['images']} images (macro F1 {test['macro_f1']:.2%}, "
        f"calibration error {test['ece']:.2%}); trained on {data['train']} images, gap train minus test "
        f"{100 * summary['gap']:.1f} points",
        f"learned: {trained:,} parameters, {size(summary['learned_bytes'])}, in {folder / 'learned'}",
        f"report: {folder / REPORT}",
    ]


def _new_folder(chosen: Settings) -> Path:
    if chosen.out is None:
        kind, _, place = chosen.data.rpartition(":")  # cifar10c-snow-5:FOLDER, hf:name
        stem = "-".join(part for part in (kind, Path(place).name) if part) or "data"
        base = f"{stem}-{Path(chosen.model).name}-{chosen.method.replace(',', '-')}"
        number = 1
        while (Path("runs") / f"{base}-{number}").exists():
            number += 1
        return Path("runs") / f"{base}-{number}"
    folder = Path(chosen.out)
    if (folder / SETTINGS).exists():
        raise PliantError(
            f"--out {folder} already holds a run; continue it with --resume {folder} or name another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / SPLIT).exists():
        raise PliantError(f"--out {folder} exists and is not an empty folder; name another one")
    return folder


def _absolute(place: str | None) -> str | None:
    return str(Path(place).expanduser().resolve()) if place and Path(place).expanduser().exists() else place


def _accelerator(chosen: Settings) -> Accelerator:
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
