"""Progress on standard error: a bar in a terminal, sparse lines elsewhere, nothing for what takes under two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 2.0


def say(message: str) -> None:
    """One line on standard error, so that standard output stays for results."""
    print(message, file=sys.stderr, flush=True)


def track(items: Iterable[T], what: str, unit: int = 1) -> Iterator[T]:
    """Yield `items`, showing how many images a second and how long is left; an item counts as `unit` images."""
    total = len(items) if isinstance(items, Sized) else None
    started = last = time.monotonic()
    shown = False
    every = 0.2 if sys.stderr.isatty() else 30.0
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - started > PATIENCE and now - last > every:
            shown = True
            last = now
            rate = count / (now - started)
            left = f", {clock((total - count) / rate)} left" if total else ""
            share = f"{count / total:4.0%}" if total else str(count)
            _show(f"{what}: {share}, {rate * unit:.0f} images/s{left}")
    if shown and sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    else:
        say(line)


def clock(seconds: float) -> str:
    """90 -> 1:30."""
    whole = int(seconds + 0.5)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Live:
    """One line that is rewritten in place in a terminal, and printed now and then elsewhere."""

    def __init__(self, every: float = 30.0):
        self.every = 0.2 if sys.stderr.isatty() else every
        self.last = time.monotonic() - self.every + min(self.every, PATIENCE)

    def show(self, line: str) -> None:
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            _show(line)

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
