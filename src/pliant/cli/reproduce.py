"""`pliant reproduce`: a paper's study at a scale of your choice, and what it says of the paper's claims."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pliant.cli import study as studies
from pliant.cli.command import command, resumable
from pliant.errors import PliantError

if TYPE_CHECKING:
    import pandas as pd

    from pliant.report.claims_document import Document
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import Run
    from pliant.study.reproduction import Filled


def reproduce(
    paper: Annotated[str, Argument(help="nonsmooth (arXiv 2602.06883) or adaptertune (arXiv 2603.14706).")],
    scale: Annotated[str, Option(help="laptop (pico, about an hour), vits (a ViT-S of yours, half an hour) or paper (the whole protocol, for GPUs).")] = "laptop",
    data: Annotated[str | None, Option(help="Where CIFAR-10 is, for it and its corruptions (default: the cifar10 that is found by name).")] = None,
    pretrain: Annotated[str | None, Option(help="Images that the backbone was pretrained on, to measure plasticity against (default of pico: CIFAR-10).")] = None,
    model: Annotated[str | None, Option(help="The backbone of --scale vits.")] = None,
    weights: Annotated[str | None, Option(help="Local safetensors file with that backbone's weights.")] = None,
    img_size: Annotated[int | None, Option(help="Side of its input in pixels.")] = None,
    out: Annotated[Path | None, Option(help="Folder of the study (default: studies/reproduce-PAPER-SCALE).")] = None,
    workers: Annotated[int, studies._WORKERS] = 1,
    ray: Annotated[str | None, studies._RAY] = None,
    retry: Annotated[bool, studies._RETRY] = False,
    plan: Annotated[bool, Option("--plan", help="Say how many runs there are, and run none.")] = False,
    as_json: Annotated[bool, studies._JSON] = False,
) -> None:  # fmt: skip
    """Run a paper's study, and judge its claims; after Ctrl-C the same command goes on.

    The folder is one of `pliant study`: status, report and the page are those of any study.

    [bold]Examples[/bold]

    pliant reproduce nonsmooth --scale laptop --workers 2

    pliant reproduce adaptertune --scale laptop --data photos/cifar10 --workers 2

    pliant reproduce nonsmooth --scale vits --weights dinov2.safetensors --pretrain imagenet.parquet

    pliant reproduce nonsmooth --scale paper --plan
    """
    from pliant.study import reproduction
    from pliant.study.folder import StudyFolder
    from pliant.study.grid import runs_of

    source = f"reproduce {paper} --scale {scale}"
    given = {"model": model, "weights": weights, "img_size": img_size}
    filled = reproduction.fill(
        reproduction.protocol(paper, scale), source, data=data, pretrain=pretrain, given=given
    )  # fmt: skip
    folder = StudyFolder(out or Path("studies") / f"reproduce-{paper}-{scale}")
    if plan:
        _show_plan(filled, folder, runs_of(filled.study.absolute()), as_json)
        return
    named = [pretrain] if pretrain else []  # what was asked for must be there, not only what is needed
    reproduction.check_data([*reproduction.data_of(filled.study.absolute()), *named])
    folder, found, runs = studies.carry_out(filled.study, folder.path, studies.maker(workers, ray), retry)
    measurements, notes = _measured(filled, folder, runs)
    made = studies.reported(
        folder, found, runs, title=f"{paper}, {scale}", measurements=measurements, notes=[*filled.notes, *notes],
        document=_document(paper, filled),
    )  # fmt: skip
    studies.show_report(folder, made, runs, as_json)
    if not as_json:
        print(f"claims: {folder.path / studies.PAGE}/claims.md")
    studies.exit_if_failed(folder, runs)


def _document(paper: str, filled: Filled) -> Document:
    from pliant.report.claims_document import Document

    return Document(paper, filled.protocol.says, date.today().isoformat(), filled.protocol.differs)


def _measured(filled: Filled, folder: StudyFolder, runs: Sequence[Run]) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The backbones' plasticity, if it can be measured here, and what to say where it cannot."""
    from pliant.study.backbones import measured

    if filled.measure is None:
        return {}, []
    try:
        with resumable():
            return {"plasticity": measured(folder.path / "plasticity", filled.measurements(runs), command())}, []
    except PliantError as error:
        return {}, [f"plasticity was not measured: {error}"]


def _show_plan(filled: Filled, folder: StudyFolder, runs: Sequence[Run], as_json: bool) -> None:
    done = sum(map(folder.done, runs))
    counts = {name: Counter(str(getattr(run.settings, name)) for run in runs) for name in ("model", "data", "method")}
    if as_json:
        print(
            json.dumps(
                {"runs": len(runs), "done": done, **counts, "notes": filled.notes, "differs": filled.protocol.differs}
            )
        )
        return
    print(f"{filled.protocol.says}\n")
    print(f"{len(runs):,} runs, {done:,} of them done in {folder.path}")
    for name, count in counts.items():
        print(f"{name + ':':8}{', '.join(f'{value} {number}' for value, number in count.items())}")
    for note in (*filled.notes, *filled.protocol.differs):
        print(f"- {note}")
