"""Measuring a study's backbones on its data sets, for the claims that are about plasticity and bounds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from pliant.interrupt import Interrupted
from pliant.measure import load, run
from pliant.measure.result import SUMMARY
from pliant.progress import say


def measured(folder: Path, wanted: Sequence[run.Settings], command: str) -> pd.DataFrame:
    """The rows of all these measurements, with columns model and data; each is made once and kept in `folder`.

    Raises:
        PliantError: a backbone or data set cannot be had.
        Interrupted: stopped by Ctrl-C; what is complete is kept.
    """
    tables = []
    for chosen in wanted:
        place = folder / _name(chosen)
        if not (place / SUMMARY).is_file():
            say(f"measuring {chosen.model} on {chosen.downstream}")
            made = run.measure(chosen, command)
            if made.after.summary["stopped"]:
                raise Interrupted(folder)
            run.save(made, place)
        tables.append(load(place).rows.assign(model=chosen.model, data=chosen.downstream))
    return pd.concat(tables, ignore_index=True)


def _name(chosen: run.Settings) -> str:
    """A folder for what was asked for: its names for people, and a hash of all of it."""
    told = hashlib.sha256(repr(sorted(asdict(chosen).items())).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{Path(chosen.model).name}-{Path(chosen.downstream).name}-{told}".replace(":", "-")
