"""`pliant evaluate` and `pliant predict`: using an adapted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pliant.progress import say


def evaluate(
    run: Annotated[Path, Argument(help="Run folder, or what pliant.save wrote.")],
    data: Annotated[str, Option(help="Labelled images: a folder of class folders, parquet, or a name.")],
    split: Annotated[str, Option(help="Which split, where the data has several.")] = "test",
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure an adapted model on labelled images; classes are matched by name.

    [bold]Example[/bold]: pliant evaluate runs/a --data ./flowers/test
    """
    from pliant.adapt import evaluate as measure
    from pliant.adapt.learned import learned_folder, read_config

    metrics = measure(run, data, split)
    if as_json:
        print(json.dumps(metrics))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{run} on {data}: {metrics['images']} images", title_justify="left")
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    table.add_column("images", justify="right")
    names = read_config(learned_folder(run))["classes"]
    for name, accuracy, row in zip(names, metrics["per_class"], metrics["confusion"], strict=True):
        table.add_row(name, "-" if accuracy is None else f"{accuracy:.1%}", str(sum(row)))
    Console().print(table)
    print(f"top-1 {metrics['top1']:.2%}, top-{metrics['top5_k']} {metrics['top5']:.2%}, macro F1 "
          f"{metrics['macro_f1']:.2%}, calibration error {metrics['ece']:.2%}")  # fmt: skip


def predict(
    run: Annotated[Path, Argument(help="Run folder, or what pliant.save wrote.")],
    images: Annotated[list[Path], Argument(help="Images, or folders of images.")],
    top: Annotated[int, Option(min=1, help="How many classes an image.")] = 1,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name the class of images.

    [bold]Example[/bold]: pliant predict runs/a photo.jpg more/ --json
    """
    from pliant.adapt import predict as name

    results, notes = name(run, images, top)
    for note in notes:
        say(f"note: {note}")
    if as_json:
        print(json.dumps({"images": results, "notes": notes}, ensure_ascii=False))
    else:
        _print(results)
    if all("error" in result for result in results):
        raise typer.Exit(2)


def _print(results: list[dict[str, Any]]) -> None:
    for result in results:
        if "error" in result:
            say(f"{result['file']}: {result['error']}")
        else:
            best = ", ".join(f"{found['class']} {found['probability']:.1%}" for found in result["predictions"])
            print(f"{result['file']}: {best}")
