"""Numbers as people read them. What is missing or not finite reads as n/a."""

from __future__ import annotations

import math
from typing import Any

MISSING = "n/a"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def percent(share: Any, digits: int = 1) -> str:
    """A fraction as a percentage."""
    return f"{100 * share:.{digits}f} %" if _is_number(share) else MISSING


def points(difference: Any) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{100 * difference:+.1f} points" if _is_number(difference) else MISSING


def whole(value: Any) -> str:
    return f"{value:,.0f}" if _is_number(value) else MISSING


def decimal(value: Any, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if _is_number(value) else MISSING


def compact(value: Any, digits: int = 4) -> str:
    """As few characters as say it: 0.001, 3e-05, 12.5."""
    return f"{value:.{digits}g}" if _is_number(value) else MISSING


def rate(value: Any) -> str:
    """Four digits of what may be 0.02 or 400,000: 0.02412, 1.627, 29,469, 4.39e+11."""
    if not _is_number(value):
        return MISSING
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def size(count: Any) -> str:
    """Bytes, in powers of 1,000."""
    if not _is_number(count):
        return MISSING
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration(seconds: Any) -> str:
    if not _is_number(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
