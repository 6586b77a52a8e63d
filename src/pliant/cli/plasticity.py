"""`pliant plasticity` and `pliant bounds`: measuring what a model's components do to distances."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pliant.cli.command import command
from pliant.errors import PliantError

if TYPE_CHECKING:
    from pliant.measure import Plasticity

_MODEL, _PAIRS, _FIGURES = "Model", "Pairs", "Figures"


def plasticity(
    model: Annotated[str, Argument(help="pico, a timm name, org/name, gpt2, a local folder, or a run folder; or the word compare.")],
    folders: Annotated[list[Path] | None, Argument(help="With compare: two folders of measurements.", show_default=False)] = None,
    downstream: Annotated[str | None, Option(help="The images that the model is to be adapted to; text:FILE for a language model.", rich_help_panel=_PAIRS)] = None,
    pretrain: Annotated[str | None, Option(help="Images of the kind that it was pretrained on (default: half of the downstream ones).", rich_help_panel=_PAIRS)] = None,
    weights: Annotated[str | None, Option(help="Local safetensors file with the pretrained weights.", rich_help_panel=_MODEL)] = None,
    img_size: Annotated[int | None, Option(help="Side of the input in pixels.", rich_help_panel=_MODEL)] = None,
    random_init: Annotated[bool, Option("--random-init", help="Measure random weights, knowingly.", rich_help_panel=_MODEL)] = False,
    tokenizer: Annotated[str | None, Option(help="Folder or name of a language model's tokenizer (default: the model's).", rich_help_panel=_MODEL)] = None,
    sequence_length: Annotated[int | None, Option(help="Tokens of a sequence of text (default: 128).", rich_help_panel=_PAIRS)] = None,
    protocol: Annotated[str, Option(help="in-situ, shared-input (the published code's), or both.", rich_help_panel=_PAIRS)] = "in-situ",
    estimator: Annotated[str, Option(help="cyclic (each image in 4 pairs), paired (in one), or all-pairs of a block.", rich_help_panel=_PAIRS)] = "cyclic",
    precision: Annotated[float, Option(help="Stop when every component's 95 % interval is this narrow, relative half-width.", rich_help_panel=_PAIRS)] = 0.01,
    images: Annotated[int | None, Option(help="At most so many images a side.", rich_help_panel=_PAIRS)] = None,
    block: Annotated[int | None, Option(help="Images a side that are measured together (default: what memory suggests).", rich_help_panel=_PAIRS)] = None,
    max_corrupt: Annotated[float, Option(help="Share of unreadable images that is tolerated.", rich_help_panel=_PAIRS)] = 0.01,
    seed: Annotated[int, Option(help="Fixes which images meet.", rich_help_panel=_PAIRS)] = 0,
    local: Annotated[int, Option(help="Images a side at which the local figure is computed; 0 leaves it out.", rich_help_panel=_FIGURES)] = 4,
    radius: Annotated[str, Option(help="In attention's bound: max (a true bound), mean (as the paper plots), or a number.", rich_help_panel=_FIGURES)] = "max",
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.", rich_help_panel=_MODEL)] = "auto",
    out: Annotated[Path | None, Option(help="Folder for tables, figure and page (default: a new one in runs/).")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Measure how much each component changes when its input does, with intervals, local figures and upper bounds.

    Of a run folder, the adapted model and its backbone are measured on the same images: what tuning changed.

    [bold]Examples[/bold]

    pliant plasticity pico --downstream digits

    pliant plasticity vit_small_patch14_dinov2 --weights dinov2.safetensors --img-size 112 --pretrain imagenet.parquet --downstream ./flowers --protocol both

    pliant plasticity runs/a --downstream ./flowers

    pliant plasticity gpt2 --pretrain text:a.txt --downstream text:b.txt

    pliant plasticity compare runs/plasticity-a runs/plasticity-b
    """
    if model == "compare":
        _compare(folders or [], out, as_json)
        return
    if folders:
        raise PliantError(
            f"{folders[0]}: one model is measured at a time; to compare two measurements, say compare first"
        )
    if downstream is None:
        raise PliantError("--downstream is missing: give the images that the model is to be adapted to")
    from pliant.measure import run
    from pliant.progress import say

    folder = _new(out, Path(model).name)
    chosen = run.Settings(
        model=model, downstream=downstream, pretrain=pretrain, weights=weights, img_size=img_size,
        random_init=random_init, tokenizer=tokenizer, sequence_length=sequence_length, protocol=protocol,
        estimator=estimator, precision=precision, images=images, block=block, local=local,
        radius=radius_of(radius), seed=seed, max_corrupt=max_corrupt, device=device,
    )  # fmt: skip
    measured = run.measure(chosen, command())
    run.save(measured, folder)
    if as_json:
        print(json.dumps({**measured.after.as_json(), "changes": run.changes(measured), "folder": str(folder)}))
        say(f"report: {folder}/report.html")
        return
    show(measured.after)
    if measured.before is not None:
        from pliant.measure import compare

        _show_comparison(compare(measured.before, measured.after), ("backbone", "adapted"))
    print(f"\nreport: {folder}/report.html   tables: {folder}/plasticity.parquet")


def radius_of(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _new(out: Path | None, name: str) -> Path:
    """The folder to write to. Raises PliantError where it holds something else."""
    folder = out or Path("runs") / f"plasticity-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PliantError(f"--out {folder}: exists and is not empty; name another folder")
    # Now, not after the measurement.
    above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise PliantError(f"--out {folder}: cannot be made, {above} is no folder that can be written to")
    return folder


def _compare(folders: list[Path], out: Path | None, as_json: bool) -> None:
    from pliant import report
    from pliant.measure import compare, load
    from pliant.measure.result import records

    if len(folders) != 2:
        raise PliantError(f"compare takes two folders of measurements, {len(folders)} given")
    first, second = (load(folder) for folder in folders)
    table = compare(first, second)
    names = (str(folders[0]), str(folders[1]))
    folder = _new(out, f"{folders[0].name}-{folders[1].name}")
    report.write_comparison(first, second, names, folder)
    if as_json:
        print(json.dumps({"first": names[0], "second": names[1], "table": records(table), "folder": str(folder)}))
        return
    _show_comparison(table, names)
    print(f"\nreport: {folder}/report.html")


def show(measured: Plasticity) -> None:
    """Ranked tables and sentences for a terminal."""
    from rich.console import Console
    from rich.table import Table

    from pliant.measure.words import sentences

    console = Console()
    summary = measured.summary
    for protocol in measured.protocols:
        table = measured.table(protocol).sort_values("mean", ascending=False)
        shown = Table(
            title=f"{protocol}: {summary['images']} images a side, {summary['pairs']:,} pairs", title_justify="left"
        )
        columns = ("component", "plasticity, 95 %", "largest", "local", "bound", "elasticity")
        for column in columns:
            shown.add_column(column, justify="left" if column == "component" else "right", no_wrap=True)
        for row in table.to_dict("records"):
            figures = (number(row[name]) for name in ("largest", "local", "bound", "elasticity"))
            half = row["high"] - row["mean"]
            shown.add_row(row["component"], f"{number(row['mean'])} ± {half:.1g}", *figures)
        console.print(shown)
        sublayers = measured.sublayers(protocol)
        if len(sublayers):
            rates = "; ".join(f"{row['component']} {number(row['mean'])}" for row in sublayers.to_dict("records"))
            print(f"Whole sub-layers: {rates}.")
        for sentence in sentences(measured, protocol):
            print(sentence)


def number(value: Any) -> str:
    """Four digits; a dash where there is none."""
    return "-" if value != value else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _show_comparison(table: Any, names: tuple[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{names[1]} against {names[0]}", title_justify="left")
    for column in ("protocol", "component", "first", "second", "ratio", "95 % interval"):
        shown.add_column(column, justify="left" if column in ("protocol", "component") else "right")
    for row in table.to_dict("records"):
        shown.add_row(
            row["protocol"], row["component"], number(row["mean_first"]), number(row["mean_second"]),
            number(row["ratio"]), f"{number(row['ratio_low'])} to {number(row['ratio_high'])}",
        )  # fmt: skip
    Console().print(shown)


def bounds(
    model: Annotated[str, Argument(help="pico, a timm name, org/name, a local folder, or a run folder.")],
    data: Annotated[str | None, Option(help="Images that say how far tokens reach.")] = None,
    radius: Annotated[str, Option(help="In attention's bound: max (a true bound), mean (as the paper plots), or a number.")] = "max",
    weights: Annotated[str | None, Option(help="Local safetensors file with the pretrained weights.")] = None,
    img_size: Annotated[int | None, Option(help="Side of the input in pixels.")] = None,
    random_init: Annotated[bool, Option("--random-init", help="Bound random weights, knowingly.")] = False,
    protocol: Annotated[str, Option(help="What components are given: in-situ or shared-input.")] = "in-situ",
    images: Annotated[int, Option(min=2, help="Images a side.")] = 32,
    seed: Annotated[int, Option(help="Fixes which images are taken.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Upper bounds on the rate of every component of every block, beside the largest rate that the data shows.

    Without --data only what the weights alone tell: linear layers, and attention for a --radius in numbers.

    [bold]Examples[/bold]

    pliant bounds pico --data digits

    pliant bounds pico --radius 19.4
    """
    from pliant.measure import run
    from pliant.measure.result import records

    chosen = run.Settings(
        model=model, downstream=data or "", weights=weights, img_size=img_size, random_init=random_init,
        protocol=protocol, precision=None, images=images, local=0, radius=radius_of(radius), seed=seed,
    )  # fmt: skip
    table = run.bounds(chosen)
    if as_json:
        print(json.dumps({"model": model, "data": data, "radius": chosen.radius, "bounds": records(table)}))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{model}: upper bounds{f', {protocol}' if data else ''}", title_justify="left")
    for column in table.columns:
        shown.add_column(column, justify="left" if column == "component" else "right")
    for row in table.to_dict("records"):
        shown.add_row(*(str(value) if name in ("block", "component") else number(value) for name, value in row.items()))
    Console().print(shown)
    if table["bound"].isna().any():
        print("-: not known without --data (norms), without --radius NUMBER (attention), or for this kind of attention")
