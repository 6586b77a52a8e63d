"""From a study to its runs: every combination once, named by a hash of what determines its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from pydantic import ValidationError

from pliant.adapt.defaults import rates_of
from pliant.adapt.settings import TRAINING, Settings, settings
from pliant.errors import PliantError
from pliant.methods import Options, is_fitted, method_named
from pliant.study.file import AXES, MACHINE, Grid, Study

OPTIONS = ("blocks", "rank", "alpha", "every", "init", "targets")
"""Settings that some methods take and others do not."""
_ORDER = ("seed", "data", "model", "weights", "random_init", "img_size", "limit_train", "method")
"""From the outermost loop to the inner ones. Seeds first: a study that stops halfway has compared all settings."""
_DEFAULT: str = Settings.model_fields["method"].default


@dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        name: of its folder: a hash of the settings, but for those that do not change results.
        settings: resolved: the method's defaults filled in, options that it does not take left out.
    """

    name: str
    settings: Settings

    @property
    def label(self) -> str:
        """What a person knows it by."""
        chosen = self.settings
        rate = "" if chosen.lr is None else f", lr {chosen.lr}"
        return f"{chosen.method} on {chosen.data} with {chosen.model}{rate}, seed {chosen.seed} ({self.name})"


def runs_of(study: Study) -> list[Run]:
    """All runs of a study in the order they are made in.

    A method that does not take an axis (`rank` for `head`) is run once for all of its values.

    Raises:
        PliantError: an unknown method, options that no method of the study takes, settings that contradict each other.
    """
    try:
        _check_options(study)
        known = [(name, study.values(name)) for name in _ORDER]
        placed = [
            # By the positions of its values, the outermost loop first.
            ([values.index(given.get(name)) for name, values in known], run)
            for grid in study.grids
            for given, run in _runs_of_grid(grid, study.fixed)
        ]
    except PliantError as error:
        raise PliantError(f"{study.source}: {error}") from error
    runs: dict[str, Run] = {}
    for _, run in sorted(placed, key=lambda pair: pair[0]):  # stable: within one place as the grids have them
        runs.setdefault(run.name, run)
    return list(runs.values())


def _runs_of_grid(grid: Grid, common: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Run]]:
    """What is given for each run, and the run."""
    names = sorted(grid.axes, key=lambda name: (*_ORDER, *AXES).index(name))
    for values in product(*(grid.axes[name] for name in names)):
        given = common | grid.fixed | dict(zip(names, values, strict=True))
        yield given, _run(given)


def _run(given: dict[str, Any]) -> Run:
    method = given.get("method", _DEFAULT)
    taken = options_of(method)
    idle = {*OPTIONS, *(TRAINING if is_fitted(method) else ())} - taken
    kept = {name: value for name, value in given.items() if name not in idle}
    resolved = _resolved(settings(**kept))
    return Run(_name(resolved), resolved)


@cache
def options_of(method: str) -> frozenset[str]:
    """Which of OPTIONS a method takes. Raises PliantError for an unknown one."""
    fields = set(type(method_named(method).options(method, {})).model_fields)
    if method not in ("head", "full", "probe"):  # they train nothing in particular blocks
        fields.add("blocks")
    return frozenset(fields & set(OPTIONS))


def _check_options(study: Study) -> None:
    """Is every option taken by a method of its grid? What is fixed for all grids, by a method of any."""
    methods = [grid.values("method") or [study.fixed.get("method", _DEFAULT)] for grid in study.grids]
    for grid, taking in zip(study.grids, methods, strict=True):
        _check_taken({name: grid.values(name) for name in OPTIONS}, taking)
    _check_taken({name: [study.fixed.get(name)] for name in OPTIONS}, list(dict.fromkeys(sum(methods, []))))


def _check_taken(told: dict[str, list[Any]], methods: list[str]) -> None:
    taken = frozenset().union(*map(options_of, methods))
    for name, values in told.items():
        if name not in taken and any(value is not None for value in values):
            raise PliantError(
                f"{name} is set, but none of the study's methods ({', '.join(methods)}) takes it; leave {name} out, or "
                f"add a method that does ({'mha' if name == 'blocks' else 'lora' if name == 'targets' else 'adapter'})"
            )


def _resolved(chosen: Settings) -> Settings:
    """With the method's defaults filled in. What only the loaded model tells (img_size, micro_batch) stays open."""
    method = method_named(chosen.method)
    recipe = method.recipe(chosen.method)
    options = _options(chosen).model_dump()
    parts = options.pop("parts", None)  # `ln2,ln1` is `ln1,ln2`
    if "targets" in options:
        options["targets"] = ",".join(options["targets"])
    defaults: dict[str, Any] = {}
    rates: dict[str, float] = {}
    if recipe is not None:
        defaults = {"epochs": recipe.epochs, "weight_decay": recipe.weight_decay, "warmup": recipe.warmup}
        rates = rates_of(chosen, 1.0) if chosen.lr != "auto" else {}
    missing = {name: value for name, value in defaults.items() if getattr(chosen, name) is None}
    return chosen.model_copy(update={**missing, **rates, **options, **({"method": ",".join(parts)} if parts else {})})


def _options(chosen: Settings) -> Options:
    try:
        return method_named(chosen.method).options(chosen.method, chosen.method_options())
    except ValidationError as error:
        first = error.errors()[0]
        raise PliantError(f"{first['loc'][0]} {first['input']!r} of {chosen.method}: {first['msg']}") from error


def _name(resolved: Settings) -> str:
    told = resolved.model_dump(exclude={"out", *MACHINE}, exclude_none=True)
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def left_out(before: Sequence[Run], now: Sequence[Run]) -> list[str]:
    """What distinguishes the runs `before` that are not among `now`, setting by setting; empty where none is lost."""
    kept = {run.name for run in now}
    lost = [run for run in before if run.name not in kept]
    if not lost:
        return []
    said = []
    for name in AXES:
        old, new = (_values(runs, name) for runs in (before, now))
        gone = [value for value in old if value not in new]
        if gone:
            said.append(f"{name} {_shown(gone)} (now {_shown(new)})")
    return said or [f"{len(lost)} of its runs, such as {lost[0].label}"]


def _values(runs: Sequence[Run], name: str) -> list[Any]:
    return list(dict.fromkeys(getattr(run.settings, name) for run in runs))


def _shown(values: Sequence[Any]) -> str:
    return ", ".join("default" if value is None else str(value) for value in values)
