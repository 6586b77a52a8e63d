"""Finding image files below folders, and saying what was left out."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pliant.data.decode import SUFFIXES
from pliant.data.wording import counted
from pliant.errors import PliantError


@dataclass
class Ignored:
    """Counts of what was passed over, to be told in one note each."""

    hidden: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    special: int = 0

    def notes(self, where: str) -> list[str]:
        notes = []
        if self.hidden:
            found = counted(self.hidden, "hidden file or folder", "hidden files and folders")
            notes.append(f"{where}: {found} ignored")
        if self.suffixes:
            kinds = ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in sorted(self.suffixes.items()))
            number = sum(self.suffixes.values())
            notes.append(f"{where}: {counted(number, 'file')} of no supported image type ignored ({kinds})")
        if self.special:
            notes.append(f"{where}: {counted(self.special, 'file that is', 'files that are')} no regular file ignored")
        return notes


def hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def images_below(folder: Path, ignored: Ignored) -> list[str]:
    """Image files below `folder`, as sorted relative paths with slashes. Links to folders are followed, once each.

    Raises:
        PliantError: a folder cannot be read, or a name is no UTF-8 and so could not be written into a run folder.
    """
    found: list[str] = []
    seen: set[str] = set()

    def unreadable(error: OSError) -> None:
        raise PliantError(f"{error.filename}: cannot be read ({error.strerror})")

    for here, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        ignored.hidden += sum(map(hidden, folders)) + sum(map(hidden, files))
        folders[:] = sorted(name for name in folders if not hidden(name))
        prefix = Path(here).relative_to(folder).as_posix()
        for name in files:
            if not hidden(name) and _is_image(os.path.join(here, name), ignored):
                found.append(name if prefix == "." else f"{prefix}/{name}")
    for name in found:
        if not _is_text(name):
            raise PliantError(f"{folder}: the name {name!a} is not valid UTF-8; rename it")
    return sorted(found)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_image(path: str, ignored: Ignored) -> bool:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        ignored.suffixes[suffix] += 1
        return False
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            ignored.special += 1
            return False
    except OSError:
        pass  # a broken link: kept, so that it is listed among the unreadable images
    return True


def list_images(paths: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Image files among `paths` and below the folders among them; and notes on what was ignored.

    A file that is named itself is taken whatever its suffix: its content tells.

    Raises:
        PliantError: no such path, or no image at all.
    """
    found: list[Path] = []
    notes: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise PliantError(f"{path}: no such file or folder")
        if not path.is_dir():
            found.append(path)
            continue
        ignored = Ignored()
        inside = [path / name for name in images_below(path, ignored)]
        if not inside:
            ignored_too = "".join(f"; {note}" for note in ignored.notes(str(path)))
            notes.append(f"{path}: holds no images{ignored_too}")
        else:
            notes += ignored.notes(str(path))
        found += inside
    if not found:
        raise PliantError("; ".join(notes) or "no images named")
    return list(dict.fromkeys(found)), notes
