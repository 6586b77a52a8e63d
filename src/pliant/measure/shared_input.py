"""The protocol `shared-input`: norms and linear layers of all blocks are algebra on one input; attention must run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from pliant import anatomy
from pliant.errors import PliantError
from pliant.measure.extents import Extent, watch_inner_norms
from pliant.measure.pairs import paired_up, squared_distances, squared_norms, token_norms
from pliant.measure.parts import (
    COMPONENTS,
    Attention,
    Norm,
    Parts,
    attention_on,
    effective_weight,
    fc2_on,
    parts_of,
)  # fmt: skip
from pliant.measure.protocols import not_finite, ratio
from pliant.measure.statistics import Sample

_CHUNK = 16
"""Images or pairs whose d x d matrices are formed at a time: fewer leave threads idle in the product that follows."""


class SharedInput:
    """Every component of every block on the embedding's output.

    LayerNorms differ by gamma alone: with z the normalised tokens, ||LN(x) - LN(y)||^2 is the sum over features of
    gamma^2 times the squared difference of z. Of linear layers only <W^T W, (x - y)^T (x - y)> matters. So one
    normalisation and one d x d matrix a pair serve all blocks. Anything else (a norm inside FC2) is applied as it is.

    Attributes: as in `InSitu`.
    """

    name = "shared-input"
    series = COMPONENTS

    def __init__(self, model: nn.Module) -> None:
        self.model, self.family = model, anatomy.family_of(model)
        found = self.family.describe(model)
        self.parts = parts_of(model, found)
        self.width = found.width
        self.dtype = next(model.parameters()).dtype
        self.extents = [{name: Extent() for name in COMPONENTS} for _ in self.parts]
        self._norms, self._linear = _Norms(), _Linear(self.width)
        self._direct: list[tuple[int, Callable[[Tensor], Tensor]]] = []
        self._attention: tuple[torch.Size, list[Attention]] = (torch.Size(), [])
        for block, parts in enumerate(self.parts):
            self._sort_out(block, parts)

    def _sort_out(self, block: int, parts: Parts) -> None:
        """Which way each component goes; its place among the series is block * 5 + component."""
        first = block * len(COMPONENTS)
        for offset, name, module in ((0, "LN1", parts.ln1), (2, "LN2", parts.ln2)):
            norm = parts.norms.get(name)
            if norm is None:
                self._direct.append((first + offset, module))
            else:
                self._norms.add(first + offset, norm)
        weights = [effective_weight(layer, self.width, self.dtype) for layer in parts.fc1]
        self._linear.add(first + 3, torch.cat([w for w, _ in weights]), torch.cat([b for _, b in weights]))
        wide = fc2_width(parts)
        if wide < self.width:
            raise PliantError(
                f"{parts.entry.path}: FC2 reads {wide} features, fewer than the {self.width} of a token, so it cannot "
                "be given the embedding; use --protocol in-situ"
            )
        if parts.inner_norm is None:
            weight, bias = effective_weight(parts.fc2, wide, self.dtype)
            self._linear.add(first + 4, weight[:, : self.width], bias)
        else:
            self._direct.append((first + 4, lambda x: fc2_on(parts)(padded(x, wide))))

    def measure(self, tokens: Tensor, shifts: range) -> Sample:
        """Rates of a block of pairs; the first half of `tokens` (2B, n, d) is x, the second y."""
        half = len(tokens) // 2
        size = len(self.parts) * len(COMPONENTS)
        distances, norms = np.empty((size, half, half)), np.empty((size, 2, half))
        for algebra in (self._norms, self._linear):
            algebra.measure(tokens, shifts, distances, norms)
        with closing(self._attentions(tokens)) as attentions:
            for place, apply in chain(self._direct, attentions):
                output = apply(tokens)
                norms[place] = squared_norms(output).reshape(2, half).cpu()
                distances[place] = squared_distances(output[:half], output[half:], shifts)
        self._check(norms)
        self._see(tokens)
        into = squared_distances(tokens[:half], tokens[half:], shifts).numpy()
        inputs = np.broadcast_to(squared_norms(tokens).reshape(1, 2, half).cpu().numpy(), norms.shape)
        return Sample(ratio(distances, into), inputs, norms)

    def _attentions(self, tokens: Tensor):
        if self._attention[0] != tokens.shape:
            self._attention = (tokens.shape, [attention_on(self.model, self.family, p, tokens) for p in self.parts])
        for block, parts in enumerate(self.parts):
            handles = watch_inner_norms(parts, self.extents[block]["MHA"])
            try:
                yield block * len(COMPONENTS) + 1, self._attention[1][block]
            finally:
                for handle in handles:
                    handle.remove()

    def _check(self, norms: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(norms).all(axis=(1, 2)))
        if len(bad):
            block, component = divmod(int(bad[0]), len(COMPONENTS))
            raise not_finite(block, f"{COMPONENTS[component]} out")

    def _see(self, tokens: Tensor) -> None:
        norms = token_norms(tokens)
        smallest = {group.norm.kind: float(group.norm.spread(tokens).min()) for group in self._norms.groups}
        for parts, extents in zip(self.parts, self.extents, strict=True):
            for extent in extents.values():
                extent.see(norms)
            for name in ("LN1", "LN2"):
                if (norm := parts.norms.get(name)) is not None:
                    extents[name].see_smallest(smallest[norm.kind])
            if parts.inner_norm is not None:
                extents["FC2"].see_spread(parts.norms.get("FC2"), padded(tokens, fc2_width(parts)))


def fc2_width(parts: Parts) -> int:
    """Number of features that FC2 reads."""
    layer = parts.fc2
    width = getattr(layer, "in_features", None)
    return int(width if width is not None else layer.weight.shape[0])  # type: ignore[union-attr, arg-type, index]


def padded(x: Tensor, width: int) -> Tensor:
    """Tokens with zeros up to `width` features."""
    return nn.functional.pad(x, (0, width - x.shape[-1]))


@dataclass
class _Group:
    """Norms that share their normalisation."""

    norm: Norm
    places: list[int]
    gammas: list[Tensor]
    betas: list[Tensor]


class _Norms:
    def __init__(self) -> None:
        self.groups: list[_Group] = []

    def add(self, place: int, norm: Norm) -> None:
        for group in self.groups:
            if group.norm.kind == norm.kind:
                break
        else:
            group = _Group(norm, [], [], [])
            self.groups.append(group)
        group.places.append(place)
        group.gammas.append(norm.gamma.double().cpu())
        group.betas.append(norm.beta.double().cpu())

    def measure(self, tokens: Tensor, shifts: range, distances: np.ndarray, norms: np.ndarray) -> None:
        half = len(tokens) // 2
        for group in self.groups:
            gamma, beta = torch.stack(group.gammas, dim=1), torch.stack(group.betas, dim=1)  # (d, norms)
            z = group.norm.normalised(tokens)
            squares, sums = _over_tokens(z.square()), _over_tokens(z)
            squared = squares @ gamma.square() + 2 * sums @ (gamma * beta) + z.shape[1] * beta.square().sum(0)
            norms[group.places] = squared.T.reshape(-1, 2, half)
            between = partial(_between, gamma.square())
            distances[group.places] = paired_up(between, z[:half], z[half:], shifts)


def _between(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of normalised tokens, features weighted: (P, n, d) to (P, norms)."""
    return _over_tokens((a - b).square()) @ weight


def _over_tokens(x: Tensor) -> Tensor:
    """Sum over tokens in float64, (B, n, d) to (B, d)."""
    return x.sum(1, dtype=torch.float64).cpu()


class _Linear:
    def __init__(self, width: int) -> None:
        self.width = width
        self.places: list[int] = []
        self.grams: list[Tensor] = []
        self._joined: Tensor | None = None
        self.crossed: list[Tensor] = []
        self.constant: list[Tensor] = []

    def add(self, place: int, weight: Tensor, bias: Tensor) -> None:
        self.places.append(place)
        self.grams.append((weight.T @ weight).flatten())
        self.crossed.append(weight.T @ bias)
        self.constant.append(bias.double().square().sum().cpu())

    def measure(self, tokens: Tensor, shifts: range, distances: np.ndarray, norms: np.ndarray) -> None:
        half = len(tokens) // 2
        if self._joined is None:
            self._joined = torch.stack(self.grams, dim=1)  # (d d, layers)
            self.grams.clear()
        linear = _over_tokens(tokens) @ torch.stack(self.crossed, dim=1).double().cpu()
        constant = tokens.shape[1] * torch.stack(self.constant)
        norms[self.places] = (self._quadratic(tokens) + 2 * linear + constant).T.reshape(-1, 2, half)
        distances[self.places] = paired_up(lambda a, b: self._quadratic(a - b), tokens[:half], tokens[half:], shifts)

    def _quadratic(self, x: Tensor) -> Tensor:
        """<W^T W, x^T x> of every layer, (B, n, d) to (B, layers)."""
        assert self._joined is not None
        pieces = [(part.mT @ part).flatten(1) @ self._joined for part in x.split(_CHUNK)]
        return torch.cat(pieces).double().cpu()
