"""Language models that are measured and never adapted: GPT-2 and its kin, with their tokenizers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from pliant.backbone.hub_transformers import quiet
from pliant.errors import PliantError

_SIZES: dict[str, dict[str, Any]] = {
    "distilgpt2": {"n_layer": 6},
    "gpt2": {},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20},
    "gpt2-xl": {"n_layer": 48, "n_embd": 1600, "n_head": 25},
}
"""For random weights without a network: what the hub's configurations of these names say."""
_NAMES = re.compile(r"([\w.-]+/)?(distil)?gpt2(-medium|-large|-xl)?")


def is_text_model(name: str) -> bool:
    """Does `name` mean a language model: gpt2 and its kin on the hub, or a folder whose configuration says so?"""
    config = Path(name) / "config.json"
    if config.is_file():
        try:
            return json.loads(config.read_text(encoding="utf-8")).get("model_type") == "gpt2"
        except (OSError, ValueError, AttributeError):
            return False
    return _NAMES.fullmatch(name) is not None


def load_text_model(name: str, *, weights: Path | None = None, random_init: bool = False) -> nn.Module:
    """GPT-2 without its head, in eval mode.

    Raises:
        PliantError: the model cannot be had here, or its weights do not fit.
    """
    from transformers import AutoConfig, AutoModel, GPT2Config

    if weights is not None and random_init:
        raise PliantError("--weights and --random-init contradict each other; give one")
    try:
        with quiet():
            if random_init:
                config = (
                    GPT2Config(**_SIZES[name])
                    if name in _SIZES
                    else AutoConfig.from_pretrained(name, trust_remote_code=False)
                )
                return AutoModel.from_config(config).eval()
            source = name if weights is None else str(_folder_of(weights))
            model, info = AutoModel.from_pretrained(
                source, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise PliantError(
            f"{name} could not be loaded ({first}); give a folder that holds config.json and model.safetensors in "
            "place of the name"
        ) from error
    missing = sorted({*info["missing_keys"], *(str(each[0]) for each in info["mismatched_keys"])})
    if missing:  # transformers would fill them at random
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise PliantError(f"{source}: its weights lack {', '.join(missing[:4])}{more}. Are they of this model?")
    return model.eval()


def _folder_of(weights: Path) -> Path:
    if weights.name != "model.safetensors" or not (weights.parent / "config.json").is_file():
        raise PliantError(
            f"--weights {weights}: of a language model, give model.safetensors with config.json beside it"
        )
    return weights.parent


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a language model, or the one in a folder. Raises PliantError where it cannot be had."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise PliantError(
            f"the tokenizer of {name} could not be had ({first}); give a folder that holds tokenizer.json with --tokenizer"
        ) from error
