"""What an anatomy is: where the parts of a transformer live, and how its forward pass is cut into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

PARTS = ("ln1", "mha", "ln2", "fc1", "fc2")
"""The five component types of a transformer block, named as in arXiv 2602.06883, section 2."""


@dataclass(frozen=True)
class Block:
    """Where one block's parts live: paths of modules or bare parameters, from the model's root.

    `mha` covers all that attention owns (projections, q/k norms, relative positions); `qkv` and `proj` name the
    linear layers among them. A norm inside the attention belongs to `mha`, one inside the MLP to `fc2`, whose input it
    is. LayerScale and the like belong to no part: they are never tuned one part at a time.

    `read_directly` names those of `qkv` whose weight the model reads without calling the layer. What wraps such a layer
    (LoRA) would be passed over in silence.
    """

    path: str
    ln1: tuple[str, ...]
    mha: tuple[str, ...]
    ln2: tuple[str, ...]
    fc1: tuple[str, ...]
    fc2: tuple[str, ...]
    qkv: tuple[str, ...]
    proj: tuple[str, ...]
    read_directly: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anatomy:
    """Where everything lives in one model.

    Attributes:
        family: name of the family that recognised the model.
        embed: patch projection, class and register tokens, positions: modules and bare parameters.
        blocks: one entry a transformer block, in forward order.
        norm: what normalises or projects the tokens after the last block and before the head.
        head: path of the classifier, or None where the model has none.
        positions: path of the learned position grid, or None (rotary or none at all).
        width: d, the width of a token.
        heads: number of attention heads.
        head_dist: path of a distilled model's second classifier, on its distillation token; None elsewhere.
    """

    family: str
    embed: tuple[str, ...]
    blocks: tuple[Block, ...]
    norm: tuple[str, ...]
    head: str | None
    positions: str | None
    width: int
    heads: int
    head_dist: str | None = None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def paths(self, part: str, block: int | None = None) -> tuple[str, ...]:
        """Paths of a part: one of PARTS in one block or in all, or `embed`, `norm`, `head`."""
        if part in PARTS:
            chosen = self.blocks if block is None else (self.blocks[block],)
            return tuple(path for b in chosen for path in getattr(b, part))
        if part == "head":
            return tuple(path for path in (self.head, self.head_dist) if path)
        if part in ("embed", "norm"):
            return getattr(self, part)
        raise KeyError(part)


class Family(Protocol):
    """One architecture family. `describe` says where parts live; the other methods replay the forward pass.

    `pool(block(...block(embed(x))))` then `classify` must equal `model(x)` bit for bit.
    """

    name: str
    looks_for: str

    def matches(self, model: nn.Module) -> bool:
        """Does this module have the attributes that the family needs? Must not raise."""
        ...

    def describe(self, model: nn.Module) -> Anatomy: ...

    def embed(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Images (B, C, H, W), or token ids, to the first block's input (B, n, d)."""
        ...

    def block(self, model: nn.Module, block: nn.Module, tokens: Tensor) -> Tensor:
        """One block, with whatever besides tokens it must be given (rotary angles, masks)."""
        ...

    def pool(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """The last block's output (B, n, d) to what the head reads (B, features)."""
        ...

    def classify(self, model: nn.Module, pooled: Tensor) -> Tensor:
        """What the head reads to logits (B, classes)."""
        ...


class BlockWrapper(nn.Module):
    """Base of modules that take a block's place and add something after it. The anatomy looks through it."""

    block: nn.Module

    def after(self, tokens: Tensor) -> Tensor:
        """What is added, as a function of the block's output (B, n, d)."""
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        output = self.block(*args, **kwargs)
        if isinstance(output, tuple):
            return (self.after(output[0]), *output[1:])
        return self.after(output)

    def __getattr__(self, name: str):
        # Host models read attributes off their blocks (transformers' `attention_type`, say).
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "block":
                raise
            return getattr(self.block, name)
