"""From settings to a run folder that says all of it: starting, going on, and the last lines."""

from __future__ import annotations

from pathlib import Path

from accelerate.utils import broadcast_object_list

from pliant import report
from pliant.adapt.hooks import NO_HOOKS, Hooks
from pliant.adapt.job import REPORT, SETTINGS, SPLIT, START, SUMMARY, Job, accelerator_for
from pliant.adapt.settings import Settings, read_settings
from pliant.data import absolute
from pliant.errors import PliantError
from pliant.files import read_json
from pliant.interrupt import Interrupted
from pliant.methods import adaptation_of
from pliant.progress import say
from pliant.report.words import size


def run(chosen: Settings, command: str | None = None, shelf: Path | None = None, hooks: Hooks = NO_HOOKS) -> Path:
    """Adapt a backbone as `chosen` says; returns the run folder, with its report written.

    Args:
        command: what was asked for, to be stored with the run.
        shelf: folder of frozen outputs that runs share; images that another run has read are not read again.
        hooks: called while it trains.

    Raises:
        PliantError: bad settings or data, weights that do not fit, an output folder that holds another run.
        Interrupted: stopped by Ctrl-C or SIGTERM; `resume` continues.
        Paused: stopped by a hook; `resume` continues.
    """
    accelerator = accelerator_for(chosen)
    # One process names the folder: the others would find it taken.
    named = [str(_new_folder(chosen)) if accelerator.is_main_process else ""]
    chosen = portable(chosen.model_copy(update={"out": broadcast_object_list(named)[0]}))
    job = Job.prepare(chosen, accelerator, shelf=shelf)
    job.begin(command or "pliant.adapt.run(...)")
    return _stoppable(job, hooks, resume=False)


def resume(folder: Path, shelf: Path | None = None, hooks: Hooks = NO_HOOKS) -> Path:
    """Continue a run that was stopped or killed; a finished one is only reported again.

    Raises:
        PliantError: no run folder; the data or the backbone's weights are no longer what they were.
    """
    chosen = read_settings(folder / SETTINGS).model_copy(update={"out": str(folder)})
    if (folder / SUMMARY).is_file():
        if not (folder / REPORT).is_file():
            report.write(folder)
        say(f"{folder} is finished; results are in {folder / REPORT}")
        return folder
    job = Job.prepare(chosen, accelerator_for(chosen), stored=read_json(folder / SPLIT), shelf=shelf)
    if adaptation_of(job.model).fingerprint != read_json(folder / START)["fingerprint"]:
        raise PliantError(
            f"{folder}: the weights of {chosen.model} are not those that the run began with; restore them"
        )
    return _stoppable(job, hooks, resume=True)


def portable(chosen: Settings) -> Settings:
    """With absolute paths, so that the run can be resumed and its model loaded from any folder."""
    places: dict[str, str | None] = {"data": absolute(chosen.data), "weights": _absolute(chosen.weights)}
    if (Path(chosen.model).expanduser() / "config.json").is_file():
        places["model"] = _absolute(chosen.model)
    return chosen.model_copy(update=places)


def _stoppable(job: Job, hooks: Hooks, resume: bool) -> Path:
    try:
        return job.finish(resume, hooks)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(job.folder) from None


def headline(folder: Path) -> list[str]:
    """The last lines of a run: how good, how big, and where."""
    summary = read_json(folder / SUMMARY)
    test, data = summary["test"], summary["data"]
    trained = sum(row["parameters"] for row in summary["plan"] if row["trained"])
    return [
        f"test top-1 {test['top1']:.2%} on {test['images']} images (macro F1 {test['macro_f1']:.2%}, "
        f"calibration error {test['ece']:.2%}); trained on {data['train']} images, gap train minus test "
        f"{100 * summary['gap']:.1f} points",
        f"learned: {trained:,} parameters, {size(summary['learned_bytes'])}, in {folder / 'learned'}",
        f"report: {folder / REPORT}",
    ]


def _new_folder(chosen: Settings) -> Path:
    if chosen.out is None:
        kind, _, place = chosen.data.rpartition(":")  # cifar10c-snow-5:FOLDER, hf:name
        stem = "-".join(part for part in (kind, Path(place).name) if part) or "data"
        base = f"{stem}-{Path(chosen.model).name}-{chosen.method.replace(',', '-')}"
        number = 1
        while (Path("runs") / f"{base}-{number}").exists():
            number += 1
        return Path("runs") / f"{base}-{number}"
    folder = Path(chosen.out)
    if (folder / SETTINGS).exists():
        raise PliantError(
            f"--out {folder} already holds a run; continue it with --resume {folder} or name another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / SPLIT).exists():
        raise PliantError(f"--out {folder} exists and is not an empty folder; name another one")
    return folder


def _absolute(place: str | None) -> str | None:
    return str(Path(place).expanduser().resolve()) if place and Path(place).expanduser().exists() else place
