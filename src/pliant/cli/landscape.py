"""`pliant landscape`: the loss around the path that a component took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pliant.cli.command import resumable

if TYPE_CHECKING:
    from pliant.adapt.landscape import Landscape


def landscape(
    run: Annotated[Path, Argument(help="Folder of a finished run: its data, backbone, seed and settings are used.")],
    component: Annotated[str, Option(help="Part whose path is followed: ln1, mha, ln2, fc1, fc2, or a comma list.")] = "mha",
    beside: Annotated[str, Option(help="Part that is drawn beside it, on the same colour scale; none for one panel.")] = "ln1",
    grid: Annotated[int, Option(min=3, help="Points along each direction.")] = 25,
    images: Annotated[int, Option(min=1, help="Training images that the loss is the mean over.")] = 256,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Map the training loss over the plane of the two main directions of a component's training path.

    The run is made again with the component and the head trained alone, once for each part. All goes to RUN/landscape:
    after Ctrl-C or a kill the same command goes on, and what is there is only drawn again.

    [bold]Examples[/bold]

    pliant landscape runs/demo

    pliant landscape runs/demo --component fc1 --beside ln2 --grid 31

    pliant landscape runs/demo --component ln1,ln2 --beside none --images 1000
    """
    from pliant.adapt.landscape import FOLDER
    from pliant.adapt.landscape import landscape as made
    from pliant.report import landscape_figure

    names = list(dict.fromkeys([component, beside] if beside != "none" else [component]))
    with resumable():
        found = made(run, names, grid, images)
    stem = run / FOLDER / "-".join(name.replace(",", "-") for name in names)
    pictures = [stem.with_name(f"{stem.name}{kind}") for kind in (".svg", ".png")]
    landscape_figure(found, _subject(run), pictures)
    if as_json:
        print(json.dumps({"run": str(run), "landscapes": [_told(each) for each in found],
                          "figures": [str(path) for path in pictures]}))  # fmt: skip
        return
    for each in found:
        print(_sentence(each))
    print(f"figure: {pictures[0]} and {pictures[1].suffix}   tables: {run / FOLDER}")


def _subject(run: Path) -> str:
    from pliant.adapt.job import SUMMARY
    from pliant.files import read_json
    from pliant.report.terms import shortened

    summary = read_json(run / SUMMARY)
    return f"{shortened(Path(summary['model']['name']).name)} on {shortened(summary['data']['spec'])}"


def _told(found: Landscape) -> dict[str, Any]:
    return {
        "component": found.component, "start": found.start, "end": found.end, "lowest": float(found.loss.min()),
        "highest": float(found.loss.max()), "shares": list(found.shares), "images": found.images,
        "test_top1": found.test_top1, "length": _length(found),
    }  # fmt: skip


def _sentence(found: Landscape) -> str:
    first, second = found.shares
    return (
        f"{found.component}: loss {found.start:.4g} at the path's start, {found.end:.4g} at its end; on the plane "
        f"{found.loss.min():.4g} to {found.loss.max():.4g}; {first:.1%} and {second:.1%} of the path's variance in the "
        f"plane, {_length(found):.3g} long"
    )


def _length(found: Landscape) -> float:
    """Of the path as seen in the plane."""
    import numpy as np

    return float(np.hypot(found.path["x"].diff(), found.path["y"].diff()).sum())
