"""`pliant inspect`: where a model's parts live, and what each method would train."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Argument, Option

from pliant.errors import PliantError
from pliant.progress import say

_METHODS = ("head", "ln1", "ln2", "mha", "fc1", "fc2", "adapter", "lora", "full")


def inspect(
    model: Annotated[str, Argument(help="pico, a timm name, org/name on the hub, or a local folder.")],
    img_size: Annotated[int | None, Option(help="Side of the input in pixels.")] = None,
    classes: Annotated[int, Option(min=2, help="Width of the head.")] = 10,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Anatomy and parameter counts of a model; needs no weights.

    [bold]Example[/bold]: pliant inspect vit_small_patch14_dinov2
    """
    import logging

    from pliant import anatomy, backbone
    from pliant.methods import plan

    logging.disable(logging.WARNING)
    built = backbone.load(model, num_classes=classes, img_size=img_size, random_init=True)
    found = anatomy.find(built)
    plans = {}
    for name in _METHODS:
        try:
            plans[name] = plan(built, name)
        except PliantError as problem:  # LoRA cannot reach every attention
            say(f"note: {name}: {problem}")
    if as_json:
        from dataclasses import asdict

        trained = {name: made.trained_parameters for name, made in plans.items()}
        rows = [asdict(row) for row in plans["head"].rows]
        print(json.dumps({"anatomy": asdict(found), "parts": rows, "trained": trained}))
        return
    _print(model, backbone.identity_of(built).img_size, found, plans)


def _print(name: str, img_size: int, found, plans) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    total = sum(row.parameters for row in plans["head"].rows)
    console.print(f"[bold]{name}[/bold]: {found.family}, {found.depth} blocks, width {found.width}, {found.heads} heads, "
                  f"{img_size} px, {total:,} parameters")  # fmt: skip
    parts = Table(title="anatomy", title_justify="left")
    for column in ("part", "where", "parameters", "share"):
        parts.add_column(column, justify="right" if column in ("parameters", "share") else "left")
    for row in plans["head"].rows:
        where = (
            ", ".join(found.paths(row.part, *([0] if row.blocks else [])))
            if row.part != "other"
            else "LayerScale and the like"
        )
        suffix = " (first block)" if row.blocks and row.part != "other" else ""
        parts.add_row(row.part, where + suffix, f"{row.parameters:,}", f"{row.share:.2%}")
    console.print(parts)
    methods = Table(title="what each method trains", title_justify="left")
    for column in ("method", "trained parameters", "share", "frozen prefix"):
        methods.add_column(column, justify="right" if column in ("trained parameters", "share") else "left")
    for method, made in plans.items():
        whole = sum(row.parameters for row in made.rows)
        prefix = f"{made.prefix[0]} to {made.prefix[-1]}" if len(made.prefix) > 1 else "".join(made.prefix) or "nothing"
        methods.add_row(method, f"{made.trained_parameters:,}", f"{made.trained_parameters / whole:.2%}", prefix)
    console.print(methods)
