"""How far a component's inputs reach: what the upper bounds need to know of the data."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from pliant.measure.parts import INNER_NORMS, Norm, Parts


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
            self.see_smallest(float(norm.spread(x).min()))

    def see_smallest(self, spread: float) -> None:
        """Take in the smallest of what tokens were divided by."""
        self.spread = min(self.spread, spread)

    def see_inner(self, name: str, spread: Tensor) -> None:
        self.inner[name] = min(self.inner.get(name, float("inf")), float(spread.min()))

    @property
    def mean(self) -> float:
        """Mean token norm."""
        return self.total / max(1, self.tokens)


def watch_inner_norms(parts: Parts, extent: Extent) -> list[RemovableHandle]:
    """Hooks that note the smallest spread at the norms inside attention; returns their handles."""
    return [
        getattr(parts.attention, name).register_forward_pre_hook(_noting(name, parts.norms[name], extent))
        for name in INNER_NORMS
        if name in parts.norms
    ]


def _noting(name: str, norm: Norm, extent: Extent):
    def note(_, arguments) -> None:
        extent.see_inner(name, norm.spread(arguments[0]))

    return note
