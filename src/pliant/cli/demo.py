"""`pliant demo`: the whole job on what ships with the package."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from pliant.cli.adapt import start


def demo(
    out: Annotated[str | None, Option(help="Run folder (default: a new one in runs/).")] = None,
    method: Annotated[str, Option(help="Any method of `pliant adapt`.")] = "adapter",
    epochs: Annotated[int, Option(min=1, help="Passes over the training images.")] = 8,
) -> None:
    """Adapt the embedded backbone, pretrained on CIFAR-10's photographs, to scikit-learn's handwritten digits.

    [bold]Example[/bold]: pliant demo --out runs/demo
    """
    start(data="digits", model="pico", method=method, epochs=epochs, out=out)
