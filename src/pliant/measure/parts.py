"""The modules of a block that are measured, as functions of their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pliant import anatomy
from pliant.anatomy import Anatomy, Block, Family
from pliant.errors import PliantError

COMPONENTS = tuple(part.upper() for part in anatomy.PARTS)
"""LN1, MHA, LN2, FC1, FC2: the five component types of arXiv 2602.06883, in the order of the forward pass."""

_CONTEXT = ("rope", "position_embeddings")
"""Names under which attention is given its rotary angles."""


@dataclass(frozen=True)
class Parts:
    """One block's modules.

    Attributes:
        entry: where they live.
        block: the block itself, without what a method put after it.
        fc1: one layer or, where the MLP is gated, those of gate and value; all read the same input.
        inner_norm: a norm between the activation and FC2; it counts with FC2, whose input it is.
        norms: the norms among these modules as numbers, by component (FC2: its inner norm), and those inside attention by
            attribute; only those that are known. Read off once, before anything is hooked.
    """

    entry: Block
    block: nn.Module
    ln1: nn.Module
    attention: nn.Module
    ln2: nn.Module
    fc1: tuple[nn.Module, ...]
    inner_norm: nn.Module | None
    fc2: nn.Module
    norms: dict[str, Norm]

    @property
    def first(self) -> dict[str, nn.Module]:
        """The module that is given each component's input."""
        fc2 = self.fc2 if self.inner_norm is None else self.inner_norm
        return {"LN1": self.ln1, "MHA": self.attention, "LN2": self.ln2, "FC1": self.fc1[0], "FC2": fc2}

    @property
    def last(self) -> dict[str, tuple[nn.Module, ...]]:
        """The modules that give each component's output."""
        return {
            "LN1": (self.ln1,), "MHA": (self.attention,), "LN2": (self.ln2,), "FC1": self.fc1, "FC2": (self.fc2,)
        }  # fmt: skip


INNER_NORMS = ("q_norm", "k_norm", "norm")
"""Norms that an attention may hold: of queries and keys (per head), and of what the heads put out."""


def parts_of(model: nn.Module, found: Anatomy) -> list[Parts]:
    """The modules of every block.

    Raises:
        PliantError: a block lacks one of the five components.
    """
    return [_parts(model, entry) for entry in found.blocks]


def _parts(model: nn.Module, entry: Block) -> Parts:
    modules: dict[str, list[nn.Module]] = {}
    for part in anatomy.PARTS:
        modules[part] = [found for path in getattr(entry, part) if (found := _module(model, path)) is not None]
        if not modules[part]:
            raise PliantError(
                f"{type(model).__name__}: {entry.path} has no {part.upper()} with parameters; plasticity is measured "
                "on models whose blocks have LN1, MHA, LN2, FC1 and FC2"
            )
    *layers, last = modules["fc2"]
    # The anatomy names FC2 before the norm of its input.
    fc2, inner = (layers[0], last) if layers else (last, None)
    ln1, attention, ln2 = (modules[name][0] for name in ("ln1", "mha", "ln2"))
    named: dict[str, Any] = {
        "LN1": ln1,
        "LN2": ln2,
        "FC2": inner,
        **{name: getattr(attention, name, None) for name in INNER_NORMS},
    }
    norms = {name: norm for name, module in named.items() if module is not None and (norm := norm_numbers(module))}
    block = model.get_submodule(entry.path)
    return Parts(entry, block, ln1, attention, ln2, tuple(modules["fc1"]), inner, fc2, norms)


def _module(model: nn.Module, path: str) -> nn.Module | None:
    """The module at `path`; None where a bare parameter lives there."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def first_tensor(output: Any) -> Tensor:
    """What a module returns: the tensor itself, or the first of a tuple."""
    return output[0] if isinstance(output, tuple) else output


class _Reached(Exception):
    """Attention was reached; the rest of the block need not run."""


@dataclass(frozen=True)
class Attention:
    """One attention with whatever besides tokens it is given: rotary angles, relative positions, a causal mask.

    These depend on the tokens' shape alone, so what one input was given serves any other of that shape.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        """(B, n, d) to (B, n, d)."""
        return first_tensor(self.module(x, *self.arguments, **self.options))

    @property
    def rotary(self) -> bool:
        return any(self.options.get(name) is not None for name in _CONTEXT)


def attention_on(model: nn.Module, family: Family, parts: Parts, tokens: Tensor) -> Attention:
    """The attention of a block, ready to be applied to tokens of the shape of `tokens` (B, n, d)."""
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def catch(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        caught.append((arguments, options))
        raise _Reached

    handle = parts.attention.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        family.block(model, parts.block, tokens)
    except _Reached:
        pass
    finally:
        handle.remove()
    if not caught:
        raise PliantError(f"{parts.entry.path} never calls its attention; its anatomy is wrong")
    return bind(parts.attention, *caught[0])


def bind(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Attention:
    """An attention with the arguments of one call, less its tokens and its cache of keys and values."""
    kept = {name: value for name, value in options.items() if name not in ("hidden_states", "cache")}
    return Attention(module, arguments[1:], kept)


def tokens_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """The tokens that a module was called with."""
    return arguments[0] if arguments else options["hidden_states"]


def fc1_on(parts: Parts) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([layer(x) for layer in parts.fc1], dim=-1)


def fc2_on(parts: Parts) -> Callable[[Tensor], Tensor]:
    """FC2 with the norm of its input."""
    return lambda x: parts.fc2(x if parts.inner_norm is None else parts.inner_norm(x))


def component_on(name: str, parts: Parts, attention: Attention) -> Callable[[Tensor], Tensor]:
    """One of COMPONENTS as a function of its input (B, n, width)."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "LN1": parts.ln1, "MHA": attention, "LN2": parts.ln2, "FC1": fc1_on(parts), "FC2": fc2_on(parts),
    }  # fmt: skip
    return functions[name]


@torch.no_grad()
def effective_weight(layer: nn.Module, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Weight (out, in) and bias (out,) of a linear layer, read off its values at zero and at the unit vectors.

    Whatever the layer is: transposed as GPT-2's, or wrapped by LoRA.
    """
    like = next(layer.parameters())
    zero = layer(torch.zeros(1, width, device=like.device, dtype=like.dtype))[0]
    plain = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    if plain:  # exact; the difference below loses what the bias rounds away
        return layer.weight.detach().to(dtype), zero.to(dtype)  # type: ignore[operator]
    unit = layer(torch.eye(width, device=like.device, dtype=like.dtype))
    return (unit.to(dtype) - zero.to(dtype)).T.contiguous(), zero.to(dtype)


@dataclass(frozen=True)
class Norm:
    """A LayerNorm or RMSNorm as numbers: z = (x - mean) / sqrt(variance + eps), then gamma * z + beta."""

    gamma: Tensor
    beta: Tensor
    eps: float
    centred: bool

    @property
    def kind(self) -> tuple[float, bool]:
        """Norms of one kind normalise alike, and differ by gamma and beta alone."""
        return self.eps, self.centred

    def spread(self, x: Tensor) -> Tensor:
        """What a token is divided by: its deviation (RMSNorm: its root mean square), (..., width) to (...)."""
        # Three times faster than torch.var.
        return (torch.linalg.vector_norm(self._shifted(x), dim=-1).square() / x.shape[-1] + self.eps).sqrt()

    def normalised(self, x: Tensor) -> Tensor:
        """z, of the shape of x."""
        return self._shifted(x) / self.spread(x)[..., None]

    def _shifted(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centred else x


@torch.no_grad()
def norm_numbers(module: nn.Module) -> Norm | None:
    """A module as a `Norm`; None where it computes anything else. What it claims is checked on a few tokens."""
    gamma = getattr(module, "weight", None)
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    if eps is None and isinstance(module, nn.RMSNorm):
        eps = torch.finfo(module.weight.dtype).eps
    if not isinstance(gamma, Tensor) or gamma.ndim != 1 or not isinstance(eps, float):
        return None
    beta = getattr(module, "bias", None)
    beta = beta if isinstance(beta, Tensor) else torch.zeros_like(gamma)
    generator = torch.Generator().manual_seed(0)
    probe = (torch.randn(1, 3, len(gamma), generator=generator) + 0.5).to(gamma)
    said = module(probe)
    for centred in (True, False):
        norm = Norm(gamma.detach(), beta.detach(), eps, centred)
        if torch.allclose(said, norm.gamma * norm.normalised(probe) + norm.beta, rtol=1e-4, atol=1e-5):
            return norm
    return None
