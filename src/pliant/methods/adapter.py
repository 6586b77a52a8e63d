"""AdapterTune: low-rank residual adapters after the blocks of a frozen ViT (arXiv 2603.14706)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pliant.anatomy import BlockWrapper
from pliant.errors import PliantError
from pliant.methods.base import Options, Recipe, parameter_names, register


class Adapter(nn.Module):
    """h + alpha * up(GELU(down(h))), on all tokens; 2 d r + r + d parameters (arXiv 2603.14706, section 3).

    Args:
        width: d, the width of a token.
        rank: r, the width of the bottleneck.
        alpha: scale of what is added.
        init: "zero" (up is zero, so the adapter starts as the identity, bit for bit) or "small" (up's weights are
            normal with deviation 1e-4, the paper's ablation). Down is Xavier-uniform with a zero bias in both.
    """

    def __init__(self, width: int, rank: int, alpha: float = 1.0, init: str = "zero"):
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        self.alpha = alpha
        self.enabled = True
        nn.init.xavier_uniform_(self.down.weight)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.bias)
        if init == "zero":
            nn.init.zeros_(self.up.weight)
        else:
            nn.init.normal_(self.up.weight, std=1e-4)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, n, d) to (B, n, d)."""
        if not self.enabled:
            return tokens
        return tokens + self.alpha * self.up(F.gelu(self.down(tokens)))

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class AdaptedBlock(BlockWrapper):
    """A block with an adapter after it."""

    def __init__(self, block: nn.Module, adapter: Adapter):
        super().__init__()
        self.block = block
        self.adapter = adapter

    def after(self, tokens: Tensor) -> Tensor:
        return self.adapter(tokens)


class AdapterOptions(Options):
    rank: int = 16
    # The paper has 1. With the rate raised as alpha falls, Down learns faster at the same speed of Up: docs/defaults.md.
    alpha: float = Field(default=0.3, gt=0)
    init: Literal["zero", "small"] = "zero"
    every: int = Field(default=1, ge=1)


class AdapterMethod:
    name = "adapter"
    summary = "low-rank residual adapters after every k-th block (AdapterTune)"

    def recipe(self, name):
        return Recipe(lr=5e-3, head_lr=3e-3)

    def options(self, name, given):
        return AdapterOptions(**given)

    def insert(self, model, anatomy, blocks, options):
        check_rank(options.rank, anatomy.width)
        device, dtype = _placement(model)
        for index in blocks[:: options.every]:
            path = anatomy.blocks[index].path
            parent, _, last = path.rpartition(".")
            with torch.device(device):
                adapter = Adapter(anatomy.width, options.rank, options.alpha, options.init).to(dtype)
            setattr(model.get_submodule(parent), last, AdaptedBlock(model.get_submodule(path), adapter))

    def trained(self, model, anatomy, blocks, options):
        found = [name for name, module in model.named_modules() if isinstance(module, Adapter)]
        return {"adapter": parameter_names(model, found)}

    def switch(self, model, on: bool):
        for module in model.modules():
            if isinstance(module, Adapter):
                module.enabled = on


def check_rank(rank: int, width: int) -> None:
    if not 0 < rank <= width:
        raise PliantError(f"--rank {rank} must be from 1 to the width of the model's tokens, {width}")


def _placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    parameter = next(model.parameters())
    return parameter.device, parameter.dtype


register(AdapterMethod())
