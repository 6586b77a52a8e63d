"""The file that holds only what was learned: trained parameters, and a JSON that says onto what they go."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pliant
from pliant import backbone
from pliant.adapt.settings import LIBRARIES
from pliant.backbone.weights import load_strict, read_safetensors
from pliant.errors import PliantError
from pliant.files import read_json, write_json, write_tensors
from pliant.methods import adaptation_of, is_fitted, plan

FORMAT = 1
WEIGHTS, CONFIG = "learned.safetensors", "learned.json"


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, and the buffers of a fully trained model: all that training can change."""
    trained = set(adaptation_of(model).trained)
    state: dict[str, Tensor] = {name: value for name, value in model.named_parameters() if name in trained}
    if adaptation_of(model).method == "full":
        persistent = set(model.state_dict())
        state |= {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return state


def save(
    model: nn.Module,
    folder: str | Path,
    classes: tuple[str, ...] | None = None,
    state: dict[str, Tensor] | None = None,
) -> Path:
    """Write what an adapted model learned to `folder`: `learned.safetensors` and `learned.json`.

    Args:
        model: a model that a plan was applied to.
        folder: made if missing; files of the same names are replaced, atomically.
        classes: class names in the order of the logits; None keeps those that the model carries, if any.
        state: what was learned, where that does not lie in the model's own parameters.

    Raises:
        PliantError: the model is not adapted; the folder cannot be written; the disk is full.
    """
    done = adaptation_of(model)
    folder = Path(folder)
    names = classes or done.classes
    config = {
        "format": FORMAT,
        "pliant": pliant.__version__,
        "versions": {library: version(library) for library in LIBRARIES},
        "method": done.method,
        "options": {key: value for key, value in done.options.items() if key != "parts"},
        "blocks": list(done.blocks),
        "backbone": {
            "type": type(model).__name__,
            "fingerprint": done.fingerprint,
            **(asdict(done.identity) if done.identity else {}),
        },
        "num_classes": _head(model).out_features,
        "classes": list(names) if names else None,
    }
    write_tensors(folder / WEIGHTS, learned_state(model) if state is None else state)
    write_json(folder / CONFIG, config)
    return folder


def restore(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put what was learned back onto a plain backbone, in place; the head and the class names come with it.

    Args:
        model: the same backbone with the same weights as the one that was adapted; its head may be of any width.
        folder: what `save` wrote, or a run folder.

    Raises:
        PliantError: another backbone or other weights; a tensor missing, unexpected or of another shape.
    """
    folder = learned_folder(folder)
    config = read_config(folder)
    expected = config["backbone"]
    mark = backbone.fingerprint(model)
    if mark != expected["fingerprint"]:
        raise PliantError(
            f"{folder}: was learned on {expected.get('name', expected['type'])} with other weights "
            f"(fingerprint {expected['fingerprint'][:12]}, this backbone has {mark[:12]}); load the same weights"
        )
    _check_shape(model, expected, folder)
    backbone.replace_head(model, config["num_classes"])
    if is_fitted(config["method"]):
        raise PliantError(
            f"{folder}: is a linear probe, a yardstick of features and no model to use; take --method head"
        )
    made = plan(model, config["method"], blocks=config["blocks"], **config["options"])
    made.apply(model)
    state, _ = read_safetensors(folder / WEIGHTS)
    learned = learned_state(model)
    versions = ", ".join(f"{name} {number}" for name, number in config["versions"].items())
    optional = [name for name in model.state_dict() if name not in learned]
    load_strict(model, state, f"{folder / WEIGHTS} (saved with {versions})", optional=optional)
    done = adaptation_of(model)
    classes = tuple(config["classes"]) if config["classes"] else None
    model.pliant_adaptation = replace(done, classes=classes)  # type: ignore[assignment]
    return model.eval()


def _check_shape(model: nn.Module, expected: dict[str, Any], folder: Path) -> None:
    """Weights do not tell of all: an activation, or the image size that positions were resampled to."""
    own = getattr(model, "pliant_identity", None)
    if own is None or "name" not in expected:
        return
    for what, learned, here in (
        ("model", Path(expected["name"]).name.split(".")[0], Path(own.name).name.split(".")[0]),
        ("image size", expected["img_size"], own.img_size),
    ):
        if learned != here:
            raise PliantError(f"{folder}: was learned with {what} {learned}, this backbone has {here}")


def load_adapted(folder: str | Path) -> nn.Module:
    """Load the backbone that a folder names, and restore what was learned onto it.

    Raises:
        PliantError: the backbone cannot be had, or its weights are not the ones that were adapted.
    """
    return restore(load_backbone(folder), folder)


def load_backbone(folder: str | Path) -> nn.Module:
    """The plain backbone that a folder of what was learned names. Raises PliantError where it cannot be had."""
    config = read_config(learned_folder(folder))
    named = config["backbone"]
    if "name" not in named:
        raise PliantError(
            f"{folder}: does not name its backbone; load it yourself and use pliant.restore(model, folder)"
        )
    kind, _, seed = named["weights"].partition(":")
    from_file = kind not in ("embedded", "hub", "random")
    with torch.random.fork_rng(devices=[]):
        if kind == "random":  # the same seed gives the same weights; the fingerprint tells where it does not
            torch.manual_seed(int(seed))
        return backbone.load(
            named["name"],
            weights=named["weights"] if from_file else None,
            num_classes=config["num_classes"],
            img_size=named["img_size"],
            random_init=kind == "random",
        )


def learned_folder(folder: str | Path) -> Path:
    """`folder` itself or, for a run, the folder of what it learned."""
    folder = Path(folder)
    for candidate in (folder, folder / "learned"):
        if (candidate / CONFIG).is_file():
            return candidate
    raise PliantError(f"{folder}: holds no {CONFIG}; give a run folder or what pliant.save wrote")


def read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise PliantError(f"{folder / CONFIG}: is of a format that pliant {pliant.__version__} does not read")
    return config


def _head(model: nn.Module) -> nn.Linear:
    from pliant import anatomy

    path = anatomy.find(model).head
    assert path is not None  # a plan refuses models without a head
    return model.get_submodule(path)  # type: ignore[return-value]
