"""A brief search for the learning rate, on validation data."""

from __future__ import annotations

from collections.abc import Callable

from pliant.adapt.defaults import rates_of
from pliant.adapt.learned import learned_state
from pliant.adapt.settings import Settings
from pliant.adapt.training import Trainer
from pliant.errors import PliantError

FACTORS = (0.3, 1.0, 3.0)
"""Multiples of the method's default rate."""


def best_rate(chosen: Settings, template: Trainer, say: Callable[[str], None]) -> Settings:
    """Train briefly (a fifth of the epochs, the whole schedule) at each rate; keep the best by validation top-1.

    The model is left exactly as it was. Ties go to the lower validation loss.
    """
    brief = max(1, int(chosen.epochs or 1) // 5)
    start = {name: tensor.detach().clone() for name, tensor in learned_state(template.model).items()}
    results = []
    for factor in FACTORS:
        rates = rates_of(chosen, factor)
        trial = Trainer(
            chosen.model_copy(update={**rates, "epochs": brief}), template.accelerator, template.model, template.plan,
            template.train, template.val, template.num_classes,
        )  # fmt: skip
        try:
            trial.run()
        except PliantError as problem:
            say(f"--lr auto: {rates['lr']:.2g} is out: {problem}")
            continue
        finally:
            template.model.load_state_dict(start, strict=False)
            template.accelerator.free_memory()  # it keeps the optimizer of every trial
        at = trial.position
        results.append((at.best_top1, -at.best_loss, rates))
        say(f"--lr auto: {rates['lr']:.2g} gives validation top-1 {at.best_top1:.2%} after {brief} epochs")
    if not results:
        raise PliantError("--lr auto: no rate gave a finite loss; give a lower --lr yourself")
    rates = max(results, key=lambda result: result[:2])[2]
    say(f"--lr auto: taking {rates['lr']:.2g}")
    return chosen.model_copy(update=rates)
