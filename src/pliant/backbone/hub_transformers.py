"""Backbones in transformers' layout: `org/name` on the Hugging Face hub, or a local folder with config.json."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pliant import anatomy
from pliant.backbone.weights import load_strict, read_safetensors
from pliant.errors import PliantError

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers

_LEFT_OUT = re.compile(
    r"(^|\.)(pooler|text_model|text_projection|visual_projection|logit_scale|logit_bias|mask_token|position_ids)(\.|$)"
)
"""What published checkpoints hold besides an image classifier: pretraining heads, text towers."""


class TowerClassifier(nn.Module):
    """A linear classifier on what a bare vision tower pools, where transformers has no classifier of its own."""

    def __init__(self, tower: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.tower = tower
        self.classifier = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        found = self.tower(images)
        pooled = found.pooler_output
        return self.classifier(found.last_hidden_state.mean(dim=1) if pooled is None else pooled)


@dataclass(frozen=True)
class _Files:
    """Where a model's files lie on this machine; `weights` is None where random ones were asked for."""

    config: Path
    processor: Path | None
    weights: Path | None
    source: str


def create(
    name: str, *, num_classes: int | None, img_size: int | None, weights: Path | None, random_init: bool
) -> tuple[nn.Module, dict[str, Any], str, list[str]]:
    """Build the model that `name` says and fill it with its weights; never with random ones unless `random_init`.

    A local folder never touches the network; nor does a file of weights with its config.json beside it.

    Returns:
        The model, its preprocessing, where the weights came from, and notes on what was changed to fit.

    Raises:
        PliantError: no such folder, hub unreachable, no safetensors, weights or image size that do not fit.
    """
    files = _in_folder(Path(name), weights, random_init) if Path(name).is_dir() else _on_hub(name, weights, random_init)
    config = _config(files.config)
    native = _image_size(config, name)
    size = img_size or native
    _check_size(size, config, name)
    preprocess, notes = _preprocess(files.processor, size)
    with quiet():
        if files.weights is None:
            _resize_config(config, size)
            model = _build(config, num_classes)
            notes.append("weights are random, as asked for by --random-init")
        else:
            state, _ = read_safetensors(files.weights)
            model, said = _fill(config, state, num_classes, files.source)
            notes += said
            if size != native:
                model, said = _resize(model, config, size, files.source)
                notes += said
    anatomy.find(model)
    return model, preprocess, files.source, notes


# --- where the files are ----------------------------------------------------------------------------------------------


def _in_folder(folder: Path, weights: Path | None, random_init: bool) -> _Files:
    config = folder / _CONFIG
    if not config.is_file():
        raise PliantError(f"{folder}: no {_CONFIG}; a local model is a folder with {_CONFIG} and {_WEIGHTS}")
    processor = next((folder / name for name in _PROCESSORS if (folder / name).is_file()), None)
    if random_init:
        return _Files(config, processor, None, "random")
    found = weights or folder / _WEIGHTS
    if weights is None and not found.is_file():
        pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix))
        shards = "its weights are split, join them into one; " if any(folder.glob("model-*.safetensors")) else ""
        held = f"{pickled[0]} is pickled and can run code when opened, convert it; " if pickled else shards
        raise PliantError(f"{folder}: no {_WEIGHTS} ({held}or give a file with --weights, or --random-init)")
    return _Files(config, processor, found, str(found))


def _on_hub(name: str, weights: Path | None, random_init: bool) -> _Files:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise PliantError(f"{name}: no such folder")
    if weights is not None and (weights.parent / _CONFIG).is_file():
        return _in_folder(weights.parent, weights, random_init)
    config = _download(name, _CONFIG)
    processor = next((path for path in (_download(name, file, optional=True) for file in _PROCESSORS) if path), None)
    assert config is not None
    if random_init:
        return _Files(config, processor, None, "random")
    if weights is not None:
        return _Files(config, processor, weights, str(weights))
    return _Files(config, processor, _download(name, _WEIGHTS), f"hub:{name}")


def _download(name: str, file: str, optional: bool = False) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # the hub raises a dozen types, all of which mean: not here
        absent = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        if optional and isinstance(error, EntryNotFoundError):
            return None
        if absent:
            raise PliantError(
                f"{name} holds no {file} (pickled or split weights are never opened); convert it where you can and "
                "give the folder in place of the name"
            ) from error
        raise PliantError(
            f"{name}: {file} could not be had from the hub ({type(error).__name__}); download the model where there "
            f"is a network, then give its folder ({_CONFIG} and {_WEIGHTS}) in place of the name, or --weights FILE "
            f"with {_CONFIG} beside the file"
        ) from error


# --- the configuration ------------------------------------------------------------------------------------------------


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise PliantError(f"{path}: not a configuration that transformers knows ({first})") from error


def _vision(config: Any) -> Any:
    """The part of a configuration that describes the vision tower."""
    return getattr(config, "vision_config", config)


def _image_size(config: Any, name: str) -> int:
    size = getattr(_vision(config), "image_size", None)
    size = size[0] if isinstance(size, (list, tuple)) and len(set(size)) == 1 else size
    if not isinstance(size, int):
        raise PliantError(f"{name} is a {config.model_type} model that takes no square images; pliant adapts ViTs")
    return size


def _check_size(size: int, config: Any, name: str) -> None:
    patch = getattr(_vision(config), "patch_size", 1)
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    if size % patch:
        lower, upper = size // patch * patch, (size // patch + 1) * patch
        raise PliantError(f"--img-size {size} is not divisible by {name}'s patch of {patch}; take {lower} or {upper}")


def _resize_config(config: Any, size: int) -> None:
    _vision(config).image_size = size


def _preprocess(file: Path | None, size: int) -> tuple[dict[str, Any], list[str]]:
    """How the model wants its images, by its own configuration, and a note where it has none."""
    found: dict[str, Any] = {}
    if file is not None:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PliantError(f"{file}: not readable as JSON ({error})") from error
    found = found.get("image_processor", found)
    scaled = found.get("do_normalize", True)
    resized, cropped = _side(found.get("size")), _side(found.get("crop_size"))
    crops = found.get("do_center_crop", False) and 0 < cropped < resized
    preprocess = {
        "size": size,
        "mean": list(found.get("image_mean") or (0.5,) * 3) if scaled else [0.0] * 3,
        "std": list(found.get("image_std") or (0.5,) * 3) if scaled else [1.0] * 3,
        "interpolation": _RESAMPLE.get(found.get("resample", 3), "bicubic"),
        "crop_pct": cropped / resized if crops else 1.0,
    }
    told = bool(found.get("image_mean")) or not scaled
    return preprocess, [] if told else ["no preprocessing is stored with the model: mean and deviation taken as 0.5"]


def _side(size: Any) -> int:
    """The side that a processor's size means, in pixels; 0 where it has none."""
    if isinstance(size, dict):
        return size.get("shortest_edge") or size.get("height") or 0
    return size if isinstance(size, int) else 0


# --- the model and its weights ----------------------------------------------------------------------------------------


def _build(config: Any, num_classes: int | None) -> nn.Module:
    """A model with random weights: transformers' classifier for `config`, or a linear one on its bare tower."""
    from transformers import AutoModel, AutoModelForImageClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    if type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        if num_classes is not None and num_classes != config.num_labels:
            config.num_labels = num_classes
        return AutoModelForImageClassification.from_config(config)
    tower = AutoModel.from_config(config)
    return tower if num_classes is None else TowerClassifier(tower, _vision(config).hidden_size, num_classes)


def _fill(config: Any, state: dict[str, Tensor], num_classes: int | None, source: str) -> tuple[nn.Module, list[str]]:
    """The model at its own image size, filled with `state`; notes say what was left out or replaced.

    transformers itself loads, since it knows the names that its parameters had in earlier versions.
    """
    config.num_labels, before = num_classes or config.num_labels, config.num_labels
    with torch.device("meta"):
        plan = _build(copy.deepcopy(config), num_classes)
    inner: Any = type(plan.tower if isinstance(plan, TowerClassifier) else plan)
    model, info = inner.from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    heads = anatomy.find(model).paths("head")
    notes = _check_keys(info, heads, f"{source} does not fit {inner.__name__}")
    new = {key for key in [*info["missing_keys"], *(each[0] for each in info["mismatched_keys"])] if _below(key, heads)}
    if isinstance(plan, TowerClassifier):
        assert num_classes is not None
        notes.append(f"the weights have no head, a new one of {num_classes} classes is put on the tower")
        return TowerClassifier(model, _vision(config).hidden_size, num_classes), notes
    if new and num_classes is None:  # a head of random weights was not asked for
        for path in heads:
            setattr(model, path, nn.Identity())
        notes.append("the weights have no head")
    elif new:
        had = f"head of {before} classes is" if info["mismatched_keys"] else "weights have no head, it is"
        notes.append(f"the {had} replaced by a new one of {num_classes} classes")
    return model, notes


def _check_keys(info: dict[str, Any], heads: tuple[str, ...], what: str) -> list[str]:
    """Notes on keys that may differ. Raises PliantError naming those that may not."""
    mismatched = [f"{key} ({_shape(old)} in the file, {_shape(own)} in the model)"
                  for key, old, own in info["mismatched_keys"] if not _below(key, heads)]  # fmt: skip
    wrong = {
        "missing": sorted(key for key in info["missing_keys"] if not _below(key, heads)),
        "unexpected": sorted(key for key in info["unexpected_keys"] if not _LEFT_OUT.search(key)),
        "of another shape": sorted(mismatched),
    }
    found = [f"{kind}: {', '.join(keys[:4])}{f' and {len(keys) - 4} more' if len(keys) > 4 else ''}"
             for kind, keys in wrong.items() if keys]  # fmt: skip
    if found:
        raise PliantError(f"{what}: {'; '.join(found)}. Is it of this model?")
    left = sorted({match[2] for key in info["unexpected_keys"] if (match := _LEFT_OUT.search(key))})
    return [f"not needed for images and left out: {', '.join(left)}"] if left else []


def _resize(model: nn.Module, config: Any, size: int, source: str) -> tuple[nn.Module, list[str]]:
    """A model for images of `size` pixels with the weights of `model`, its position grids resampled."""
    described = anatomy.find(model)
    head = model.get_submodule(described.head) if described.head else None
    classes = head.out_features if isinstance(head, nn.Linear) else None
    config = copy.deepcopy(config)
    config.num_labels = classes or 0  # none: transformers' classifiers then pass their features on
    _resize_config(config, size)
    other = _build(config, classes)
    state, own, notes = dict(model.state_dict()), other.state_dict(), set()
    for key, value in state.items():
        target = own[key].shape
        if key == described.positions and value.shape != target:
            state[key] = _resample_grid(value, target)
            notes.add(f"position grid resampled from {value.shape[-2]} to {target[-2]} tokens")
        elif key.endswith("relative_position_bias_table") and value.shape != target:
            state[key] = _resample_relative(value, target)
            notes.add(f"relative positions resampled from {value.shape[0]} to {target[0]}")
    load_strict(other, state, source)
    return other, sorted(notes)


def _resample_grid(grid: Tensor, target: torch.Size) -> Tensor:
    """A square grid of positions ([1,] n, d), after its prefix tokens if any, to another square one."""
    from timm.layers import resample_abs_pos_embed

    old, new = int(grid.shape[-2] ** 0.5), int(target[-2] ** 0.5)
    resampled = resample_abs_pos_embed(
        grid.reshape(1, *grid.shape[-2:]), [new, new], [old, old], num_prefix_tokens=grid.shape[-2] - old * old
    )
    return resampled.reshape(target)


def _resample_relative(table: Tensor, target: torch.Size) -> Tensor:
    """BEiT's table of relative positions ((2s - 1)^2 + 3, heads), the last three for the class token."""
    from timm.layers import resize_rel_pos_bias_table_simple

    side = (int((target[0] - 3) ** 0.5) + 1) // 2
    return resize_rel_pos_bias_table_simple(table, (side, side), tuple(target))


def _below(key: str, paths: tuple[str, ...]) -> bool:
    return any(key.startswith(path + ".") for path in paths)


def _shape(shape: Any) -> str:
    return "x".join(str(size) for size in shape)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' own reports of missing keys are off: pliant's notes and errors say it."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
