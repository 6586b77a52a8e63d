"""Does a method leave the network as it was until training begins?"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from pliant import backbone
from pliant.data import ImageSet, Preprocess, load_batch
from pliant.methods import Plan

FIRST = 4
"""Images that tell it: what an inserted part adds shows on any, and a run should not wait for it."""


def applied(made: Plan, model: nn.Module, images: ImageSet) -> bool:
    """Apply the plan; are the logits of the first images then, bit for bit, those of the backbone with the new head?"""
    preprocess = Preprocess.from_dict(backbone.identity_of(model).preprocess)
    pixels = load_batch(images, np.arange(min(FIRST, len(images))), lambda image, _: preprocess.evaluate(image))
    before = _logits(model, pixels)
    made.apply(model)
    return torch.equal(before, _logits(model, pixels))


def _logits(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    mode = model.training
    model.eval()
    with torch.no_grad():
        found = model(pixels)
    model.train(mode)
    return found if torch.is_tensor(found) else found.logits  # of transformers
