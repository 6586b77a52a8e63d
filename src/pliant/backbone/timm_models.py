"""Backbones by timm's names, from the hub or from a local safetensors file, and the embedded `pico`."""

from __future__ import annotations

import difflib
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from pliant import anatomy
from pliant.backbone.weights import load_strict, read_safetensors
from pliant.errors import PliantError

PICO = "pico"


def create(
    name: str, *, num_classes: int | None, img_size: int | None, weights: Path | None, random_init: bool
) -> tuple[nn.Module, dict[str, Any], str, list[str]]:
    """Build a timm model and fill it with the named weights; never with random ones unless `random_init`.

    Returns:
        The model, its preprocessing, where the weights came from, and notes on what was changed to fit.

    Raises:
        PliantError: unknown name, image size that does not fit the patches, weights that do not fit or cannot be had.
    """
    if name == PICO:
        return _create_pico(num_classes, img_size, weights, random_init)
    import timm

    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        raise PliantError(
            f"unknown model {name!r}{near(name, timm.list_models() + [PICO])}; `pliant models` lists them"
        )
    if "." in name and weights is None and not random_init and name not in timm.list_pretrained(f"{architecture}.*"):
        raise PliantError(f"unknown weights {name!r}{near(name, timm.list_pretrained(architecture + '*'))}")
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size = img_size or (config.input_size[-1] if config else 224)
    model = _build(lambda **kw: timm.create_model(architecture, pretrained=False, **kw), name, size, num_classes)
    preprocess = {
        "size": size,
        "mean": list(config.mean if config else (0.5,) * 3),
        "std": list(config.std if config else (0.5,) * 3),
        "interpolation": (config and config.interpolation) or "bicubic",
        "crop_pct": (config and config.crop_pct) or 1.0,
    }
    if random_init:
        return model, preprocess, "random", ["weights are random, as asked for by --random-init"]
    file = weights or _download(name, config)
    state, _ = read_safetensors(file)
    source = str(weights) if weights else f"hub:{name}"
    return model, preprocess, source, _fill(model, state, source)


def near(name: str, known: list[str]) -> str:
    """', did you mean ...?' with up to three near names, or nothing."""
    found = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f", did you mean {', '.join(found)}?" if found else ""


def _build(make, name: str, size: int, num_classes: int | None) -> nn.Module:
    options: dict[str, Any] = {"img_size": size}
    if num_classes is not None:
        options["num_classes"] = num_classes
    try:
        model = make(**options)
    except TypeError as error:
        raise PliantError(f"{name} takes no image size, so it is no Vision Transformer that pliant knows") from error
    except (AssertionError, ValueError) as error:
        raise PliantError(f"{name} cannot be built for images of {size} px: {error}") from error
    patch = model.patch_embed.patch_size if hasattr(model, "patch_embed") else (1, 1)
    patch = patch if isinstance(patch, tuple) else (patch, patch)
    if size % patch[0] or size % patch[1]:
        lower, upper = size // patch[0] * patch[0], (size // patch[0] + 1) * patch[0]
        raise PliantError(
            f"--img-size {size} is not divisible by {name}'s patch of {patch[0]}; take {lower} or {upper}"
        )
    anatomy.find(model)
    return model


def _fill(model: nn.Module, state: dict, source: str) -> list[str]:
    """Load `state`, resampling the position grid and leaving out a head of another width; notes say what changed."""
    described = anatomy.find(model)
    notes = []
    grid = state.get(described.positions) if described.positions else None
    kernel, own = state.get("patch_embed.proj.weight"), model.state_dict().get("patch_embed.proj.weight")
    if kernel is not None and own is not None and kernel.ndim == 4 and kernel.shape != own.shape:
        # timm would resample it without a word, and another patch size is another model.
        raise PliantError(
            f"{source} does not fit {type(model).__name__}: patch_embed.proj.weight is {tuple(kernel.shape)} in the file, "
            f"{tuple(own.shape)} in the model. Is it of this model?"
        )
    state = _filter_fn(model)(state, model)
    if grid is not None and grid.shape != state[described.positions].shape:
        old, new = grid.shape[-2], state[described.positions].shape[-2]
        notes.append(f"position grid resampled from {old} to {new} tokens")
    heads = described.paths("head")
    for head in heads:
        width = state[f"{head}.weight"].shape[0] if f"{head}.weight" in state else None
        classes = model.get_submodule(head).out_features
        if width != classes:
            state = {key: value for key, value in state.items() if not key.startswith(head + ".")}
            was = f"the head of {width} classes is replaced by" if width else "the weights have no head; it gets"
            notes.append(f"{was} a new one of {classes} classes")
    if not heads:  # a model without a head drops the file's
        state = {key: value for key, value in state.items() if not key.startswith(("head.", "head_dist."))}
    load_strict(model, state, source, optional=described.paths("head"))
    return notes


def _filter_fn(model: nn.Module):
    """timm's own key mapping and resampling for the model's module (ViT or Eva)."""
    return sys.modules[type(model).__module__].checkpoint_filter_fn


def _download(name: str, config) -> Path:
    if config is None or not config.hf_hub_id:
        raise PliantError(
            f"{name} has no pretrained weights on the hub; give a safetensors file with --weights, name a tag "
            "(`pliant models --filter`), or ask for random weights with --random-init"
        )
    from huggingface_hub import hf_hub_download

    names = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "open_clip_model.safetensors"]
    problem: Exception | None = None
    for filename in (n for n in names if n.endswith(".safetensors")):
        try:
            return Path(hf_hub_download(config.hf_hub_id, filename))
        except Exception as error:  # the hub raises a dozen types, all of which mean: not here
            problem = error
    raise PliantError(
        f"the weights of {name} could not be had from the hub ({type(problem).__name__}); download "
        f"{config.hf_hub_id} where there is a network and pass --weights FILE.safetensors"
    )


def _create_pico(
    num_classes: int | None, img_size: int | None, weights: Path | None, random_init: bool
) -> tuple[nn.Module, dict[str, Any], str, list[str]]:
    from timm.models.vision_transformer import VisionTransformer

    assets = resources.files("pliant") / "assets"
    card = json.loads((assets / "pico.json").read_text())
    kwargs = {**card["timm"], "img_size": img_size or card["timm"]["img_size"]}
    classes = num_classes if num_classes is not None else kwargs.pop("num_classes")
    kwargs.pop("num_classes", None)
    model = _build(lambda **kw: VisionTransformer(**{**kwargs, **kw}), PICO, kwargs["img_size"], classes)
    preprocess = {**card["preprocess"], "size": kwargs["img_size"]}
    if random_init:
        return model, preprocess, "random", ["weights are random, as asked for by --random-init"]
    with resources.as_file(assets / "pico.safetensors") as embedded:
        state, _ = read_safetensors(weights or embedded)
    source = str(weights) if weights else "embedded"
    return model, preprocess, source, _fill(model, state, source)
