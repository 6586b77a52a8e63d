"""The protocols of the papers at several scales, packaged as studies, filled in for this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pliant.data.sources import catalogue, open_source
from pliant.data.spec import absolute, without_count
from pliant.errors import PliantError
from pliant.study.file import Study, loaded, parse

if TYPE_CHECKING:
    from pliant.measure import run as measuring
    from pliant.study.grid import Run

PAPERS = ("nonsmooth", "adaptertune")
SCALES = ("laptop", "vits", "paper")
CIFAR10 = "cifar10"


class Measure(BaseModel):
    """What of the backbones is measured on each of the study's data sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pretrain: str | None
    """What the backbones were pretrained on; None where it must be named."""
    models: tuple[str, ...]
    images: int | None = None
    protocol: Literal["in-situ", "shared-input", "both"] = "both"


class Protocol(BaseModel):
    """One file of `reproductions/`.

    Attributes:
        says: what it is, in a sentence.
        differs: where it is not what the paper did.
        fills: what may be given for it: the model, its weights and image size.
        optional: data sets that are left out where they are not installed.
        study: the content of a study file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    differs: tuple[str, ...]
    fills: tuple[Literal["model", "weights", "img_size"], ...] = ()
    optional: tuple[str, ...] = ()
    measure: Measure | None = None
    study: dict[str, Any]


@dataclass(frozen=True)
class Filled:
    """A protocol as it is run here.

    Attributes:
        study: of all data sets that are there.
        measure: None where nothing can be measured.
        notes: what was left out, and why.
    """

    protocol: Protocol
    study: Study
    measure: Measure | None
    notes: tuple[str, ...]

    def measurements(self, runs: Sequence[Run]) -> list[measuring.Settings]:
        """What is to be measured: every backbone on every data set, at the image size and with the weights of its runs."""
        from pliant.measure import run as measuring

        assert self.measure is not None
        found = []
        for model in self.measure.models:
            own = next((run.settings for run in runs if run.settings.model == model), None)
            found += [
                measuring.Settings(
                    model=model,
                    weights=own.weights if own else None,
                    img_size=own.img_size if own else None,
                    random_init=own.random_init if own else False,
                    downstream=name,
                    pretrain=absolute(str(self.measure.pretrain)),
                    protocol=self.measure.protocol,
                    images=self.measure.images,
                )
                for name in data_of(self.study.absolute())
            ]  # fmt: skip
        return found


def protocol(paper: str, scale: str) -> Protocol:
    """The packaged protocol. Raises PliantError for a paper or scale that there is none of."""
    for option, name, known in (("PAPER", paper, PAPERS), ("--scale", scale, SCALES)):
        if name not in known:
            raise PliantError(f"{option} {name!r}: there are {', '.join(known)}")
    file = Path(__file__).parent / "reproductions" / f"{paper}-{scale}.yaml"
    return Protocol.model_validate(loaded(file.read_text(encoding="utf-8")))


def fill(
    chosen: Protocol,
    source: str,
    *,
    data: str | None = None,
    pretrain: str | None = None,
    given: dict[str, Any] | None = None,
    installed: Iterable[str] | None = None,
) -> Filled:
    """The protocol with what this machine has.

    Args:
        source: what messages call the study.
        data: where CIFAR-10 is, for `cifar10` and its corruptions; by name if None.
        pretrain: images of the kind that the backbones were pretrained on, in place of the protocol's.
        given: model, weights and img_size, as far as they are given and the protocol leaves them open.
        installed: names of the data sets that are there; found out if None.

    Raises:
        PliantError: something is given that the protocol does not leave open.
    """
    given = {name: value for name, value in (given or {}).items() if value is not None}
    if closed := [name for name in given if name not in chosen.fills]:
        raise PliantError(f"--{closed[0].replace('_', '-')}: {source} names its own; leave it out")
    there = _installed() if installed is None else set(installed)
    missing = [name for name in chosen.optional if name not in there]
    study = _without(chosen.study, missing)
    study["fixed"] = study.get("fixed", {}) | given
    found = parse(_placed(study, data), source)
    notes = [f"{name} is not installed and was left out ({_how(name)})" for name in missing]
    measure = chosen.measure
    if measure is not None:
        measure = measure.model_copy(
            update={
                "pretrain": pretrain or (measure.pretrain and _place(measure.pretrain, data)),
                "models": (given["model"],) if "model" in given else measure.models,
            }
        )
        if measure.pretrain is None:
            notes.append("plasticity was not measured: --pretrain names the images that the backbone was pretrained on")
            measure = None
    return Filled(chosen, found, measure, tuple(notes))


def data_of(study: Study) -> list[str]:
    """The study's data sets, without numbers of images, each once."""
    return list(dict.fromkeys(without_count(name)[0] for name in study.values("data") if name))


def check_data(names: Sequence[str]) -> None:
    """Open every data set, and name all that cannot be had at once.

    Raises:
        PliantError: one line that has them all, with the reason of the first.
    """
    reasons = {}
    for name in names:
        try:
            open_source(name)
        except PliantError as error:
            reasons[name] = str(error)
    if reasons:
        raise PliantError(
            f"{len(reasons)} of {len(names)} data sets cannot be had: {', '.join(reasons)}; the first: "
            f"{next(iter(reasons.values()))}"
        )


def _installed() -> set[str]:
    return {each.name for each in catalogue() if each.present is not False}


def _how(name: str) -> str:
    return next((each.how for each in catalogue() if each.name == name), "pliant data")


def _without(study: dict[str, Any], missing: Sequence[str]) -> dict[str, Any]:
    """The study's content without these data sets; a grid that has no others goes."""
    grids = []
    for grid in study["grids"]:
        axes = dict(grid["axes"])
        if "data" in axes:
            axes["data"] = [name for name in axes["data"] if without_count(name)[0] not in missing]
        if axes.get("data", True):
            grids.append({**grid, "axes": axes})
    return {**study, "grids": grids}


def _placed(study: dict[str, Any], where: str | None) -> dict[str, Any]:
    """The study's content with CIFAR-10 where it is."""
    grids = [
        {**grid, "axes": {name: _placed_values(name, values, where) for name, values in grid["axes"].items()}}
        for grid in study["grids"]
    ]
    fixed = {name: _place(value, where) if name == "data" else value for name, value in study["fixed"].items()}
    return {"fixed": fixed, "grids": grids}


def _placed_values(name: str, values: list[Any], where: str | None) -> list[Any]:
    return [_place(value, where) for value in values] if name == "data" else values


def _place(name: str, where: str | None) -> str:
    """`cifar10[n=500]` as `PATH[n=500]`, `cifar10c-snow-5` as `cifar10c-snow-5:PATH`."""
    source, count = without_count(name)
    brackets = "" if count is None else f"[n={count}]"
    if where is None:
        return name
    if source == CIFAR10:
        return f"{where}{brackets}"
    return f"{source}:{where}{brackets}" if source.startswith("cifar10c-") else name
