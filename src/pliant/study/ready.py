"""Whether all that a study names can be had here, found out before its first run starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pliant import backbone
from pliant.adapt.job import splits_of
from pliant.adapt.settings import Settings
from pliant.data import Splits
from pliant.errors import PliantError
from pliant.methods import Plan, plan
from pliant.study.grid import OPTIONS, Run


@dataclass
class Ready:
    """What was found: the data by `data_key`, the plan of what each run trains by `plan_key`."""

    splits: dict[tuple, Splits] = field(default_factory=dict)
    plans: dict[tuple, Plan] = field(default_factory=dict)


def data_key(chosen: Settings) -> tuple:
    return (chosen.data, chosen.limit_train, chosen.limit_val, chosen.limit_test, chosen.val_fraction)


def backbone_key(chosen: Settings) -> tuple:
    return (chosen.model, chosen.weights, chosen.random_init, chosen.img_size)


def plan_key(chosen: Settings) -> tuple:
    return (*backbone_key(chosen), chosen.method, *(getattr(chosen, name) for name in OPTIONS))


def check(runs: Sequence[Run], here: bool = True) -> Ready:
    """Open every data set, load every backbone and plan every method once.

    Args:
        here: are the runs made on this machine, so that it needs their device?

    Raises:
        PliantError: one cannot be had or does not fit, or the device is not there.
    """
    found = Ready()
    for run in runs:
        if here:
            _check_device(run.settings)
        if data_key(run.settings) not in found.splits:
            # Not decoded: the first run does so, and says what it leaves out.
            found.splits[data_key(run.settings)] = splits_of(run.settings, verify=False)
    for key in dict.fromkeys(backbone_key(run.settings) for run in runs):
        found.plans |= _plans([run.settings for run in runs if backbone_key(run.settings) == key])
    return found


def _plans(sharing: Sequence[Settings]) -> dict[tuple, Plan]:
    """The plans of settings that share a backbone, which is loaded once."""
    first = sharing[0]
    with torch.random.fork_rng(devices=[]):
        model = backbone.load(
            first.model,
            weights=first.weights,
            num_classes=2,
            img_size=first.img_size,
            random_init=first.random_init,
        )
    distinct = {plan_key(chosen): chosen for chosen in sharing}
    return {
        key: plan(model, chosen.method, blocks=chosen.blocks, **chosen.method_options())
        for key, chosen in distinct.items()
    }


def _check_device(chosen: Settings) -> None:
    has = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not has[chosen.device]:
        raise PliantError(f"device {chosen.device}: torch {torch.__version__} sees none on this machine; take cpu")
