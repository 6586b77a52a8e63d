"""The settings that were not given: the method's own, and what the machine and the model suggest."""

from __future__ import annotations

import torch
from torch import nn

from pliant import anatomy, backbone
from pliant.adapt.settings import TRAINING, Settings
from pliant.errors import PliantError
from pliant.methods import method_named


def resolve(chosen: Settings, model: nn.Module, device: torch.device, prefix: int) -> Settings:
    """Fill in the method's defaults; only `lr: auto` may stay open. `prefix` is the number of frozen stages."""
    recipe = method_named(chosen.method).recipe(chosen.method)
    size = backbone.identity_of(model).img_size
    if recipe is None:
        _refuse_training(chosen)
        return chosen.model_copy(update={"img_size": size})
    rates = rates_of(chosen, 1.0) if chosen.lr != "auto" else {}
    defaults = {
        "img_size": size,
        "epochs": recipe.epochs,
        "weight_decay": recipe.weight_decay,
        "warmup": recipe.warmup,
        "micro_batch": micro_batch(model, device, chosen.batch_size, prefix),
    }
    missing = {name: value for name, value in defaults.items() if getattr(chosen, name) is None}
    return chosen.model_copy(update={**missing, **rates})


def _refuse_training(chosen: Settings) -> None:
    """Raises PliantError where a setting of training is given to a method that is not trained by steps."""
    for name in TRAINING:
        if getattr(chosen, name) != Settings.model_fields[name].default:
            raise PliantError(
                f"--{name.replace('_', '-')} does not go with --method {chosen.method}, which is fitted at once"
            )


def micro_batch(model: nn.Module, device: torch.device, batch_size: int, prefix: int) -> int:
    """Images that run forward and backward at a time.

    On a GPU the whole batch. On a CPU few enough that a block's activations stay in its caches, judged by what the
    trained part reads: the same gradient in a fraction of the memory, at no cost in time (docs/speed.md).
    """
    if device.type != "cpu":
        return batch_size
    size = backbone.identity_of(model).img_size
    with torch.no_grad():
        x = anatomy.through(anatomy.stages(model)[: max(1, prefix)], torch.zeros(1, 3, size, size))
    return max(1, min(batch_size, round(2**18 / x.numel())))


def rates_of(chosen: Settings, factor: float) -> dict[str, float]:
    """Peak rates of the body and the new head: those given or the method's default ones, times `factor`.

    A rate given by hand scales the head's with it, unless that is given too, or is to be the `same`. SGD's default rates
    are 100 times AdamW's (arXiv 2602.06883, section 4).
    """
    recipe = method_named(chosen.method).recipe(chosen.method)
    assert recipe is not None, "a method that is fitted at once has no rates"
    scale = 100.0 if chosen.optimizer == "sgd" else 1.0
    lr = chosen.lr if isinstance(chosen.lr, float) else recipe.lr * scale
    if isinstance(chosen.head_lr, float):
        return {"lr": lr * factor, "head_lr": chosen.head_lr}
    share = 1.0 if chosen.head_lr == "same" else recipe.head_lr / recipe.lr
    return {"lr": lr * factor, "head_lr": lr * share * factor}
