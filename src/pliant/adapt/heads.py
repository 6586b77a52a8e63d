"""Heads that differ in rates, decays and seeds alone, trained together on the frozen outputs that they share.

Each head's numbers are those that `training.Trainer` computes, but for the order in which products are added up; they do
not depend by one bit on which other heads are trained beside it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pliant import anatomy
from pliant.adapt.batches import epoch_batches, epoch_order, one_hot
from pliant.adapt.checkpoint import Position
from pliant.adapt.defaults import rates_of
from pliant.adapt.features import Inputs
from pliant.adapt.job import LOG, Job, accelerator_for
from pliant.adapt.metrics import top1_and_loss
from pliant.adapt.run import portable
from pliant.adapt.schedule import rate_factor
from pliant.adapt.settings import Settings
from pliant.adapt.shelf import Cached
from pliant.adapt.training import not_finite
from pliant.errors import PliantError
from pliant.files import write_text
from pliant.interrupt import Interrupt
from pliant.progress import Live, say, track

_FREE = ("out", "seed", "lr", "head_lr", "weight_decay")
"""Settings in which heads may differ and still train together."""
_BETAS, _EPS, _MOMENTUM = (0.9, 0.999), 1e-8, 0.9


class Apart(PliantError):
    """These heads cannot be trained together; one at a time they can."""


def kind(chosen: Settings) -> str | None:
    """Runs of the same kind can be made together; None for a run that must be made alone."""
    alone = chosen.lr == "auto" or not chosen.cacheable or chosen.cache == "off" or chosen.precision != "no"
    if chosen.method != "head" or alone:
        return None
    shared = chosen.model_dump(exclude=set(_FREE))
    # Other random weights are another backbone.
    return json.dumps(shared | ({"seed": chosen.seed} if chosen.random_init else {}), sort_keys=True)


def run_together(asked: Sequence[Settings], command: str, shelf: Path) -> dict[str, PliantError]:
    """Make runs of the same `kind`, each with its own folder `out`; returns the errors of those that failed.

    Raises:
        Apart: the outputs cannot be kept, or the head is no plain linear layer.
        PliantError: what concerns them all, such as data that cannot be read.
        Interrupted: asked to stop; the frozen outputs are kept, the training begins anew.
    """
    accelerator = accelerator_for(asked[0])
    groups = [_Group.prepare(runs, accelerator, shelf) for runs in _by_seed(asked)]
    if len({len(group.train.labels) for group in groups}) > 1:
        raise Apart("training sets of different sizes")
    training = _Training(groups)
    with Interrupt() as interrupt:
        while not training.done:
            training.epoch(interrupt)
            interrupt.stop_if_asked()
        say(f"trained {training.heads} heads together in {training.seconds:.1f} s")
        errors: dict[str, PliantError] = {}
        for number, job in enumerate(track(training.jobs(), "testing and writing")):
            if number in training.lost:
                errors[str(job.folder)] = training.lost[number]
            else:
                training.conclude(number, job, command)
            interrupt.stop_if_asked()
    return errors


def _by_seed(asked: Sequence[Settings]) -> list[list[Settings]]:
    return [[each for each in asked if each.seed == seed] for seed in sorted({each.seed for each in asked})]


@dataclass
class _Group:
    """The heads of one seed: the same split, the same first weights, the same batches.

    Attributes:
        jobs: one a head; they share splits and model.
        head: the model's own, which takes each trained head in turn.
    """

    jobs: list[Job]
    head: nn.Linear
    train: Cached
    val: Inputs

    @classmethod
    def prepare(cls, runs: Sequence[Settings], accelerator: Accelerator, shelf: Path) -> _Group:
        first = Job.prepare(portable(runs[0]), accelerator, shelf=shelf)
        path = anatomy.find(first.model).head
        head = first.model.get_submodule(str(path))
        train, val = first.inputs()
        if not isinstance(train, Cached):
            raise Apart("frozen outputs cannot be kept")
        first.settle(train)
        _check_plain(first, head, train)
        jobs = [replace(first, settings=_settled(each, first.settings), folder=Path(str(each.out))) for each in runs]
        return cls(jobs, head, train, val)  # type: ignore[arg-type]


def _settled(chosen: Settings, like: Settings) -> Settings:
    """The settings of one head, with what is the same for all taken from `like`."""
    decay = like.weight_decay if chosen.weight_decay is None else chosen.weight_decay
    return like.model_copy(
        update={"out": chosen.out, "seed": chosen.seed, "weight_decay": decay, **rates_of(chosen, 1.0)}
    )


def _check_plain(job: Job, head: nn.Module, train: Cached) -> None:
    """Raises Apart where the trained part is anything but one linear layer on a vector."""
    stages = anatomy.stages(job.model)[len(job.plan.prefix) :]
    owned = {f"{anatomy.find(job.model).head}.{name}" for name in ("weight", "bias")}
    inputs = train.batch(np.arange(min(4, len(train.labels))), 0).to(job.accelerator.device)
    plain = isinstance(head, nn.Linear) and len(stages) == 1 and set(job.plan.trained_names()) == owned
    with torch.no_grad():
        if not plain or inputs.ndim != 2 or not torch.equal(stages[0].run(inputs), head(inputs)):
            raise Apart("the head is no plain linear layer")


@dataclass
class _Training:
    """All heads, as one batched problem: weights (R, C, d) and biases (R, C) of R heads.

    Attributes:
        lost: heads whose loss is not finite, by number. The others know nothing of it.
    """

    groups: list[_Group]
    position: Position = field(default_factory=Position)
    lost: dict[int, PliantError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = self.groups[0].jobs[0].settings
        self.device = self.groups[0].jobs[0].accelerator.device
        ends = np.cumsum([0, *(len(group.jobs) for group in self.groups)])
        self.rows = [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        self.weight, self.bias = (
            torch.cat([getattr(group.head, name).detach().expand(len(group.jobs), *shape) for group in self.groups])
            for name, shape in (("weight", (-1, -1)), ("bias", (-1,)))
        )
        self.heads, self.classes, _ = self.weight.shape
        self.rate = self._each("head_lr")
        self.decay = self._each("weight_decay")
        moments = 1 if self.settings.optimizer == "sgd" else 2
        self.state = [[torch.zeros_like(part) for part in (self.weight, self.bias)] for _ in range(moments)]
        self.best = [self.weight.clone(), self.bias.clone()]
        self.best_at = [Position() for _ in range(self.heads)]
        size = len(self.groups[0].train.labels)
        self.total = math.ceil(size / self.settings.batch_size) * int(self.settings.epochs or 0)
        self.warmup = max(1, round(float(self.settings.warmup or 0) * self.total))
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.live = Live()

    def _each(self, name: str) -> Tensor:
        """A setting of every head, shaped to multiply weights. In float64, as an optimizer's rates are."""
        values = [getattr(job.settings, name) for group in self.groups for job in group.jobs]
        return torch.tensor(values, dtype=torch.float64, device=self.device).view(-1, 1, 1)

    @property
    def done(self) -> bool:
        return self.position.epoch >= int(self.settings.epochs or 0)

    def jobs(self) -> list[Job]:
        return [job for group in self.groups for job in group.jobs]

    def epoch(self, interrupt: Interrupt) -> None:
        at, began = self.position, time.monotonic()
        batches = [self._batches(group, at.epoch) for group in self.groups]
        losses = torch.zeros(self.heads, dtype=torch.float64)
        for number in range(len(batches[0])):
            loss = self._step([each[number] for each in batches], at.epoch)
            losses += loss * len(batches[0][number])
            self.live.show(
                f"{self.heads} heads, epoch {at.epoch + 1}/{self.settings.epochs}, step {at.step}/{self.total}"
            )
            interrupt.stop_if_asked()
        self.seconds += time.monotonic() - began
        self._close_epoch(losses / len(self.groups[0].train.labels))
        self.live.clear()

    def _batches(self, group: _Group, epoch: int) -> list[np.ndarray]:
        order = epoch_order(group.train.labels, group.jobs[0].settings.seed, epoch, self.settings.balanced)
        return list(epoch_batches(order, self.settings.batch_size))

    def _step(self, indices: Sequence[np.ndarray], epoch: int) -> Tensor:
        """One update of every head; returns the losses (R,) on the batches."""
        began = time.monotonic()
        grad_weight, grad_bias = torch.empty_like(self.weight), torch.empty_like(self.bias)
        loss = torch.empty(self.heads, device=self.device)
        for group, rows, chosen in zip(self.groups, self.rows, indices, strict=True):
            x = group.train.batch(chosen, epoch).to(self.device)
            targets = one_hot(torch.tensor(group.train.labels[chosen]), self.classes, self.settings.label_smoothing)
            targets = targets.to(self.device)
            log_p = self._logits(x, rows).log_softmax(dim=2)
            loss[rows] = -(targets * log_p).sum(dim=(1, 2)) / len(chosen)
            # Of cross-entropy with targets that sum to 1, by the logits.
            error = (log_p.exp() - targets) / len(chosen)
            grad_weight[rows] = torch.bmm(error.mT, x.expand(len(error), -1, -1))
            grad_bias[rows] = error.sum(dim=1)
        norm = (grad_weight.square().sum(dim=(1, 2)) + grad_bias.square().sum(dim=1)).sqrt()
        if self.settings.clip:
            scale = (self.settings.clip / (norm + 1e-6)).clamp(max=1)
            grad_weight *= scale[:, None, None]
            grad_bias *= scale[:, None]
        factor = rate_factor(self.position.step, self.total, self.warmup)
        self._update(grad_weight, grad_bias, factor)
        self._log_step(loss.cpu(), norm.cpu(), factor, len(indices[0]) / (time.monotonic() - began))
        return loss.cpu().double()

    def _logits(self, x: Tensor, rows: slice) -> Tensor:
        """(K, B, C) of the heads in `rows` on inputs (B, d); a product for each, so that no head changes another."""
        weight, bias = self.weight[rows], self.bias[rows]
        return torch.baddbmm(bias[:, None], x.expand(len(weight), -1, -1), weight.mT)

    def _update(self, grad_weight: Tensor, grad_bias: Tensor, factor: float) -> None:
        """AdamW (arXiv 1711.05101) or SGD with momentum, as torch.optim computes them; biases do not decay."""
        step = self.position.step + 1
        rate = self.rate * factor
        for number, (value, grad) in enumerate(((self.weight, grad_weight), (self.bias, grad_bias))):
            moments = [values[number] for values in self.state]
            own = rate if value.ndim == 3 else rate[..., 0]
            if self.settings.optimizer == "sgd":
                if value.ndim == 3:
                    grad += self.decay.float() * value
                moments[0].mul_(_MOMENTUM).add_(grad)
                value -= own.float() * moments[0]
                continue
            first, second = moments
            if value.ndim == 3:
                value *= (1 - own * self.decay).float()
            first.lerp_(grad, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
            scaled = second.sqrt() / math.sqrt(1 - _BETAS[1] ** step) + _EPS
            value -= (own / (1 - _BETAS[0] ** step)).float() * (first / scaled)

    def _log_step(self, loss: Tensor, norm: Tensor, factor: float, pace: float) -> None:
        at = self.position
        at.step += 1
        self.steps.append({"step": at.step, "epoch": at.epoch, "loss": loss.tolist(), "factor": factor,
                           "norm": norm.tolist(), "pace": round(pace, 1)})  # fmt: skip
        for number in torch.nonzero(~loss.isfinite()).flatten().tolist():
            chosen = self.jobs()[number].settings
            self.lost.setdefault(number, not_finite(float(loss[number]), at.step, chosen, factor))

    def _close_epoch(self, losses: Tensor) -> None:
        at = self.position
        found = []
        for group, rows in zip(self.groups, self.rows, strict=True):
            labels = torch.tensor(group.val.labels)
            x = group.val.batch(np.arange(len(labels)), 0).to(self.device)
            found += [top1_and_loss(logits, labels) for logits in self._logits(x, rows).cpu()]
        for number, (top1, loss) in enumerate(found):
            best = self.best_at[number]
            if (top1, -loss) > (best.best_top1, -best.best_loss):
                best.best_epoch, best.best_top1, best.best_loss = at.epoch, top1, loss
                self.best[0][number], self.best[1][number] = self.weight[number], self.bias[number]
        self.epochs.append({"epoch": at.epoch, "step": at.step, "train": losses.tolist(), "val": found,
                            "seconds": self.seconds})  # fmt: skip
        at.epoch += 1

    def conclude(self, number: int, job: Job, command: str) -> None:
        """Put a trained head into the model, and test and write it as a run of its own."""
        group = next(each for each in self.groups if job in each.jobs)
        best, share = self.best_at[number], self.seconds / self.heads
        job.begin(command)
        write_text(job.folder / LOG, "".join(json.dumps(row) + "\n" for row in self._rows(number, job.settings)))
        with torch.no_grad():
            group.head.weight.copy_(self.best[0][number])
            group.head.bias.copy_(self.best[1][number])
        job.keep_best()
        trainer = job.trainer(group.train, group.val)
        trainer.position = replace(best, epoch=self.position.epoch, step=self.position.step, seconds=share, done=True)
        for part, parameter in enumerate((group.head.weight, group.head.bias)):  # of which the summary tells the size
            moments = [values[part][number] for values in self.state]
            trainer.optimizer.state[parameter] = {f"moment {n}": moment for n, moment in enumerate(moments)}
        job.memory.read(trainer.optimizer)
        job.conclude(group.train, group.val, trainer.position, job.predicts(trainer), together=self.heads)

    def _rows(self, number: int, chosen: Settings) -> list[dict[str, Any]]:
        """The lines that a run of its own logs; times are the share of one head in what all took."""
        epochs = {row["step"]: row for row in self.epochs}
        rows: list[dict[str, Any]] = []
        for row in self.steps:
            rows.append({"kind": "step", "step": row["step"], "epoch": row["epoch"], "loss": row["loss"][number],
                         "lr": float(chosen.lr or 0) * row["factor"], "grad_norm": row["norm"][number],
                         "images_per_second": row["pace"] * self.heads})  # type: ignore[arg-type]  # fmt: skip
            if end := epochs.get(row["step"]):
                top1, loss = end["val"][number]
                rows.append({"kind": "epoch", "epoch": end["epoch"], "step": row["step"],
                             "train_loss": end["train"][number], "val_loss": loss, "val_top1": top1,
                             "seconds": round(end["seconds"] / self.heads, 2)})  # fmt: skip
        return rows
