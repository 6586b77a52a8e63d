"""Named, pretrained backbones: loading, strict weights, and knowing which backbone one is."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from pliant.backbone.head import replace_head
from pliant.backbone.identity import Identity, fingerprint, identity_of
from pliant.errors import PliantError

__all__ = ["Identity", "fingerprint", "identity_of", "load", "replace_head"]


def load(
    name: str,
    *,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    img_size: int | None = None,
    random_init: bool = False,
) -> nn.Module:
    """A pretrained backbone as a plain `nn.Module` in eval mode.

    Args:
        name: `pico` (embedded), a timm name, `org/name` on the Hugging Face hub, or a local folder in transformers'
            layout.
        weights: a local safetensors file; without it the weights come from the hub (or its cache).
        num_classes: width of the head; a head of another width is replaced. None keeps the head as it is.
        img_size: side of the input in pixels; position grids are resampled to it. None takes the model's own.
        random_init: ask for random weights. Never happens otherwise.

    Returns:
        The model; `model.pliant_identity` says what it is and how it wants its images.

    Raises:
        PliantError: the name is unknown, the weights do not fit or cannot be had, the image size does not fit.
    """
    file = Path(weights).expanduser() if weights is not None else None
    if file is not None and random_init:
        raise PliantError("--weights and --random-init contradict each other; give one")
    if "/" in name or (Path(name) / "config.json").is_file():
        from pliant.backbone.hub_transformers import create
    else:
        from pliant.backbone.timm_models import create
    seed = torch.initial_seed()
    model, preprocess, source, notes = create(
        name, num_classes=num_classes, img_size=img_size, weights=file, random_init=random_init
    )
    model.eval()
    source = f"random:{seed}" if random_init else source
    model.pliant_identity = Identity(name, source, preprocess["size"], preprocess, tuple(notes))  # type: ignore[assignment]
    return model
