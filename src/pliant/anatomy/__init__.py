"""Where the parts of a transformer live. One description per family serves measuring, freezing and caching."""

from pliant.anatomy.registry import family_of, find, known_families, register
from pliant.anatomy.schema import PARTS, Anatomy, Block, BlockWrapper, Family
from pliant.anatomy.stages import Stage, first_trained, stages, through

__all__ = [
    "PARTS", "Anatomy", "Block", "BlockWrapper", "Family", "Stage",
    "family_of", "find", "first_trained", "known_families", "register", "stages", "through",
]  # fmt: skip
