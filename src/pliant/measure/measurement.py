"""Measuring plasticity: images in, pair by pair, until the figures are precise enough."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pliant import anatomy
from pliant.errors import PliantError
from pliant.interrupt import Interrupt
from pliant.measure.bounds import block_bounds, check_radius
from pliant.measure.extents import Extent
from pliant.measure.jacobian import local_norms
from pliant.measure.pairs import ESTIMATORS, blocks_of_pairs, shifts_of, squared_distances, taken_pairs
from pliant.measure.parts import COMPONENTS, attention_on, parts_of
from pliant.measure.protocols import InSitu
from pliant.measure.result import COLUMNS, COMPONENT, SUBLAYER, Plasticity
from pliant.measure.shared_input import SharedInput
from pliant.measure.statistics import Moments, Sample

PROTOCOLS: dict[str, Any] = {"in-situ": InSitu, "shared-input": SharedInput}
LEAST = 32
"""Images a side before a precision may be believed: the deviation itself is uncertain below."""
LOCAL = 4

Progress = Callable[[str], None]


def plasticity(
    model: nn.Module, x_batches: Iterable[Any], y_batches: Iterable[Any], *, protocol: str = "in-situ",
    estimator: str = "cyclic", precision: float | None = None, block: int | None = None, images: int | None = None,
    local: int = LOCAL, radius: str | float = "max", progress: Progress | None = None,
) -> Plasticity:  # fmt: skip
    """Measure the plasticity of every component of every block.

    Args:
        model: any model that the anatomy knows; measured in eval mode, half-precision ones in float32. Unchanged.
        x_batches, y_batches: batches of inputs from the two distributions (tensors, or what data loaders give), on the
            CPU or the model's device. A pair takes one input of either; inputs of one side should be distinct.
        protocol: `in-situ`, `shared-input` or `both`.
        estimator: `paired` (x_i with y_i), `cyclic` (each with 4 of its block), `all-pairs` (all pairs of a block).
        precision: stop as soon as the relative half-width of the 95 % interval of every component's mean is at most
            this; None measures all that is given.
        block: inputs of either side that are measured together; None takes the batches as they come.
        images: at most so many inputs a side.
        local: inputs a side at which the local figure is computed; 0 leaves it out.
        radius: of the ball in attention's bound: `max`, `mean`, or a number.
        progress: is given a line on how far it is, after each block.

    Raises:
        PliantError: an option out of range, a model without the needed parts, fewer than two inputs a side, inputs of
            one side that are all equal, values that are not finite, padded sequences.
    """
    names = _protocols(protocol)
    _check(estimator, precision, block, images, local, radius)
    with prepared(model) as ready, Interrupt() as interrupt, torch.no_grad():
        run = _Run(ready, names, estimator, precision, images, local)
        for x, y in blocks_of_pairs(x_batches, y_batches, block):
            run.add(x, y)
            if progress is not None:
                progress(run.state())
            if interrupt.asked or run.enough():
                break
        return run.result(stopped=interrupt.asked, radius=radius, progress=progress)


def _protocols(protocol: str) -> list[str]:
    names = list(PROTOCOLS) if protocol == "both" else [protocol]
    if names[0] not in PROTOCOLS:
        raise PliantError(f"--protocol {protocol}: unknown; give {', '.join(PROTOCOLS)} or both")
    return names


def _check(estimator: str, precision: float | None, block: int | None, images: int | None, local: int, radius) -> None:
    if estimator not in ESTIMATORS:
        raise PliantError(f"--estimator {estimator}: unknown; give {', '.join(ESTIMATORS)}")
    if precision is not None and not 0 < precision < 1:
        raise PliantError(f"--precision {precision:g}: must lie between 0 and 1, such as 0.01 for 1 %")
    for option, value, least in (("--block", block, 1), ("--images", images, 2), ("--local", local, 0)):
        if value is not None and value < least:
            raise PliantError(f"{option} {value}: must be at least {least}")
    check_radius(radius)


@contextmanager
def prepared(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode and at least float32: itself, with its modes put back afterwards, or a copy."""
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        yield copy.deepcopy(model).float().eval()
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


class _Run:
    """One measurement under way."""

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        estimator: str,
        precision: float | None,
        images: int | None,
        local: int,
    ) -> None:
        self.model, self.family, self.found = model, anatomy.family_of(model), anatomy.find(model)
        self.device = next(model.parameters()).device
        self.protocols = [PROTOCOLS[name](model) for name in names]
        self.moments = [Moments(self.found.depth * len(each.series)) for each in self.protocols]
        self.estimator, self.precision, self.most, self.local = estimator, precision, images, local
        self.dtype = next(model.parameters()).dtype
        self.taken = 0
        self.single: list[np.ndarray] = []
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.tokens: Tensor | None = None
        self._first: list[Tensor] = []
        self._varied = [False, False]

    def add(self, x: Tensor, y: Tensor) -> None:
        """Measure one block of pairs."""
        if self.most is not None:
            x, y = x[: self.most - self.taken], y[: self.most - self.taken]
        if x.shape[1:] != y.shape[1:]:
            raise PliantError(f"inputs of the two sides differ in shape: {tuple(x.shape[1:])} and {tuple(y.shape[1:])}")
        self._watch(x, y)
        if sum(len(each) for each, _ in self.kept) < self.local:
            self.kept.append((x[: self.local], y[: self.local]))
        self.taken += len(x)
        tokens = self._embedded(x, y)
        self.tokens = tokens[:1]
        shifts = shifts_of(self.estimator, len(x))
        distances = squared_distances(tokens[: len(x)], tokens[len(x) :], shifts).numpy()
        taken = taken_pairs(shifts, len(x))
        for place, (protocol, moments) in enumerate(zip(self.protocols, self.moments, strict=True)):
            sample = protocol.measure(tokens, shifts)
            self._refuse_dead(protocol, sample, distances > 0)
            counts = moments.add(sample, taken)
            if place == 0 and self.estimator == "paired":
                by_block = sample.rates.reshape(self.found.depth, len(protocol.series), *counts.shape)
                self.single.append(by_block[:, : len(COMPONENTS), counts].astype(np.float32))

    def _embedded(self, x: Tensor, y: Tensor) -> Tensor:
        """The embedding's output for both sides. Raises PliantError where the inputs are none for this model."""
        inputs = torch.cat([x, y]).to(self.device)
        inputs = inputs.to(self.dtype) if inputs.is_floating_point() else inputs
        try:
            tokens = self.family.embed(self.model, inputs)
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError) as error:
            kind = f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise PliantError(
                f"a batch of {kind} does not fit {type(self.model).__name__} ({first}); images are floats "
                "(B, 3, height, width), preprocessed as the model wants them; text is token ids (B, n)"
            ) from error
        if not bool(tokens.isfinite().all()):
            raise PliantError(
                "the embedding puts out values that are not finite: the weights or the inputs are damaged"
            )
        return tokens

    def _refuse_dead(self, protocol: Any, sample: Sample, differ: np.ndarray) -> None:
        """Raises PliantError where different images become the same on their way to a component."""
        dead = np.isnan(sample.rates[:, differ]).any(axis=1)
        if dead.any():
            block, place = divmod(int(dead.argmax()), len(protocol.series))
            raise PliantError(
                f"block {block}: {protocol.series[place]} is given the same input for different images, so it has no "
                "rate; a part before it is dead (weights of zero?)"
            )

    def _watch(self, *sides: Tensor) -> None:
        """Note whether the inputs of a side differ at all."""
        if not self._first:
            self._first = [side[:1].clone() for side in sides]
        for index, side in enumerate(sides):
            self._varied[index] = self._varied[index] or bool((side != self._first[index]).any())

    def enough(self) -> bool:
        images = int(self.moments[0].images.min())
        if self.most is not None and self.taken >= self.most:
            return True
        return self.precision is not None and images >= LEAST and self.reached() <= self.precision

    def reached(self) -> float:
        """The largest relative half-width over components and protocols."""
        worst = []
        for protocol, moments in zip(self.protocols, self.moments, strict=True):
            if not moments.pairs:
                return float("nan")
            value, half = moments.mean_interval(over_blocks(protocol.series, self.found.depth)[: len(COMPONENTS)])
            # A component that puts out nothing is known exactly.
            worst.append(float(np.max(np.divide(half, value, out=np.zeros_like(half), where=value > 0))))
        return float(np.max(worst))

    def state(self) -> str:
        images, reached = int(self.moments[0].images.min()), self.reached()
        line = f"{images} images a side, intervals of {100 * reached:.2g} % or less"
        if self.precision is not None and reached > self.precision:
            line += f" (wanted {100 * self.precision:.2g} %, about {round(images * (reached / self.precision) ** 2):,} images)"
        return line

    def result(self, stopped: bool, radius: str | float, progress: Progress | None) -> Plasticity:
        self._refuse_too_little()
        if progress is not None and self.local:
            progress("local figures at data points")
        local = None if stopped else self._local()
        rows, differences = [], []
        for protocol, moments in zip(self.protocols, self.moments, strict=True):
            bounds = self._bounds(protocol, radius)
            figures = local if protocol.name == "in-situ" else None
            rows.append(_rows(protocol, moments, self.found.depth, bounds, figures))
            differences.append(_differences(protocol, moments, self.found.depth))
        first = self.moments[0]
        summary = {
            "protocols": [protocol.name for protocol in self.protocols],
            "estimator": self.estimator,
            "images": int(first.images.min()),
            "pairs": first.pairs,
            "dropped": first.dropped,
            "precision": self.precision,
            "reached": self.reached(),
            "stopped": stopped,
            "family": self.found.family,
            "depth": self.found.depth,
            "width": self.found.width,
            "tokens": int(self.tokens.shape[1]) if self.tokens is not None else 0,
            "radius": radius,
            "local_images": 0 if local is None else local.shape[-1],
        }
        single = np.concatenate(self.single, axis=2) if self.single else None
        return Plasticity(
            pd.concat(rows, ignore_index=True), pd.concat(differences, ignore_index=True), summary, single
        )

    def _refuse_too_little(self) -> None:
        first = self.moments[0]
        seen = int(first.images.min())
        if seen < 2 and first.dropped:
            raise PliantError("all pairs are identical: both sides hold the same inputs; give two different data sets")
        if seen < 2:
            raise PliantError(f"{seen} images a side were measured, and two are the least; give more images")
        for side, varied in zip(("pretraining", "downstream"), self._varied, strict=True):
            if not varied:
                raise PliantError(f"all {side} images are equal; give images that differ")

    def _local(self) -> np.ndarray | None:
        """(blocks, components, images), or None where it was not asked for."""
        if not self.local:
            return None
        x, y = (torch.cat(side)[: self.local] for side in zip(*self.kept, strict=True))
        tokens = self._embedded(x, y)
        return np.stack(list(local_norms(self.model, tokens)))

    def _bounds(self, protocol: Any, radius: str | float) -> np.ndarray:
        """(blocks, components)."""
        assert self.tokens is not None
        columns = self.found.width if protocol.name == "shared-input" else None
        rotary = attention_on(self.model, self.family, protocol.parts[0], self.tokens).rotary
        found = [
            block_bounds(self.model, self.found, parts, extents, radius=radius, rotary=rotary, first_columns=columns)
            for parts, extents in zip(protocol.parts, protocol.extents, strict=True)
        ]
        return np.array([[each[name] for name in COMPONENTS] for each in found])


@torch.no_grad()
def weight_bounds(model: nn.Module, inputs: Tensor, radius: str | float) -> pd.DataFrame:
    """What the weights alone tell: bounds of linear layers, and of attention on tokens at most `radius` long (a number).

    Args:
        inputs: any input of the shape that is meant (1, ...); it sets the number of tokens.

    Returns:
        Columns block, component, bound; NaN where data is needed.
    """
    check_radius(radius)
    family = anatomy.family_of(model)
    found = family.describe(model)
    tokens = family.embed(model, inputs)
    extents = {name: Extent(sequence=tokens.shape[1]) for name in COMPONENTS}
    blocks = parts_of(model, found)
    rotary = attention_on(model, family, blocks[0], tokens).rotary
    rows = [
        {"block": index, "component": name, "bound": bound}
        for index, parts in enumerate(blocks)
        for name, bound in block_bounds(model, found, parts, extents, radius=radius, rotary=rotary).items()
    ]
    return pd.DataFrame(rows)


def over_blocks(series: tuple[str, ...], depth: int) -> np.ndarray:
    """Weights (S, depth * S) of the mean over blocks of each of the S series of a block."""
    return np.tile(np.eye(len(series)), depth) / depth


def _rows(protocol: Any, moments: Moments, depth: int, bounds: np.ndarray, local: np.ndarray | None) -> pd.DataFrame:
    """The rows of one protocol: means over blocks, then every block."""
    size = len(protocol.series)
    missing = np.full((depth, size - len(COMPONENTS)), np.nan)
    local_means = np.full((depth, len(COMPONENTS)), np.nan) if local is None else local.mean(axis=2)
    single = {
        "largest": moments.largest.reshape(depth, size),
        "local": np.hstack([local_means, missing]),
        "bound": np.hstack([bounds, missing]),
    }
    frames = []
    for weights, blocks in ((over_blocks(protocol.series, depth), [pd.NA]), (np.eye(depth * size), list(range(depth)))):
        mean, half = moments.mean_interval(weights)
        elasticity, elasticity_half = moments.elasticity_interval(weights)
        columns = {
            "mean": mean, "low": mean - half, "high": mean + half, "std": moments.deviation(weights),
            "elasticity": elasticity, "elasticity_low": elasticity - elasticity_half,
            "elasticity_high": elasticity + elasticity_half,
            **{name: values.mean(axis=0) if len(blocks) == 1 and blocks[0] is pd.NA else values.flatten()
               for name, values in single.items()},
        }  # fmt: skip
        frame = pd.DataFrame(columns)
        frame["block"] = pd.array(np.repeat(np.array(blocks, dtype=object), size), dtype="Int64")
        frame["component"] = list(protocol.series) * len(blocks)
        frames.append(frame)
    rows = pd.concat(frames, ignore_index=True)
    rows["kind"] = np.where(rows["component"].isin(COMPONENTS), COMPONENT, SUBLAYER)
    rows["protocol"], rows["images"], rows["pairs"] = protocol.name, int(moments.images.min()), moments.pairs
    return rows[["block", "kind", *COLUMNS]]


def _differences(protocol: Any, moments: Moments, depth: int) -> pd.DataFrame:
    weights = over_blocks(protocol.series, depth)
    pairs = list(combinations(range(len(COMPONENTS)), 2))
    value, half = moments.mean_interval(np.array([weights[a] - weights[b] for a, b in pairs]))
    return pd.DataFrame({
        "protocol": protocol.name,
        "first": [COMPONENTS[a] for a, _ in pairs], "second": [COMPONENTS[b] for _, b in pairs],
        "difference": value, "low": value - half, "high": value + half,
    })  # fmt: skip
