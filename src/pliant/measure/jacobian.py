"""The local figure: how much a component can amplify a small change at a data point, its Jacobian's spectral norm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pliant import anatomy
from pliant.measure.bounds import linear_norm
from pliant.measure.parts import COMPONENTS, Parts, bind, component_on, parts_of, tokens_of

ITERATIONS = 60
TOLERANCE = 1e-3
"""Of power iteration: it stops where no image's figure grows by more than this share."""


def spectral_norms(
    function: Callable[[Tensor], Tensor], x: Tensor, iterations: int = ITERATIONS, tolerance: float = TOLERANCE
) -> Tensor:
    """||J_f(x_i)||_2 of each image by power iteration on J^T J: one JVP and one VJP a step, never a dense Jacobian.

    Approaches the norm from below. Between average rate and bound: the rate of a pair is at most the largest local norm
    on the segment between its images.

    Args:
        function: maps (B, n, d) to (B, n, w), each image on its own.
        x: (B, n, d).

    Returns:
        (B,).
    """
    generator = torch.Generator().manual_seed(0)
    v = _unit(torch.randn(x.shape, generator=generator).to(x))
    found = torch.zeros(len(x), device=x.device, dtype=x.dtype)
    # Parameters need no gradient here, and the fused attention kernels know no forward derivative.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*is deprecated")  # torch's own doing
        pull: Any = torch.func.vjp(function, x)[1]
        for _ in range(iterations):
            pushed: Any = torch.func.jvp(function, (x,), (v,))[1]
            before, found = found, pushed.flatten(1).norm(dim=1)
            if bool((found <= before * (1 + tolerance)).all()):
                break
            v = _unit(pull(pushed)[0])
    return found


def _unit(x: Tensor) -> Tensor:
    norm = x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    return x / norm.reshape(-1, *([1] * (x.ndim - 1)))


def local_norms(model: nn.Module, tokens: Tensor) -> Iterator[np.ndarray]:
    """Block by block, the local figure of every component at the input that it has in the forward pass.

    Args:
        tokens: the embedding's output (B, n, d).

    Yields:
        (components, B) for each block.
    """
    parts = parts_of(model, anatomy.find(model))
    for stage in anatomy.stages(model)[1:]:
        kind, _, number = stage.name.partition(".")
        if kind == "block":
            with _inputs(parts[int(number)]) as given, torch.no_grad():
                tokens = stage.run(tokens)
            yield _of_block(parts[int(number)], given)
        elif kind == "after":
            with torch.no_grad():
                tokens = stage.run(tokens)


def _of_block(parts: Parts, given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]]) -> np.ndarray:
    attention = bind(parts.attention, *given["MHA"])
    rows = []
    for name in COMPONENTS:
        x = tokens_of(*given[name]).detach()
        if name == "FC1" or (name == "FC2" and parts.inner_norm is None):  # linear: the same at every point
            rows.append(np.full(len(x), linear_norm(name, parts, x.shape[-1])))
        else:
            rows.append(spectral_norms(component_on(name, parts, attention), x).double().cpu().numpy())
    return np.stack(rows)


@contextmanager
def _inputs(parts: Parts) -> Iterator[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]]:
    """What each component is called with inside the context."""
    given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def keep(name: str):
        return lambda _, arguments, options: given.update({name: (arguments, options)})

    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True) for name, m in parts.first.items()]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()
