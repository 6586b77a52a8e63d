"""`pliant models` and `pliant data`: what can be named."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Option


def models(
    filter: Annotated[str | None, Option(help="Only names that contain this.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Backbones that can be named: the embedded one, and timm's pretrained Vision Transformers.

    [bold]Example[/bold]: pliant models --filter dino
    """
    from pliant.backbone.catalogue import names

    found = [name for name in names() if not filter or filter.lower() in name.lower()]
    if as_json:
        print(json.dumps({"models": found}))
        return
    for name in found:
        print(name)
    if not filter:
        print(
            "\nAlso: org/name of a Vision Transformer on the Hugging Face hub, or a local folder in transformers' layout."
        )


def data(as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False) -> None:
    """Data that can be named, besides folders of images and parquet files.

    [bold]Example[/bold]: pliant data
    """
    from dataclasses import asdict

    from pliant.data import catalogue

    found = catalogue()
    if as_json:
        print(json.dumps({"data": [asdict(source) for source in found]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    rows = [asdict(source) for source in found]
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
