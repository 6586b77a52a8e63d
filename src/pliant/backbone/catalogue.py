"""Names of backbones that pliant can load."""

from __future__ import annotations

from pliant.backbone.timm_models import PICO

_MODULES = ("vision_transformer", "deit", "eva")
"""timm's modules whose models the anatomy knows."""


def names() -> list[str]:
    """`pico`, then timm's pretrained Vision Transformers by name and tag."""
    import timm

    found = [name for module in _MODULES for name in timm.list_models(module=module, pretrained=True)]
    return [PICO, *sorted(set(found))]
