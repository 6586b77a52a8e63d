"""A run as bytes: what a machine that does not see the study's folder sends to the one that does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pliant.adapt.job import LOG, PREDICTIONS, REPORT, SETTINGS, SPLIT, START, SUMMARY
from pliant.adapt.learned import CONFIG, WEIGHTS
from pliant.errors import PliantError
from pliant.files import write_atomic
from pliant.study.folder import StudyFolder
from pliant.study.grid import Run

FILES = (SETTINGS, SPLIT, START, LOG, f"learned/{WEIGHTS}", f"learned/{CONFIG}", PREDICTIONS, SUMMARY, REPORT)
"""What a finished run's folder holds. Nothing else travels, so nothing else can arrive."""
SPOKEN, FAILURE = "log", "failure"


def pack(folder: StudyFolder, run: Run) -> dict[str, bytes]:
    """A run that is done or failed, by the names in FILES; with SPOKEN, and FAILURE where it failed."""
    places = {SPOKEN: folder.log(run), FAILURE: folder.failure(run)}
    if folder.done(run):
        places |= {name: folder.run(run) / name for name in FILES}
    return {name: path.read_bytes() for name, path in places.items() if path.is_file()}


def unpack(files: Mapping[str, bytes], folder: StudyFolder, run: Run) -> None:
    """Put what `pack` made into a study's folder: a killed process leaves either the whole run there or none of it.

    Raises:
        PliantError: a name or content that no run has; the disk is full.
    """
    for name, content in files.items():
        if name not in (*FILES, SPOKEN, FAILURE) or not isinstance(content, bytes):
            raise PliantError(f"run {run.name}: {name!r} arrived, which is no file of a run; look at what sent it")
    log = folder.log(run)
    said = log.read_bytes() if log.is_file() else b""
    _write(log, said + files.get(SPOKEN, b""))
    if FAILURE in files:
        _write(folder.failure(run), files[FAILURE])
    made = [name for name in FILES if name in files]
    if not made:
        return
    arriving = folder.run(run).with_name(f".{run.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    for name in made:
        _write(arriving / name, files[name])
    folder.clear(run)  # what an earlier attempt left half made
    arriving.rename(folder.run(run))


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, lambda temporary: temporary.write_bytes(content))
