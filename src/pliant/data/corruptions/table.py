"""The table of corruptions: each one a function and its five severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SIDE = 32
"""Pixels. The severities are those of CIFAR-10-C, and mean nothing at another size."""

SEVERITIES = (1, 2, 3, 4, 5)

REVISION = 1
"""Raised when the same draw gives other pixels, so that nothing computed from the old ones is taken for new."""

Apply = Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]
"""Pixels uint8 (32, 32, 3), one severity's constants and a generator, to values on the scale 0..255, same shape."""


@dataclass(frozen=True)
class Corruption:
    """One row of the table.

    Attributes:
        constants: what `apply` is given at severities 1 to 5.
    """

    name: str
    apply: Apply
    constants: tuple[Any, ...]


CORRUPTIONS: dict[str, Corruption] = {}
"""By name."""


def corruption(*constants: Any) -> Callable[[Apply], Apply]:
    """Put a function into the table under its own name, with its constants at severities 1 to 5."""

    def add(apply: Apply) -> Apply:
        CORRUPTIONS[apply.__name__] = Corruption(apply.__name__, apply, constants)
        return apply

    return add


def corrupt(pixels: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """The image with one corruption, uint8 (32, 32, 3).

    Args:
        pixels: uint8 (32, 32, 3).
        name: of `CORRUPTIONS`.
        severity: 1 to 5.
        rng: where all randomness comes from.

    Raises:
        PliantError: `frost` without its photographs.
    """
    chosen = CORRUPTIONS[name]
    values = chosen.apply(pixels, chosen.constants[severity - 1], rng)
    # Truncated, not rounded, as in the published files.
    return np.clip(values, 0, 255).astype(np.uint8)
