"""The two folders that pliant keeps things in."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Computed things that may be deleted: PLIANT_CACHE, or ~/.cache/pliant."""
    return Path(os.environ.get("PLIANT_CACHE") or "~/.cache/pliant").expanduser()


def data_folder() -> Path:
    """Data sets that are found by name: PLIANT_DATA, or ~/.cache/pliant/data."""
    return Path(os.environ.get("PLIANT_DATA") or "~/.cache/pliant/data").expanduser()
