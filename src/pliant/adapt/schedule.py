"""Learning rate over the steps: linear warm-up, then a cosine to zero."""

from __future__ import annotations

import math


def rate_factor(step: int, total: int, warmup: int) -> float:
    """Factor on the peak rate for the update number `step`, counted from 0, of `total`.

    Rises linearly to 1 over `warmup` steps, then falls as half a cosine towards 0; a pure function of the step, so
    that a resumed run cannot jump.
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
