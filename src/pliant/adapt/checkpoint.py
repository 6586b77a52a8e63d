"""All that a run needs to go on as if it had never stopped, in one file that is replaced atomically."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pliant.adapt.learned import learned_state
from pliant.backbone.weights import load_strict, read_safetensors
from pliant.errors import PliantError
from pliant.files import write_tensors

NAME = "checkpoint.safetensors"


@dataclass
class Position:
    """Where in the training a run stands. Data order, augmentation and rates are functions of these numbers alone.

    Attributes:
        epoch, batch: the next batch to train on.
        step: updates done.
        loss_sum: sum of the losses of the images seen in this epoch.
        best_epoch, best_top1, best_loss: of the best validation so far.
        log_bytes: length of metrics.jsonl at this point; what comes after is dropped on resuming.
        seconds: training time so far.
        done: the last epoch is over.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    best_epoch: int = -1
    best_top1: float = -1.0
    best_loss: float = float("inf")
    log_bytes: int = 0
    seconds: float = 0.0
    done: bool = False


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: Position, scaler: dict | None
) -> None:
    """Write the trained parameters, the optimizer's state and the position.

    Raises:
        PliantError: the disk is full; the checkpoint before stays.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in learned_state(model).items()}
    for parameter, state in optimizer.state.items():
        tensors |= {f"optimizer.{key}.{names[parameter]}": torch.as_tensor(value) for key, value in state.items()
                    if value is not None}  # fmt: skip
    write_tensors(path, tensors, {"position": json.dumps(asdict(position)), "scaler": json.dumps(scaler)})


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Position, dict | None]:
    """Put a checkpoint's values into `model` and `optimizer`; returns the position and the gradient scaler's state.

    Raises:
        PliantError: the file is no checkpoint of this model and plan.
    """
    tensors, metadata = read_safetensors(path)
    try:
        position = Position(**json.loads(metadata["position"]))
        scaler = json.loads(metadata["scaler"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise PliantError(f"{path}: is no checkpoint of pliant ({error})") from error
    learned = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    own = learned_state(model)
    load_strict(model, learned, str(path), optional=[name for name in model.state_dict() if name not in own])
    named = dict(model.named_parameters())
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            field, name = key.removeprefix("optimizer.").split(".", 1)
            parameter = named[name]
            optimizer.state[parameter][field] = value.to(parameter.device)
    return position, scaler
