"""The training loop: the trained stages on cached or streamed inputs, in micro-batches, resumable at any step."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from pliant import anatomy
from pliant.adapt import checkpoint
from pliant.adapt.batches import epoch_batches, epoch_order, mix, one_hot
from pliant.adapt.checkpoint import Position
from pliant.adapt.features import Inputs
from pliant.adapt.hooks import NO_HOOKS, Hooks
from pliant.adapt.metrics import top1_and_loss
from pliant.adapt.schedule import rate_factor
from pliant.adapt.settings import Settings
from pliant.errors import PliantError
from pliant.files import explained
from pliant.interrupt import Interrupt
from pliant.methods import Plan
from pliant.progress import Live, clock, say


class Tail(nn.Module):
    """The stages from the first trained one on, as one module that can be distributed."""

    def __init__(self, model: nn.Module, start: int):
        super().__init__()
        self.model = model
        self._stages = anatomy.stages(model)[start:]

    def forward(self, inputs: Tensor) -> Tensor:
        return anatomy.through(self._stages, inputs)


@dataclass
class Trainer:
    """Trains `model` by `plan` on `train`, chooses by `val`. All randomness is a function of the seed and the step.

    Attributes:
        settings: resolved: no None left in what training reads.
        log: receives one JSON line a step and an epoch; None writes none.
        on_best: called when validation improved, before the checkpoint is written.
        hooks: what else is called, see there.
    """

    settings: Settings
    accelerator: Accelerator
    model: nn.Module
    plan: Plan
    train: Inputs
    val: Inputs
    num_classes: int
    log: Path | None = None
    checkpoint_path: Path | None = None
    on_best: Callable[[], None] = lambda: None
    hooks: Hooks = NO_HOOKS

    def __post_init__(self) -> None:
        chosen = self.settings
        groups = self.plan.parameters(self.model)
        for group in groups:
            group["peak"] = chosen.head_lr if group["name"].startswith("head") else chosen.lr
            group["lr"] = group["peak"]
            group.setdefault("weight_decay", chosen.weight_decay)
        if chosen.optimizer == "adamw":
            fused = self.accelerator.device.type in ("cpu", "cuda")
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, fused=fused)
        else:
            optimizer = torch.optim.SGD(groups, momentum=0.9)
        self.forward, self.optimizer = self.accelerator.prepare(Tail(self.model, len(self.plan.prefix)), optimizer)
        self.trained = [parameter for group in groups for parameter in group["params"]]
        self.position = Position()
        size = len(self.train.labels)
        self.steps_per_epoch = math.ceil(size / chosen.batch_size)
        self.total_steps = self.steps_per_epoch * int(chosen.epochs or 0)
        self.warmup_steps = max(1, round(float(chosen.warmup or 0) * self.total_steps))
        self.live = Live()

    def resume(self) -> None:
        """Continue from the checkpoint; what the log holds beyond it is dropped."""
        assert self.checkpoint_path is not None
        self.position, scaler = checkpoint.load(self.checkpoint_path, self.model, self.optimizer.optimizer)
        if scaler and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(scaler)
        if self.log and self.log.exists():
            with self.log.open("rb+") as file:
                file.truncate(self.position.log_bytes)

    def run(self) -> None:
        """Train to the last epoch.

        Raises:
            PliantError: the loss is not finite.
            Interrupted: Ctrl-C or SIGTERM came; the state is saved, and `resume` goes on from it.
            Paused: a hook asked for it; the same holds.
        """
        self.plan.train_mode(self.model)
        if self.position.step == 0:
            self.hooks.on_step(self)
        with Interrupt() as interrupt, ThreadPoolExecutor(1) as reader:
            while not self.position.done:
                self._epoch(interrupt, reader)
        self.live.clear()

    def _epoch(self, interrupt: Interrupt, reader: ThreadPoolExecutor) -> None:
        at, chosen = self.position, self.settings
        order = epoch_order(self.train.labels, chosen.seed, at.epoch, chosen.balanced)
        batches = list(epoch_batches(order, chosen.batch_size))
        began, saved = time.monotonic(), time.monotonic()
        pending = reader.submit(self._read, batches[at.batch], at.epoch) if at.batch < len(batches) else None
        while pending is not None:
            inputs, weight = pending.result()
            indices = batches[at.batch]
            more = at.batch + 1 < len(batches)
            pending = reader.submit(self._read, batches[at.batch + 1], at.epoch) if more else None
            started = time.monotonic()
            loss, norm, rate = self._update(inputs, indices, weight)
            at.loss_sum += loss * len(indices)
            at.batch += 1
            at.step += 1
            self.hooks.on_step(self)
            now = time.monotonic()
            self._write({"kind": "step", "step": at.step, "epoch": at.epoch, "loss": loss, "lr": rate,
                         "grad_norm": norm, "images_per_second": round(len(indices) / (now - started), 1)})  # fmt: skip
            self._show(now - began, len(batches))
            if self._asked(interrupt) or (now - saved > 60 * chosen.checkpoint_minutes and more):
                at.seconds += now - began
                began = saved = now
                self._save()
                interrupt.stop_if_asked()
        self._close_epoch(len(order), began)
        interrupt.stop_if_asked()
        self.hooks.on_epoch(self)

    def _close_epoch(self, count: int, began: float) -> None:
        at = self.position
        top1, val_loss = top1_and_loss(self.logits(self.val), torch.tensor(self.val.labels))
        at.seconds += time.monotonic() - began
        row = {"kind": "epoch", "epoch": at.epoch, "step": at.step, "train_loss": at.loss_sum / count,
               "val_loss": val_loss, "val_top1": top1, "seconds": round(at.seconds, 2)}  # fmt: skip
        if (top1, -val_loss) > (at.best_top1, -at.best_loss):
            at.best_epoch, at.best_top1, at.best_loss = at.epoch, top1, val_loss
            if self.accelerator.is_main_process:
                self.on_best()
        self._write(row)
        self._epoch_line(row)
        at.epoch, at.batch, at.loss_sum = at.epoch + 1, 0, 0.0
        at.done = at.epoch >= int(self.settings.epochs or 0)
        self._save()

    def _read(self, indices: np.ndarray, epoch: int) -> tuple[Tensor, float]:
        """This process's share of a batch, and the weight of its images: 0 for one that stands in for an empty share."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        own = indices[rank::world]
        return self.train.batch(own if len(own) else indices[:1], epoch), float(bool(len(own)))

    def _update(self, inputs: Tensor, indices: np.ndarray, weight: float) -> tuple[float, float, float]:
        """One optimizer step; returns the batch's mean loss, the gradient norm before clipping and the body's rate."""
        chosen, at, device = self.settings, self.position, self.accelerator.device
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        factor = rate_factor(at.step, self.total_steps, self.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        labels = torch.tensor(self.train.labels[indices[rank::world] if weight else indices[:1]])
        targets = one_hot(labels, self.num_classes, chosen.label_smoothing)
        inputs, targets = mix(inputs.to(device), targets.to(device), chosen.mixup, chosen.cutmix, chosen.seed, at.step)
        self._seed_dropout(chosen.seed + 1_000_003 * (at.step + 1))
        micro = int(chosen.micro_batch or len(inputs))
        parts = list(zip(inputs.split(micro), targets.split(micro), strict=True))
        total = torch.zeros((), device=device)
        for number, (part, target) in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last or world == 1 else self.accelerator.no_sync(self.forward):
                # Sum over the part, divided by the whole batch: micro-batches change memory, not the gradient.
                loss = F.cross_entropy(self.forward(part).float(), target, reduction="sum") * weight / len(indices)
                self.accelerator.backward(loss * world)
            total += loss.detach()
        mean = float(total if world == 1 else self.accelerator.reduce(total, reduction="sum"))
        if not math.isfinite(mean):
            raise not_finite(mean, at.step + 1, chosen, factor)
        if self.accelerator.scaler:
            self.accelerator.unscale_gradients(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, chosen.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return mean, float(norm), float(chosen.lr) * factor  # type: ignore[arg-type]

    def _seed_dropout(self, seed: int) -> None:
        """For backbones that have dropout; on a CPU without torch.manual_seed, which keeps a stack trace a call."""
        if self.accelerator.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _asked(self, interrupt: Interrupt) -> bool:
        """Was any process asked to stop? All must hear of it at the same step, or the others would wait for ever."""
        if self.accelerator.num_processes > 1:
            asked = torch.tensor(float(interrupt.asked), device=self.accelerator.device)
            interrupt.asked = bool(self.accelerator.reduce(asked, reduction="sum") > 0)
        return interrupt.asked

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits (N, classes) of all images of `inputs`, in order, on the CPU."""
        return predict_logits(self.model, self.forward, inputs, self.accelerator, self.settings, self.plan)

    def _save(self) -> None:
        if self.checkpoint_path and self.accelerator.is_main_process:
            if self.log and self.log.exists():
                self.position.log_bytes = self.log.stat().st_size
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler else None
            checkpoint.save(self.checkpoint_path, self.model, self.optimizer.optimizer, self.position, scaler)

    def _write(self, row: dict[str, Any]) -> None:
        if self.log and self.accelerator.is_main_process:
            try:
                with self.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise explained(self.log, error) from error

    def _show(self, elapsed: float, batches: int) -> None:
        at = self.position
        if self.log is None or not self.accelerator.is_main_process:
            return
        done = at.seconds + elapsed
        left = done / at.step * (self.total_steps - at.step)
        rate = self.settings.batch_size * at.step / max(done, 1e-9)
        self.live.show(
            f"epoch {at.epoch + 1}/{self.settings.epochs}, batch {at.batch}/{batches}, "
            f"loss {at.loss_sum / max(1, at.batch * self.settings.batch_size):.3f}, {rate:.0f} images/s, {clock(left)} left"
        )

    def _epoch_line(self, row: dict[str, Any]) -> None:
        if self.log is None or not self.accelerator.is_main_process:
            return
        self.live.clear()
        mark = " *" if self.position.best_epoch == row["epoch"] else ""
        say(
            f"epoch {row['epoch'] + 1:>3}/{self.settings.epochs}  train loss {row['train_loss']:.4f}  "
            f"val loss {row['val_loss']:.4f}  val top-1 {row['val_top1']:.2%}  {clock(row['seconds'])}{mark}"
        )


def not_finite(loss: float, step: int, chosen: Settings, factor: float) -> PliantError:
    """What to say of a training that diverged."""
    return PliantError(
        f"the loss is {loss} at step {step} (rate {chosen.lr:g} x {factor:.3g}); try a lower --lr, "
        "a longer --warmup, or --precision no"
    )


def predict_logits(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    inputs: Inputs,
    accelerator: Accelerator,
    settings: Settings,
    plan: Plan | None = None,
) -> Tensor:
    """Logits (N, classes) in order, on the CPU, in eval mode; several processes share the work."""
    model.eval()
    count, world = len(inputs.labels), accelerator.num_processes
    own = np.arange(count)[accelerator.process_index :: world]
    own = np.pad(own, (0, math.ceil(count / world) - len(own)), mode="edge") if len(own) else np.zeros(1, int)
    size = int(settings.micro_batch or settings.batch_size)
    parts: Sequence[np.ndarray] = np.array_split(own, math.ceil(len(own) / size))
    with torch.no_grad():
        logits = torch.cat([forward(inputs.batch(part, 0).to(accelerator.device)).float() for part in parts])
    if plan is not None:
        plan.train_mode(model)
    if world == 1:
        return logits.cpu()
    gathered = accelerator.gather(logits).cpu()
    # Process r holds images r, r + world, ...: interleave them back into order.
    return gathered.view(world, -1, gathered.shape[-1]).transpose(0, 1).reshape(-1, gathered.shape[-1])[:count]
