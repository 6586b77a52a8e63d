"""Following a run while it trains, and pausing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant.adapt.training import Trainer


class Paused(Exception):
    """A hook asked to stop after an epoch. The checkpoint is written, and `resume` goes on from it."""


def _nothing(trainer: Trainer) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """What is called while a run trains, in each of its processes.

    Attributes:
        on_step: before the first update and after each one. The checkpoint of that step is written later, so what this
            stores is never behind a checkpoint.
        on_epoch: after each epoch's checkpoint; may raise `Paused`.
    """

    on_step: Callable[[Trainer], None] = _nothing
    on_epoch: Callable[[Trainer], None] = _nothing


NO_HOOKS = Hooks()


def pause_after(epochs: int | None) -> Hooks:
    """Pause a run once it has trained for `epochs`; None, or its last epoch, lets it finish."""

    def check(trainer: Trainer) -> None:
        if epochs is not None and trainer.position.epoch >= epochs and not trainer.position.done:
            raise Paused

    return Hooks(on_epoch=check)
