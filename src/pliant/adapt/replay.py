"""A run made again with one component trained, and the path of that component's parameters."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from pliant.adapt import learned
from pliant.adapt.hooks import Hooks
from pliant.adapt.job import SETTINGS, SPLIT, START, SUMMARY
from pliant.adapt.run import resume
from pliant.adapt.settings import Settings, read_settings, settings_yaml
from pliant.adapt.training import Trainer
from pliant.backbone.timm_models import near
from pliant.errors import PliantError
from pliant.files import read_json, write_json, write_tensors, write_text
from pliant.methods import plan
from pliant.methods.components import TUNABLE

POINTS = 41
"""Points of a path, with its beginning and its end, evenly spaced over the steps."""
_OF_THE_METHOD = (
    "rank", "alpha", "every", "init", "targets", "lr", "head_lr", "weight_decay", "warmup", "micro_batch",
)  # fmt: skip


def check_components(run: Path, components: list[str]) -> None:
    """Whether a run can be made again with each of `components` trained.

    Raises:
        PliantError: no finished run; no such component, or the run's backbone has no such part.
    """
    read_settings(run / SETTINGS)
    if not (run / SUMMARY).is_file():
        raise PliantError(f"{run}: the run is not finished; go on with pliant adapt --resume {run}")
    for name in components:
        for part in name.split(","):
            if part.strip() not in TUNABLE:
                raise PliantError(
                    f"component {name!r}: {part.strip()!r} is no part of a backbone{near(part, list(TUNABLE))}; give one "
                    f"of {', '.join(TUNABLE)}, or a comma list"
                )
    model = learned.load_backbone(run)
    for name in components:
        plan(model, name, blocks=settings_for(run, name).blocks)


def settings_for(run: Path, component: str) -> Settings:
    """The run's own settings where it trained the component; else with the component's defaults for what suits a method."""
    chosen = read_settings(run / SETTINGS)
    if chosen.method == component:
        return chosen
    return chosen.model_copy(update={**dict.fromkeys(_OF_THE_METHOD), "method": component, "cache": "auto"})


def replay(run: Path, component: str, folder: Path) -> None:
    """Train as `run` did, on the images of its split, but `component` and the head alone; keep the path's points.

    A replay that was stopped goes on; a finished one is left as it is.

    Args:
        folder: becomes a run folder; the points go to `path/` beside it.

    Raises:
        PliantError: the data or the weights are no longer what they were.
        Interrupted: asked to stop; the same call goes on.
    """
    if not (folder / SETTINGS).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        write_json(folder / SPLIT, read_json(run / SPLIT))
        mark = read_json(run / START)["fingerprint"]
        write_json(folder / START, {"command": f"pliant landscape {run} --component {component}", "fingerprint": mark})
        write_text(
            folder / SETTINGS, settings_yaml(settings_for(run, component).model_copy(update={"out": str(folder)}))
        )
    if not (folder / SUMMARY).is_file():
        resume(folder, hooks=Hooks(on_step=lambda trainer: _keep(trainer, folder.parent / "path")))


def points_of(folder: Path) -> list[Path]:
    """The path's points, first to last. Raises PliantError where some are missing."""
    steps = steps_of(read_json(folder / SUMMARY)["training"]["steps"])
    found = [_file(folder.parent / "path", step) for step in steps]
    if missing := [file for file in found if not file.is_file()]:
        raise PliantError(f"{missing[0]}: is gone; remove {folder.parent} and give the command again")
    return found


def steps_of(total: int) -> list[int]:
    """After how many of `total` updates the path's points are taken."""
    return sorted({round(step) for step in np.linspace(0, total, POINTS)})


def _keep(trainer: Trainer, folder: Path) -> None:
    step = trainer.position.step
    if step in steps_of(trainer.total_steps) and trainer.accelerator.is_main_process:
        write_tensors(_file(folder, step), learned.learned_state(trainer.model))


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:07}.safetensors"
