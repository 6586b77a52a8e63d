"""From values to a page that stands alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.files import write_atomic
from pliant.report import words

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("pliant", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=words.percent, points=words.points, whole=words.whole, decimal=words.decimal, compact=words.compact,
        rate=words.rate, size=words.size, duration=words.duration,
    )  # fmt: skip
    return environment


def render(template: str, **values: Any) -> str:
    """The page of one of the templates beside this module. Names and paths are anybody's: all of them are escaped."""
    return _environment().get_template(template).render(**values)


def write_page(path: Path, html: str) -> Path:
    # A file name that is not valid UTF-8 reaches us with surrogates, which no encoding takes.
    data = html.encode("utf-8", errors="replace")
    write_atomic(path, lambda temporary: temporary.write_bytes(data))
    return path
