"""What backbone this is: where it came from, how it wants its images, and a hash of its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pliant import anatomy
from pliant.errors import PliantError


@dataclass(frozen=True)
class Identity:
    """A backbone's name and origin. Travels with the model as `model.pliant_identity` and into every saved file.

    Attributes:
        name: what `pliant.load` was called with.
        weights: the file or hub repository that the weights came from, or "random:SEED".
        img_size: side of the square input, in pixels.
        preprocess: size, mean, std, interpolation, crop_pct, from the model's own configuration.
        notes: what loading changed and a user should know (head replaced, position grid resampled).
    """

    name: str
    weights: str
    img_size: int
    preprocess: dict[str, Any]
    notes: tuple[str, ...] = field(default=())


def identity_of(model: nn.Module) -> Identity:
    """What `pliant.load` noted of a backbone. Raises PliantError where it was not loaded so."""
    found = getattr(model, "pliant_identity", None)
    if not isinstance(found, Identity):
        raise PliantError("this model was not loaded by pliant.load, so its preprocessing is not known")
    return found


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a plain (not yet adapted) backbone's parameters and buffers, in float32 and by sorted name.

    The head is left out, since it is replaced; the position grid too, since resampling it to another image size
    is not bit-equal on every machine.
    """
    described = anatomy.find(model)
    skipped = (*described.paths("head"), *([described.positions] if described.positions else []))
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if any(name == path or name.startswith(path + ".") for path in skipped):
            continue
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
