"""Built-in families, one file each. A new file that calls `register` and is imported here is all it takes."""

from pliant.anatomy.families import timm_vit

__all__ = ["timm_vit"]
