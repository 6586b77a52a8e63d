"""Reading weights: safetensors only, strict keys, and nothing that falls back to random values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from pliant.errors import PliantError


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. Raises PliantError where the file is missing or is none."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise PliantError(f"{path}: no such file")
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl"):
        raise PliantError(f"{path}: pickled checkpoints can run code when opened; convert it to .safetensors first")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise PliantError(f"{path}: not a readable safetensors file ({error})") from error


def load_strict(model: nn.Module, state: Mapping[str, Tensor], source: str, optional: Sequence[str] = ()) -> list[str]:
    """Copy `state` into `model`; every key and shape must fit, but for missing ones below a path in `optional`.

    Returns:
        The missing keys that `optional` allowed.

    Raises:
        PliantError: naming the keys that are missing, unexpected or of another shape.
    """
    own = model.state_dict()
    missing = sorted(set(own) - set(state))
    allowed = [key for key in missing if any(key == path or key.startswith(path + ".") for path in optional)]
    wrong = {
        "missing": [key for key in missing if key not in allowed],
        "unexpected": sorted(set(state) - set(own)),
        "of another shape": [
            f"{key} ({_shape(state[key])} in the file, {_shape(own[key])} in the model)"
            for key in sorted(set(own) & set(state))
            if own[key].shape != state[key].shape
        ],
    }
    found = [f"{what}: {_some(keys)}" for what, keys in wrong.items() if keys]
    if found:
        raise PliantError(f"{source} does not fit {type(model).__name__}: {'; '.join(found)}. Is it of this model?")
    model.load_state_dict(dict(state), strict=False)
    return allowed


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape)


def _some(keys: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + rest
