"""The command line. Each command is one file; torch is imported only when a command runs."""

from __future__ import annotations

import sys

import typer

from pliant.cli import adapt, catalogue, demo, inspect, landscape, plasticity, reproduce, study, use
from pliant.errors import PliantError

app = typer.Typer(
    name="pliant",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Adapt pretrained Vision Transformers to your images.\n\nStart with [bold]pliant demo[/bold], or "
    "[bold]pliant adapt FOLDER[/bold] where FOLDER holds one folder of images a class.",
)
app.command("adapt")(adapt.adapt)
app.command("evaluate")(use.evaluate)
app.command("predict")(use.predict)
app.command("inspect")(inspect.inspect)
app.command("plasticity")(plasticity.plasticity)
app.command("bounds")(plasticity.bounds)
app.command("landscape")(landscape.landscape)
app.command("models")(catalogue.models)
app.command("data")(catalogue.data)
app.command("demo")(demo.demo)
app.command("compare")(study.compare)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(study.study)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from pliant import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line: a user's mistake is one line on standard error and exit code 2, never a traceback."""
    try:
        app(standalone_mode=True)
    except PliantError as error:
        print(f"pliant: {error}", file=sys.stderr)
        sys.exit(2)
