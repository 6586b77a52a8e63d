"""Ctrl-C and SIGTERM between two steps: never in the middle of an update."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupted(Exception):
    """The user asked to stop; what was done so far is saved. As a string: the run folder to resume."""


class Interrupt:
    """Inside the context, the first Ctrl-C or SIGTERM only sets `asked`; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def stop_if_asked(self) -> None:
        if self.asked:
            raise Interrupted
