"""The two protocols: what every component is given, and what it makes of the distances there.

`in-situ` gives each component the input that it has in the forward pass. `shared-input` gives every component of every
block the output of the embedding, padded with zeros for FC2, as the published code of arXiv 2602.06883 does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pliant import anatomy
from pliant.errors import PliantError
from pliant.measure.extents import Extent, watch_inner_norms
from pliant.measure.pairs import squared_distances, token_norms
from pliant.measure.parts import COMPONENTS, Parts, first_tensor, parts_of, tokens_of
from pliant.measure.statistics import Sample

SUBLAYERS = ("LN1 to MHA", "LN2 to FC2")
"""Attention with its norm, and the MLP with its norm and activation: what the residual stream feels."""


class InSitu:
    """One forward pass gives everything: hooks reduce what passes by to norms and distances, and keep none of it.

    Attributes:
        series: names of what is measured in each block, in order.
        extents: by block and component.
    """

    name = "in-situ"
    series = (*COMPONENTS, *SUBLAYERS)

    def __init__(self, model: nn.Module) -> None:
        self.stages = anatomy.stages(model)
        found = anatomy.find(model)
        self.parts = parts_of(model, found)
        self.extents = [{name: Extent() for name in COMPONENTS} for _ in self.parts]

    def measure(self, tokens: Tensor, shifts: range) -> Sample:
        """Rates of a block of pairs; the first half of `tokens` (2B, n, d) is x, the second y."""
        samples = []
        for stage in self.stages[1:]:
            kind, _, number = stage.name.partition(".")
            if kind == "block":
                reader = _Reader(int(number), self.parts[int(number)], self.extents[int(number)], shifts)
                tokens = reader.run(stage.run, tokens)
                samples.append(reader.sample())
            elif kind == "after":
                tokens = stage.run(tokens)
        return joined(samples)


def joined(samples: list[Sample]) -> Sample:
    return Sample(*(np.concatenate([getattr(s, name) for s in samples]) for name in ("rates", "inputs", "outputs")))


_NOTHING = (None, 0, torch.empty(0), np.empty(0))


class _Reader:
    """Reads norms and distances at the ends of one block's components while it runs."""

    def __init__(self, index: int, parts: Parts, extents: dict[str, Extent], shifts: range) -> None:
        self.index, self.parts, self.extents, self.shifts = index, parts, extents, shifts
        self.distances: dict[str, np.ndarray] = {}
        self.norms: dict[str, np.ndarray] = {}
        self.reads: Counter[str] = Counter()
        self._last: tuple[Tensor | None, int, Tensor, np.ndarray] = _NOTHING

    def run(self, block: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        handles: list[RemovableHandle] = []
        try:
            handles += watch_inner_norms(self.parts, self.extents["MHA"])
            for name in COMPONENTS:
                first = self.parts.first[name]
                handles.append(first.register_forward_pre_hook(self._before(name), with_kwargs=True))
                handles += [module.register_forward_hook(self._after(name)) for module in self.parts.last[name]]
            return block(tokens)
        finally:
            self._last = _NOTHING
            for handle in handles:
                handle.remove()

    def _before(self, name: str):
        def read(_, arguments, options) -> None:
            x = tokens_of(arguments, options)
            self.extents[name].see(self._read(f"{name} in", x))
            self.extents[name].see_spread(self.parts.norms.get(name), x)

        return read

    def _after(self, name: str):
        def read(_, arguments, output) -> None:  # what a hook returns would take the output's place
            self._read(f"{name} out", first_tensor(output))

        return read

    def _read(self, point: str, x: Tensor) -> Tensor:
        """Note norms and distances of x (2B, n, width) at a point; returns the norms of its tokens (2B, n)."""
        # What one component puts out is often what the next one takes in, unless it was changed in place.
        if x is not self._last[0] or x._version != self._last[1]:
            half = len(x) // 2
            norms = token_norms(x)
            if not bool(norms.isfinite().all()):
                raise not_finite(self.index, point)
            self._last = (x, x._version, norms, squared_distances(x[:half], x[half:], self.shifts).numpy())
        *_, norms, distances = self._last
        self.reads[point] += 1
        squares = norms.square().sum(1).reshape(2, -1).cpu().numpy()
        # Gate and value are two outputs of one FC1: their squares add up.
        self.norms[point] = self.norms.get(point, 0.0) + squares
        self.distances[point] = self.distances.get(point, 0.0) + distances
        return norms

    def sample(self) -> Sample:
        for name in COMPONENTS:
            for end, wanted in (("in", 1), ("out", len(self.parts.last[name]))):
                if self.reads[f"{name} {end}"] != wanted:
                    raise PliantError(
                        f"block {self.index} ({self.parts.entry.path}): what its anatomy names as {name} is called "
                        f"{self.reads[f'{name} {end}']} times and not {wanted}; it cannot be measured in situ"
                    )
        ends = [(f"{name} in", f"{name} out") for name in COMPONENTS] + self._sublayers()
        rates = [ratio(self.distances[out], self.distances[into]) for into, out in ends]
        inputs, outputs = ([self.norms[end[i]] for end in ends] for i in (0, 1))
        return Sample(np.stack(rates), np.stack(inputs), np.stack(outputs))

    def _sublayers(self) -> list[tuple[str, str]]:
        """Where SUBLAYERS begin and end: their norms come first or, in post-norm blocks, last."""
        order = list(self.norms)
        if order.index("LN1 in") < order.index("MHA in"):
            return [("LN1 in", "MHA out"), ("LN2 in", "FC2 out")]
        return [("MHA in", "LN1 out"), ("FC1 in", "LN2 out")]


def ratio(out: np.ndarray, into: np.ndarray) -> np.ndarray:
    """Square root of a ratio of squared distances; NaN where there is no distance or no pair."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(into > 0, np.sqrt(out / into), np.nan)


def not_finite(block: int, point: str) -> PliantError:
    name, _, end = point.partition(" ")
    which = "input" if end == "in" else "output"
    return PliantError(
        f"block {block}: the {which} of {name} has values that are not finite; the weights are damaged or the "
        "activations overflow, look at this block first"
    )
