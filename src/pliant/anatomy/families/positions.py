"""What rotary families need to find a block's positions again from its tokens alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pliant.errors import PliantError


def patch_grid(patches: int, configured: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of `patches` tokens: the configured grid where it has as many, otherwise a square one.

    Raises:
        PliantError: the number is neither.
    """
    if configured[0] * configured[1] == patches:
        return configured
    side = math.isqrt(patches)
    if side * side != patches:
        raise PliantError(f"{patches} patch tokens form no square; give square images or the size of the configuration")
    return side, side


@contextmanager
def as_in_eval(module: nn.Module) -> Iterator[None]:
    """`module` computes as in eval mode. Rotary positions are augmented at random in training, once an image; blocks
    that are run one by one would each draw their own."""
    before = module.training
    module.training = False
    try:
        yield
    finally:
        module.training = before
