"""The classifier at the end of a backbone."""

from __future__ import annotations

from torch import nn

from pliant import anatomy
from pliant.errors import PliantError


def replace_head(model: nn.Module, num_classes: int) -> None:
    """Give `model` a new linear head of `num_classes` (normal weights of deviation 0.02, zero bias), in place; two where a distilled
    model has two.

    A small head keeps the first logits near zero, so the first loss is log(num_classes) whatever the features.

    Raises:
        PliantError: the model has no place for a head.
    """
    described = anatomy.find(model)
    reset = getattr(model, "reset_classifier", None)
    if described.head is None and callable(reset):
        reset(num_classes)
        described = anatomy.find(model)
    if described.head is None:
        raise PliantError(f"{type(model).__name__} has no head to train; load it with num_classes=...")
    for path in described.paths("head"):
        old = model.get_submodule(path)
        assert isinstance(old, nn.Linear)
        new = nn.Linear(old.in_features, num_classes, device=old.weight.device, dtype=old.weight.dtype)
        nn.init.trunc_normal_(new.weight, std=0.02)
        nn.init.zeros_(new.bias)
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, new)
    if hasattr(model, "num_classes"):
        setattr(model, "num_classes", num_classes)  # noqa: B010  (timm's own attribute, unknown to nn.Module)
