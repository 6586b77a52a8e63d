"""`pliant study` and `pliant compare`: many runs, and what may be said about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pliant.cli.command import command, resumable
from pliant.errors import PliantError

if TYPE_CHECKING:
    import pandas as pd

    from pliant.study.comparison import Comparison
    from pliant.study.file import Study
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import Run
    from pliant.study.results import Report

PAGE = "report"
"""Folder, inside the study's, of its page and tables."""

study = typer.Typer(
    name="study",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A grid of runs that survives anything, and one honest answer.",
)

_FILE = Argument(help="Study file: axes of lists, and what is fixed (docs/studies.md).")
_FOLDER = Argument(help="Folder of a study.")
_OUT = Option(help="Folder of the study (default: studies/ and the file's name).")
_WORKERS = Option(min=1, help="Processes on this machine, which share its cores.")
_RAY = Option(
    "--ray",
    metavar="auto|HOST:PORT",
    help="Make the runs on this Ray cluster (docs/studies.md); auto is the one that this machine belongs to.",
)
_RETRY = Option("--retry", help="Run failed runs again, from their beginning.")
_HALVING = Option("--halving", help="Stop the worse half of the rates early, by validation (needs Optuna).")
_JSON = Option("--json", help="Print one JSON object.")


@study.command("run")
def run(
    file: Annotated[Path, _FILE],
    out: Annotated[Path | None, _OUT] = None,
    workers: Annotated[int, _WORKERS] = 1,
    ray: Annotated[str | None, _RAY] = None,
    retry: Annotated[bool, _RETRY] = False,
    halving: Annotated[bool, _HALVING] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Make all runs of a study that are not done yet. After Ctrl-C, a crash or a kill, the same command goes on.

    [bold]Examples[/bold]

    pliant study run study.yaml

    pliant study run study.yaml --out studies/a --workers 2

    pliant study run study.yaml --out studies/a --ray auto

    pliant study run study.yaml --out studies/a --retry

    pliant study run study.yaml --out studies/a --halving
    """
    from pliant.study.file import read

    asked = read(file)
    make = maker(workers, ray, halving)
    folder, found, runs = carry_out(asked, out or _default(file), make, retry, halving)
    show_report(folder, reported(folder, found, runs), runs, as_json)
    exit_if_failed(folder, runs)


@study.command("plan")
def plan(
    file: Annotated[Path, _FILE],
    out: Annotated[Path | None, _OUT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say how many runs a study has, and what is left of them in time and on disk; every kind of run is timed briefly.

    [bold]Example[/bold]: pliant study plan study.yaml --out studies/a
    """
    from pliant.progress import clock
    from pliant.report.words import size
    from pliant.study.file import read
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import runs_of
    from pliant.study.probe import estimate
    from pliant.study.ready import check

    runs = runs_of(read(file).absolute())
    folder = StudyFolder(out or _default(file))
    left = [each for each in runs if not folder.done(each)]
    found = estimate(left, check(left))
    if as_json:
        counts = {"runs": len(runs), "done": len(runs) - len(left), "seconds": round(found.seconds, 1)}
        print(json.dumps({**counts, "bytes": found.bytes, "working_bytes": found.working_bytes}))
        return
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them done in {folder.path}")
    if left:
        print(f"time:  about {clock(found.seconds)} with one worker on this machine")
        print(f"disk:  {size(found.bytes)}, and up to {size(found.working_bytes)} more until all are done")


@study.command("status")
def status(folder: Annotated[Path, _FOLDER], as_json: Annotated[bool, _JSON] = False) -> None:
    """Say how many runs are done, failed, running (now, and where), pruned by halving, stopped half-way or waiting.

    [bold]Example[/bold]: pliant study status studies/a
    """
    place, _, runs = _stored(folder)
    states = [place.state(each) for each in runs]
    counts = {name: states.count(name) for name in ("done", "failed", "running", "pruned", "stopped", "waiting")}
    failed = {each.name: place.message(each) for each, state in zip(runs, states, strict=True) if state == "failed"}
    running = [(each, place.where(each)) for each, state in zip(runs, states, strict=True) if state == "running"]
    if as_json:
        at = {each.name: where for each, where in running}
        print(json.dumps({"folder": str(folder), "runs": len(runs), **counts, "failures": failed, "at": at}))
        return
    print(f"{len(runs)} runs: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
    for each, where in running:
        print(f"running: {each.label} on {where}")
    for each in runs:
        if each.name in failed:
            print(f"failed: {each.label}: {failed[each.name]}")


@study.command("report")
def report(folder: Annotated[Path, _FOLDER], as_json: Annotated[bool, _JSON] = False) -> None:
    """Choose settings on validation and print their test accuracy; write tables and a page.

    [bold]Example[/bold]: pliant study report studies/a
    """
    place, found, runs = _stored(folder)
    show_report(place, reported(place, found, runs), runs, as_json)


def compare(
    data: Annotated[str, Argument(help="Folder of images, parquet file or folder, hf:NAME, or a name of `pliant data`.")],
    methods: Annotated[str, Option(help="Comma list of methods; parts tuned together are joined by +, as in ln1+mha.")] = "head,full,adapter,lora,mha,ln1",
    seeds: Annotated[int, Option(min=1, help="How many seeds, from 0.")] = 3,
    lr: Annotated[str | None, Option(help="Comma list of rates, of which validation chooses for each method (default: each method's own).")] = None,
    model: Annotated[str, Option(help="pico, a timm name, org/name on the hub, or a local folder.")] = "pico",
    weights: Annotated[str | None, Option(help="Local safetensors file with the pretrained weights.")] = None,
    random_init: Annotated[bool, Option("--random-init", help="Train on random weights, knowingly.")] = False,
    img_size: Annotated[int | None, Option(help="Side of the input in pixels.")] = None,
    epochs: Annotated[int | None, Option(help="Passes over the training images (default: each method's).")] = None,
    batch_size: Annotated[int | None, Option(help="Images an update.")] = None,
    limit_train: Annotated[int | None, Option(help="Use this many training images, label-balanced.")] = None,
    limit_test: Annotated[int | None, Option(help="Use this many test images.")] = None,
    device: Annotated[str | None, Option(help="auto, cpu, cuda or mps.")] = None,
    out: Annotated[Path | None, Option(help="Folder of the study (default: by data and model, in studies/).")] = None,
    workers: Annotated[int, _WORKERS] = 1,
    ray: Annotated[str | None, _RAY] = None,
    retry: Annotated[bool, _RETRY] = False,
    halving: Annotated[bool, _HALVING] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:  # fmt: skip
    """Compare methods on your data over seeds, and say whether the best is significantly better.

    A study without a file: the same command goes on where it stopped, and may grow by methods, seeds and rates.

    [bold]Examples[/bold]

    pliant compare ./flowers

    pliant compare ./flowers --methods head,adapter,ln1+mha --seeds 7 --workers 2

    pliant compare cifar10 --model vit_small_patch14_dinov2 --img-size 112 --limit-train 1000 --lr 1e-3,3e-3,1e-2 --halving
    """
    from pliant.study.comparison import comparison
    from pliant.study.file import parse

    given = {
        "data": data, "model": model, "weights": weights, "random_init": random_init or None, "img_size": img_size,
        "epochs": epochs, "batch_size": batch_size, "limit_train": limit_train, "limit_test": limit_test,
        "device": device,
    }  # fmt: skip
    axes: dict[str, list[Any]] = {
        "method": [name.strip().replace("+", ",") for name in methods.split(",")],
        "seed": list(range(seeds)),
    }
    if lr is not None:
        axes["lr"] = _rates(lr)
    fixed = {name: value for name, value in given.items() if value is not None}
    asked = parse({"axes": axes, "fixed": fixed}, "compare")
    stem = f"compare-{Path(data).name.partition('[')[0] or 'data'}-{Path(model).name}"
    make = maker(workers, ray, halving)
    folder, found, runs = carry_out(asked, out or Path("studies") / stem, make, retry, halving)
    made = reported(folder, found, runs)
    if made.selection is None:
        raise PliantError(f"nothing to compare: {made.note}")
    said = comparison(made.selection)
    if as_json:
        counts = {"runs": len(runs), "failed": _failed(folder, runs), "halving": _saved(folder, runs)}
        print(json.dumps({"folder": str(folder.path), **counts, "best": said.best, "sentence": said.sentence,
                          "methods": _records(said.table)}))  # fmt: skip
    else:
        _show_comparison(said, folder, runs)
    exit_if_failed(folder, runs)


def _rates(text: str) -> list[float | str]:
    try:
        return [part.strip() if part.strip() == "auto" else float(part) for part in text.split(",")]
    except ValueError:
        raise PliantError(f"--lr {text!r}: give numbers such as 1e-3,1e-2, or auto") from None


def _default(file: Path) -> Path:
    return Path("studies") / file.stem


def _stored(path: Path) -> tuple[StudyFolder, Study, list[Run]]:
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import runs_of

    folder = StudyFolder(path)
    found = folder.study()
    return folder, found, runs_of(found)


def carry_out(
    asked: Study, out: Path, make: Maker, retry: bool, halve: bool = False
) -> tuple[StudyFolder, Study, list[Run]]:
    """Check everything, store the study and make its runs; stopping is no failure, and says how to go on."""
    from pliant.progress import say
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import runs_of
    from pliant.study.ready import check

    folder = StudyFolder(out)
    folder.refuse(asked)
    wanted = runs_of(asked.absolute())
    if halve:
        from pliant.study import halving

        halving.check(wanted)
    check([each for each in wanted if retry or not folder.settled(each)], here=make.here)
    runs = folder.store(asked)
    for each in runs if retry else []:
        folder.forget_failure(each)
    say(f"{len(runs)} runs, {sum(map(folder.done, runs))} done; {out} holds them")
    with resumable():
        make.execute(folder, runs)
    return folder, folder.study(), runs


@dataclass(frozen=True)
class Maker:
    """What makes the runs of a study, and whether it does so on this machine."""

    execute: Callable[[StudyFolder, Sequence[Run]], None]
    here: bool = True


def maker(workers: int, ray: str | None = None, halve: bool = False) -> Maker:
    """Raises PliantError where the options contradict or the cluster is not there, before anything takes its time."""
    from pliant.study import cluster, execute, on_ray

    if ray is None:
        return Maker(lambda folder, runs: execute.execute(folder, runs, workers, halve))
    if workers > 1:
        raise PliantError(f"--workers {workers} is for this machine and --ray for a cluster; leave one out")
    if halve:
        raise PliantError("--halving is for this machine and --ray for a cluster; leave one out")
    cluster.reach(ray)
    return Maker(lambda folder, runs: on_ray.execute(folder, runs, ray), here=False)


def reported(folder: StudyFolder, found: Study, runs: Sequence[Run], **page: Any) -> Report:
    """Write tables and page; `page` are further arguments of `write_study`."""
    from pliant.report import write_study
    from pliant.study import results

    made = results.report(folder, found, runs)
    if not made.results.empty:
        errors = made.results["run"].map(results.messages(folder, runs))
        given = {"title": folder.path.resolve().name, "command": command(), **page}
        given["notes"] = [*given.get("notes", []), *filter(None, [_saved(folder, runs)])]
        given["measurements"] = {"starts": results.starts(folder, runs), **given.get("measurements", {})}
        write_study(folder.path / PAGE, made.results.assign(error=errors), steps=results.steps(folder, runs), **given)
    return made


def _saved(folder: StudyFolder, runs: Sequence[Run]) -> str:
    from pliant.study import halving

    return halving.sentence(folder, runs)


def _failed(folder: StudyFolder, runs: Sequence[Run]) -> int:
    return sum(map(folder.failed, runs))


def exit_if_failed(folder: StudyFolder, runs: Sequence[Run]) -> None:
    from pliant.progress import say

    if count := _failed(folder, runs):
        say(f"{count} of {len(runs)} runs failed (pliant study status {folder.path}); --retry runs them again")
        raise typer.Exit(1)


def show_report(folder: StudyFolder, made: Report, runs: Sequence[Run], as_json: bool) -> None:
    failed = _failed(folder, runs)
    done = len(made.results) - failed
    if as_json:
        chosen = _records(made.selection.table) if made.selection else []
        sentence = made.selection.sentence if made.selection else made.note
        print(json.dumps({"folder": str(folder.path), "runs": len(runs), "done": done, "failed": failed,
                          "selection": chosen, "sentence": sentence, "halving": _saved(folder, runs)}))  # fmt: skip
        return
    print(f"{done} of {len(runs)} runs done" + (f", {failed} failed" if failed else ""))
    if made.selection is None:
        print(f"nothing chosen: {made.note}")
    else:
        _show_selection(made)
    if saved := _saved(folder, runs):
        print(saved)
    print(f"report: {folder.path / PAGE}/report.html   tables: {folder.path}")


def _show_selection(made: Report) -> None:
    from pliant.study.results import GROUP

    assert made.selection is not None
    table, axes = made.selection.table, made.selection.axes
    same = {name for name in GROUP if name != "method" and table[name].nunique(dropna=False) == 1}
    groups = [name for name in GROUP if name not in same]
    rows = [
        [*(_word(row[name], name) for name in groups), *(_word(row[axis], axis if row["method"] != "probe" else "") for axis in axes),
         str(row["seeds"]), _points(row["val_mean"]), _points(row["test_mean"]), _points(row["test_std"]),
         _points(row["claimed_mean"])]
        for row in table.to_dict("records")
    ]  # fmt: skip
    _print(", ".join(f"{name} {_word(table[name].iloc[0], name)}" for name in GROUP if name in same),
           [*groups, *axes, "seeds", "val %", "test %", "std", "choosing on test"], rows)  # fmt: skip
    print(made.selection.sentence)


def _show_comparison(said: Comparison, folder: StudyFolder, runs: Sequence[Run]) -> None:
    rows = [
        [row["method"], _points(row["val_mean"]), _points(row["test_mean"]), _points(row["test_std"]), str(row["seeds"]),
         f"{row['trained_parameters']:,}", _points(row.get("difference")), _p(row.get("wilcoxon")), _p(row.get("t"))]
        for row in said.table.to_dict("records")
    ]  # fmt: skip
    headings = ["method", "val %", "test %", "std", "seeds", "trained", "best by", "Wilcoxon p", "t p"]
    _print("best on validation first", headings, rows)
    print(said.sentence)
    if saved := _saved(folder, runs):
        print(saved)
    print(f"report: {folder.path / PAGE}/report.html   study: {folder.path}")


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in ("data", "model", "weights", "method") else "right")
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


def _word(value: Any, name: str) -> str:
    """A setting as a person wrote it; a missing rate was searched for, anything else missing does not apply."""
    if value is None or value != value:
        return "auto" if name in ("lr", "head_lr") else "-"
    if isinstance(value, float):
        return f"{value:g}"
    kind, _, place = str(value).partition(":")
    if name == "data" and place.startswith("/"):  # cifar10c-snow-5:/FOLDER
        return kind
    return Path(value).name if name in ("data", "weights", "model") else str(value)


def _points(value: Any) -> str:
    return "-" if value is None or value != value else f"{100 * value:.2f}"


def _p(value: Any) -> str:
    return "-" if value is None or value != value else f"{value:.3g}"


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, which has no NaN."""
    return json.loads(table.to_json(orient="records", double_precision=15))
