"""Where the parts of a transformer live. One description per family serves measuring, freezing and caching."""

from pliant.anatomy.registry import families, family_of, find, register
from pliant.anatomy.schema import PARTS, Anatomy, Block, BlockWrapper, Family
from pliant.anatomy.stages import Stage, first_trained, stages

__all__ = [
    "PARTS", "Anatomy", "Block", "BlockWrapper", "Family", "Stage",
    "families", "family_of", "find", "first_trained", "register", "stages",
]  # fmt: skip
