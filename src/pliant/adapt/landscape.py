"""The training loss over the plane of the two main directions of a component's training path."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from pliant import anatomy
from pliant.adapt import plane as planes
from pliant.adapt.defaults import micro_batch
from pliant.adapt.features import Streamed, sampled
from pliant.adapt.job import SETTINGS, SPLIT, SUMMARY
from pliant.adapt.learned import load_adapted, load_backbone
from pliant.adapt.replay import check_components, points_of, replay, steps_of
from pliant.adapt.settings import Settings, read_settings
from pliant.adapt.training import Tail
from pliant.backbone import identity_of
from pliant.backbone.weights import read_safetensors
from pliant.data import Preprocess, open_splits
from pliant.errors import PliantError
from pliant.files import read_json, write_json, write_tensors, write_text
from pliant.interrupt import Interrupt, Interrupted
from pliant.methods import adaptation_of, plan
from pliant.progress import say, track

FOLDER = "landscape"
PATH, PLANE, TENSORS = "path.csv", "plane.json", "plane.safetensors"
_SAVE = 5.0
"""Seconds of computed points that a kill may cost."""


@dataclass(frozen=True)
class Landscape:
    """What was found of one component.

    Attributes:
        component: `mha`, or a comma list.
        x, y: the grid's coordinates (G,), distances from the path's end along its two main directions.
        loss: (G, G), mean cross-entropy; a row a y, a column an x.
        path: one row a point: step, x, y, and off, its distance from the plane.
        shares: of the path's variance along the two directions.
        start, end: the loss at the plane's point nearest to the path's beginning, and at its end.
        images: training images that the loss is the mean over.
        test_top1: of the run that the path is of.
    """

    component: str
    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    path: pd.DataFrame
    shares: tuple[float, float]
    start: float
    end: float
    images: int
    test_top1: float


def landscape(run: Path, components: Sequence[str], size: int = 25, images: int = 256) -> list[Landscape]:
    """Landscapes of some components of a finished run, from `run/landscape/COMPONENT/`; what is missing there is made.

    The run is made again once for each component, with the component and the head trained. A call that was stopped
    goes on; what is there is not computed again.

    Args:
        size: points of the grid along each direction.
        images: training images that the loss is the mean over, the same for all points and components.

    Raises:
        PliantError: no finished run, no such component, data or weights that are no longer what they were.
        Interrupted: asked to stop; the same call goes on.
    """
    missing = [name for name in components if not (_folder(run, name) / PLANE).is_file()]
    if missing:
        check_components(run, missing)
    try:
        return [_landscape(run, name, size, images) for name in components]
    except KeyboardInterrupt:
        raise Interrupted(run) from None


def _folder(run: Path, component: str) -> Path:
    return run / FOLDER / component.replace(",", "-")


def _landscape(run: Path, component: str, size: int, images: int) -> Landscape:
    folder = _folder(run, component)
    if not (folder / PLANE).is_file():
        say(f"{component}: training again with {component} and the head alone")
        replay(run, component, folder / "run")
        _find_plane(folder, component)
    shutil.rmtree(folder / "path", ignore_errors=True)  # many times larger than the plane, and needed no more
    told = read_json(folder / PLANE)
    path = pd.read_csv(folder / PATH, float_precision="round_trip")
    x, y = planes.axes_around(path[["x", "y"]].to_numpy(), size)
    begin = (float(path["x"].iloc[0]), float(path["y"].iloc[0]))
    asked = [begin, (0.0, 0.0), *((a, b) for b in y.tolist() for a in x.tolist())]
    found = _losses(folder, component, asked, images, folder / f"loss-{size}x{size}-{images}.csv")
    summary = read_json(folder / "run" / SUMMARY)
    return Landscape(
        component, x, y, found[2:].reshape(size, size), path, tuple(told["shares"]), float(found[0]), float(found[1]),
        min(images, summary["data"]["train"]), summary["test"]["top1"],
    )  # fmt: skip


def _find_plane(folder: Path, component: str) -> None:
    """From the path's points, the plane and the path seen in it; the last of three files says that all is there."""
    files = points_of(folder / "run")
    end, _ = read_safetensors(files[-1])
    names = trained_by(folder / "run", component)
    found = planes.find_plane(planes.inner_products(path for _, path in _along(files, names)))
    first, second = planes.directions(found, _along(files, names))
    tensors = {f"end.{name}": value for name, value in end.items()}
    tensors |= {f"first.{name}": value for name, value in first.items()}
    tensors |= {f"second.{name}": value for name, value in second.items()}
    write_tensors(folder / TENSORS, tensors)
    steps = steps_of(read_json(folder / "run" / SUMMARY)["training"]["steps"])
    table = pd.DataFrame({"step": steps, "x": found.points[:, 0], "y": found.points[:, 1], "off": found.off})
    write_text(folder / PATH, table.to_csv(index=False, lineterminator="\n"))
    write_json(folder / PLANE, {"component": component, "parameters": sum(map(torch.numel, first.values())),
                                "shares": list(found.shares)})  # fmt: skip


def trained_by(run: Path, component: str) -> list[str]:
    """Names of the component's own parameters: neither the final norm's nor the head's."""
    made = plan(load_backbone(run), component, blocks=read_settings(run / SETTINGS).blocks)
    return [name for part in component.split(",") for name in made.trained[part.strip()]]


def _along(files: Sequence[Path], names: Sequence[str]) -> Iterator[tuple[str, list[Tensor]]]:
    """Each parameter's values along the path: one parameter in memory at a time."""
    from safetensors import safe_open

    for name in names:
        values = []
        for file in files:
            with safe_open(file, framework="pt") as opened:
                values.append(opened.get_tensor(name))
        yield name, values


class Surface:
    """The mean loss on a fixed sample of training images, over the plane; what is frozen is computed once.

    Images are seen as for testing, without augmentation, mixing or smoothing. The final norm and the head stay as they
    were at the end of training.
    """

    def __init__(self, folder: Path, images: int):
        chosen = read_settings(folder / "run" / SETTINGS)
        tensors, _ = read_safetensors(folder / TENSORS)
        self.model = load_adapted(folder / "run").to(Accelerator(cpu=chosen.device == "cpu").device)
        self.device = next(self.model.parameters()).device
        end, first, second = (_below(tensors, name, self.device) for name in ("end", "first", "second"))
        self.model.load_state_dict(end, strict=False)
        self.both = (first, second)
        self.end = {name: end[name] for name in first}
        self.own = {name: value for name, value in self.model.named_parameters() if name in first}
        start = anatomy.first_trained(anatomy.stages(self.model), set(adaptation_of(self.model).trained))
        self.tail = Tail(self.model, start).eval()
        self.chunk = micro_batch(self.model, self.device, chosen.batch_size, start)
        self.inputs, self.labels = self._sample(folder, chosen, images, start)

    def _sample(self, folder: Path, chosen: Settings, images: int, start: int) -> tuple[Tensor, Tensor]:
        stored = read_json(folder / "run" / SPLIT)
        train = open_splits(chosen.data, seed=chosen.seed, stored=stored).train
        prefix = partial(anatomy.through, anatomy.stages(self.model)[:start])
        preprocess = Preprocess.from_dict(identity_of(self.model).preprocess)
        source = sampled(Streamed(train, preprocess, prefix, self.device, self.chunk), images, chosen.seed)
        labels = torch.tensor(source.labels).to(self.device)
        return source.batch(np.arange(len(labels)), 0).to(self.device), labels

    def loss(self, x: float, y: float) -> float:
        """Mean cross-entropy at a point of the plane."""
        with torch.no_grad():
            for name, value in planes.at(self.end, self.both, x, y).items():
                self.own[name].copy_(value)
            parts = zip(self.inputs.split(self.chunk), self.labels.split(self.chunk), strict=True)
            total = sum(
                float(F.cross_entropy(self.tail(inputs).float(), labels, reduction="sum")) for inputs, labels in parts
            )
        return total / len(self.labels)


def _below(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value.to(device) for name, value in tensors.items() if name.startswith(start)}


def _losses(folder: Path, component: str, asked: Sequence[tuple[float, float]], images: int, file: Path) -> np.ndarray:
    """Losses at the points `asked` for; those in `file` are taken from there, and the others added to it."""
    known = _read(file)
    missing = [point for point in dict.fromkeys(asked) if point not in known]
    if not missing:
        return np.array([known[point] for point in asked])
    surface = Surface(folder, images)
    saved = time.monotonic()
    try:
        with Interrupt() as interrupt:
            for x, y in track(missing, f"{component}: loss at {len(asked)} points", unit=len(surface.labels)):
                known[x, y] = surface.loss(x, y)
                if time.monotonic() - saved > _SAVE:
                    _write(file, known)
                    saved = time.monotonic()
                interrupt.stop_if_asked()
    finally:
        _write(file, known)
    return np.array([known[point] for point in asked])


def _read(file: Path) -> dict[tuple[float, float], float]:
    if not file.is_file():
        return {}
    try:
        table = pd.read_csv(StringIO(file.read_text(encoding="utf-8")), float_precision="round_trip")
        return {(x, y): loss for x, y, loss in table[["x", "y", "loss"]].to_numpy().tolist()}
    except (ValueError, KeyError) as error:
        raise PliantError(f"{file}: is no table of losses; remove it and give the command again") from error


def _write(file: Path, known: dict[tuple[float, float], float]) -> None:
    table = pd.DataFrame([(x, y, loss) for (x, y), loss in known.items()], columns=["x", "y", "loss"])
    write_text(file, table.to_csv(index=False, lineterminator="\n"))
