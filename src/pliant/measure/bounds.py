"""Upper bounds on the rate of every component over tokens in a ball (arXiv 2602.06883, section 3).

A bound holds for the tokens that were considered: their largest norm is the radius, their smallest deviation what a
norm divides by.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pliant.anatomy import Anatomy
from pliant.errors import PliantError
from pliant.measure.extents import Extent
from pliant.measure.parts import INNER_NORMS, Norm, Parts, effective_weight
from pliant.measure.shared_input import fc2_width

RADII = ("max", "mean")


def check_radius(radius: str | float) -> None:
    """Raises PliantError unless it is max, mean or a positive number."""
    if radius not in RADII and not (isinstance(radius, (int, float)) and math.isfinite(radius) and radius > 0):
        raise PliantError(
            f"--radius {radius}: give max (a true bound), mean (what the paper plots) or a positive number"
        )


def block_bounds(
    model: nn.Module, found: Anatomy, parts: Parts, extents: dict[str, Extent], *,
    radius: str | float = "max", rotary: bool = False, biases: bool = True, first_columns: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """Upper bound of each component of one block; NaN where none is known or the data did not tell.

    Args:
        extents: what the components were given.
        radius: of the ball that holds attention's tokens: `max` of the tokens' norms for a true bound, `mean` as the
            paper plots, or a number.
        rotary: attention turns queries and keys by their positions.
        biases: take query and key biases into account; without, the formula as printed, which is then no bound.
        first_columns: tokens of this width were padded with zeros for FC2, so only so many of its columns matter.
    """
    fc2 = linear_norm("FC2", parts, fc2_width(parts), None if parts.inner_norm is not None else first_columns)
    if parts.inner_norm is not None:
        fc2 *= _norm_bound(parts.norms.get("FC2"), extents["FC2"].spread)
    return {
        "LN1": _norm_bound(parts.norms.get("LN1"), extents["LN1"].spread),
        "MHA": _attention_bound(model, found, parts, extents["MHA"], radius, rotary, biases),
        "LN2": _norm_bound(parts.norms.get("LN2"), extents["LN2"].spread),
        "FC1": linear_norm("FC1", parts, found.width),
        "FC2": fc2,
    }


def linear_norm(name: str, parts: Parts, width: int, columns: int | None = None) -> float:
    """||W||_2 of FC1 (gate and value stacked) or FC2 on inputs of `width`, of its first `columns` alone if given."""
    layers = parts.fc1 if name == "FC1" else (parts.fc2,)
    return _spectral_norm(torch.cat([effective_weight(layer, width)[0][:, :columns] for layer in layers]))


def _norm_bound(norm: Norm | None, spread: float) -> float:
    """max |gamma| / sigma_min: the smaller of two tokens' deviations bounds how far apart normalising moves them."""
    if norm is None or not math.isfinite(spread) or spread <= 0:
        return math.nan
    return float(norm.gamma.abs().max()) / spread


def _spectral_norm(weight: Tensor) -> float:
    """||W||_2 by Lanczos' method on products with vectors."""
    matrix = weight.double().cpu().numpy()
    from scipy.sparse.linalg import ArpackError, svds

    if min(matrix.shape) >= 16:
        start = np.random.default_rng(0).standard_normal(min(matrix.shape))
        # Refused for a matrix of zeros, and where it does not converge.
        with suppress(ArpackError):
            return float(svds(matrix, k=1, v0=start, return_singular_vectors=False)[0])
    return float(np.linalg.norm(matrix, 2))


@dataclass(frozen=True)
class _Heads:
    """Query, key and value by head (heads, d_h, d), their biases (heads, d_h), and the output by head (heads, d, d_h)."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    output: Tensor


def _attention_bound(
    model: nn.Module, found: Anatomy, parts: Parts, extent: Extent, radius: str | float, rotary: bool, biases: bool
) -> float:
    """sum_h ||O_h|| ||V_h|| sqrt(3 n + (12 n + 3) r^4 ||A_h||^2), A_h = Q_h^T K_h / sqrt(d_h) (section 3, after arXiv
    2312.14820).

    The proof bounds |x^T A y| by r^2 ||A|| for each pair of tokens on its own. So it also holds where A depends on the
    positions: rotary angles leave norms as they are, and ||A_ij|| <= ||Q_h|| ||K_h|| / sqrt(d_h). It also holds for
    causal attention, whose weights sum to 1 over fewer tokens. Biases enter by homogeneous coordinates.
    """
    r = {"max": extent.largest, "mean": extent.mean}.get(str(radius), radius)
    heads = _heads(model, found, parts)
    if heads is None or not float(r) > 0 or not extent.sequence:
        return math.nan
    n, r = extent.sequence, float(r)
    scale = _scale(parts.attention, heads)
    norms = {name: parts.norms.get(name) for name in INNER_NORMS}
    if norms["q_norm"] is not None or norms["k_norm"] is not None:
        logits = _normed_logits(heads, norms, extent, scale, n, r)
    else:
        logits = _bilinear_logits(heads, scale, n, r, rotary, biases)
    if logits is None:
        return math.nan
    value = _thin_norm(heads.value) * (3 * n + logits).sqrt()
    if norms["norm"] is not None:  # of all heads together, before the output projection
        whole = torch.cat(list(heads.output), dim=1)
        return _spectral_norm(whole) * _norm_bound(norms["norm"], extent.inner.get("norm", 0.0)) * float(value.norm())
    return float((_thin_norm(heads.output.mT) * value).sum())


def _bilinear_logits(heads: _Heads, scale: float, n: int, r: float, rotary: bool, biases: bool) -> Tensor:
    """(12 n + 3) r^4 ||A_h||^2 of every head; a bias is a further column, on which every token has a 1."""
    query, key = heads.query, heads.key
    if biases and bool(heads.query_bias.any() or heads.key_bias.any()):
        query = torch.cat([query, heads.query_bias[..., None]], dim=-1)
        key = torch.cat([key, heads.key_bias[..., None]], dim=-1)
        r = math.sqrt(r * r + 1)
    if rotary:
        norm = _thin_norm(query) * _thin_norm(key)
    else:  # of a product of two thin matrices: never d x d
        norm = torch.linalg.matrix_norm(_triangle(query) @ _triangle(key).mT, 2)
    return (12 * n + 3) * r**4 * (scale * norm) ** 2


def _thin_norm(thin: Tensor) -> Tensor:
    """||W||_2 of (heads, d_h, d) by its d_h x d_h Gram matrix, whose largest eigenvalue is exact to rounding."""
    return torch.linalg.eigvalsh(thin @ thin.mT)[..., -1].clamp_min(0).sqrt()


def _triangle(thin: Tensor) -> Tensor:
    """R of thin^T = Q R: (heads, d_h, d) to (heads, d_h, d_h)."""
    return torch.linalg.qr(thin.mT, mode="r").R


def _normed_logits(
    heads: _Heads, norms: dict[str, Norm | None], extent: Extent, scale: float, n: int, r: float
) -> Tensor | None:
    """3 r^2 (k^2 L_q^2 + n q^2 L_k^2) scale^2 with normalised queries and keys: they are at most q and k long, and
    L = ||W|| max |gamma| / sigma_min bounds how fast they move. By the same steps as above, with the logits moving on
    a straight line in place of the tokens."""
    length, speed = [], []
    for name, weight, bias in (("q_norm", heads.query, heads.query_bias), ("k_norm", heads.key, heads.key_bias)):
        norm = norms[name]
        if norm is None:
            length.append(_thin_norm(weight) * r + bias.norm(dim=-1))
            speed.append(_thin_norm(weight))
        else:
            width = len(norm.gamma)
            length.append(float(norm.gamma.abs().max()) * math.sqrt(width) + norm.beta.double().norm())
            speed.append(_thin_norm(weight) * _norm_bound(norm, extent.inner.get(name, 0.0)))
    found = 3 * r**2 * scale**2 * (length[1] ** 2 * speed[0] ** 2 + n * length[0] ** 2 * speed[1] ** 2)
    return found if bool(torch.isfinite(found).all()) else None


def _scale(attention: nn.Module, heads: _Heads) -> float:
    """What the logits are multiplied by; 1 / sqrt(d_h) unless the module says otherwise."""
    for name in ("scaling", "scale"):
        found = getattr(attention, name, None)
        if isinstance(found, float):
            return found
    return heads.query.shape[1] ** -0.5


_OWN = ("gate",)
"""What an attention may hold that no bound here covers."""


def _heads(model: nn.Module, found: Anatomy, parts: Parts) -> _Heads | None:
    """Projections by head; None where the attention has parts that the formula does not know."""
    owned: list[Any] = [getattr(parts.attention, name, None) for name in _OWN]
    if any(isinstance(each, nn.Module) and any(True for _ in each.parameters()) for each in owned):
        return None
    if parts.entry.proj == ():
        return None
    modules = [model.get_submodule(path) for path in parts.entry.qkv if _is_module(model, path)]
    read = [effective_weight(module, found.width) for module in modules]
    weight, bias = torch.cat([w for w, _ in read]), torch.cat([b for _, b in read])
    if len(weight) % (3 * found.heads):
        return None
    bias = bias + _separate_bias(parts.attention, bias)
    q, k, v = weight.reshape(3, found.heads, -1, found.width)
    if any(len(w) != len(weight) // len(read) for w, _ in read):
        return None  # fewer heads of keys and values than of queries
    q_bias, k_bias, _ = bias.reshape(3, found.heads, -1)
    output, _ = effective_weight(model.get_submodule(parts.entry.proj[0]), len(weight) // 3)
    return _Heads(q, k, v, q_bias, k_bias, output.reshape(len(output), found.heads, -1).transpose(0, 1))


def _separate_bias(attention: nn.Module, like: Tensor) -> Tensor:
    """Biases of fused projections that are parameters of the attention itself (timm's Eva)."""
    biases = [getattr(attention, name, None) for name in ("q_bias", "k_bias", "v_bias")]
    if not any(isinstance(bias, Tensor) for bias in biases):
        return torch.zeros_like(like)
    third = len(like) // 3
    return torch.cat([
        bias.detach().to(like) if isinstance(bias, Tensor) else like.new_zeros(third) for bias in biases
    ])  # fmt: skip


def _is_module(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True
