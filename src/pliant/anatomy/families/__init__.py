"""Built-in families, one file each. A new file that calls `register` and is imported here is all it takes."""

from pliant.anatomy.families import gpt2, timm_eva, timm_vit, transformers_vision

__all__ = ["gpt2", "timm_eva", "timm_vit", "transformers_vision"]
