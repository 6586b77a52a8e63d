"""What the measured things are called, and what a reader has to know of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pliant.report.words import percent, whole

RATE = "rate ||f(x) - f(y)|| / ||x - y||"
ELASTICITY = "relative change out / relative change in"
SOURCE = "arXiv 2602.06883, section 2"

COMPONENTS = {
    "LN1": "norm before attention",
    "MHA": "attention with its four projections",
    "LN2": "norm before the MLP",
    "FC1": "first linear layer of the MLP",
    "FC2": "second linear layer of the MLP",
    "LN1 to MHA": "attention with its norm",
    "LN2 to FC2": "MLP with its norm and activation",
}
PROTOCOLS = {
    "in-situ": (
        "In situ",
        "Every component is given the input that it has in the forward pass, and distances are taken there.",
    ),
    "shared-input": (
        "Shared input",
        "Every component of every block is given the same input, the output of the embedding (padded with zeros for FC2). "
        "The published code measures so.",
    ),
}
ESTIMATORS = {
    "paired": "the i-th image of one side with the i-th of the other",
    "cyclic": "each image with four of the other side",
    "all-pairs": "every image of a block with every image of the other side",
}
RADII = {
    "max": "the largest token norm seen, which makes it a true bound",
    "mean": "the mean token norm, as the paper plots it: larger tokens may exceed it",
}


def protocol_title(protocol: str) -> str:
    return PROTOCOLS.get(protocol, (protocol, ""))[0]


def estimator(summary: Mapping[str, Any]) -> str:
    name = summary.get("estimator")
    return f"{name}: {ESTIMATORS[name]}" if name in ESTIMATORS else str(name or "not stated")


def radius(summary: Mapping[str, Any]) -> str:
    value = summary.get("radius")
    return RADII.get(str(value), f"{value}, as given" if value is not None else "not stated")


def model(summary: Mapping[str, Any]) -> str:
    return str(summary.get("model") or summary.get("family") or "a model")


def data(summary: Mapping[str, Any]) -> str:
    """The two sides by the ends of their paths, or nothing where they were not named."""
    sides = [str(summary[name]) for name in ("pretrain", "downstream") if summary.get(name)]
    return " against ".join(shortened("/".join(side.rstrip("/").split("/")[-2:])) for side in sides)


def sample(summary: Mapping[str, Any]) -> str:
    return f"{whole(summary.get('images'))} images a side, {whole(summary.get('pairs'))} pairs"


def precision(summary: Mapping[str, Any]) -> str:
    """Whether the wanted precision was reached, and what ended the measurement."""
    wanted, reached = summary.get("precision"), summary.get("reached")
    known = isinstance(reached, float) and math.isfinite(reached)
    width = (
        f"the widest interval of a component is ±{percent(reached, 2)} of its mean"
        if known
        else "how wide the intervals are was not stated"
    )
    stopped = bool(summary.get("stopped"))
    if not wanted:
        return f"{'It was stopped by hand' if stopped else 'Everything given was measured'}; {width}."
    if known and reached <= wanted:
        return f"The wanted ±{percent(wanted, 2)} was reached: {width}."
    end = "the measurement was stopped by hand" if stopped else "the images ran out"
    return f"The wanted ±{percent(wanted, 2)} was not reached: {end}, and {width}."


def shortened(name: str, most: int = 44) -> str:
    """A name on one line; of a long one the end, which says more than the beginning."""
    line = " ".join(name.split())
    return line if len(line) <= most else f"…{line[1 - most :]}"
