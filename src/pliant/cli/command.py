"""The command that is being carried out: as it was given, and how stopping it ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


def command() -> str:
    """As a shell takes it."""
    return shlex.join(["pliant", *sys.argv[1:]])


@contextmanager
def resumable() -> Iterator[None]:
    """Inside, stopping is no failure: it says that the same command goes on. The exit code is 130."""
    from pliant.interrupt import Interrupted
    from pliant.progress import say

    try:
        yield
    except Interrupted:
        say(f"stopped; go on with the same command: {command()}")
        raise typer.Exit(130) from None
