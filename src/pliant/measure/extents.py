"""How far a component's inputs reach: what the upper bounds need to know of the data."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from pliant.measure.parts import Norm, Parts, norm_numbers


@dataclass
class Extent:
    """Over all tokens that a component was given.

    Attributes:
        largest, total, tokens: the largest token norm, the sum of the norms, and their number.
        spread: the smallest deviation that a norm divided a token by (RMSNorm: root mean square); infinite without one.
        sequence: number of tokens of one input.
        inner: the same for norms inside the component, by name.
    """

    largest: float = 0.0
    total: float = 0.0
    tokens: int = 0
    spread: float = float("inf")
    sequence: int = 0
    inner: dict[str, float] = field(default_factory=dict)

    def see(self, norms: Tensor) -> None:
        """Take in the norms of tokens, (B, n)."""
        self.largest = max(self.largest, float(norms.max()))
        self.total += float(norms.sum())
        self.tokens += norms.numel()
        self.sequence = max(self.sequence, norms.shape[1])

    def see_spread(self, norm: Norm | None, x: Tensor) -> None:
        """Take in what `norm`, if it is one, divides tokens (B, n, width) by."""
        if norm is not None:
            self.spread = min(self.spread, float(norm.spread(x).min()))

    def see_inner(self, name: str, spread: Tensor) -> None:
        self.inner[name] = min(self.inner.get(name, float("inf")), float(spread.min()))

    @property
    def mean(self) -> float:
        """Mean token norm."""
        return self.total / max(1, self.tokens)


INNER_NORMS = ("q_norm", "k_norm", "norm")
"""Norms that an attention may hold: of queries and keys (per head), and of what the heads put out."""


def watch_inner_norms(parts: Parts, extent: Extent) -> list:
    """Hooks that note the smallest spread at the norms inside attention; returns their handles."""
    handles = []
    for name in INNER_NORMS:
        module = getattr(parts.attention, name, None)
        if isinstance(module, nn.Module) and (norm := norm_numbers(module)) is not None:

            def note(_, arguments, name=name, norm=norm) -> None:
                extent.see_inner(name, norm.spread(arguments[0]))

            handles.append(module.register_forward_pre_hook(note))
    return handles
