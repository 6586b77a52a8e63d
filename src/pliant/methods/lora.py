"""LoRA on the attention's query, key and value projections by default: PEFT's own, not a copy."""

from __future__ import annotations

from pydantic import Field

from pliant.errors import PliantError
from pliant.methods.adapter import check_rank
from pliant.methods.base import Options, Recipe, register

TARGETS = ("qkv", "proj", "fc1", "fc2")


class LoraOptions(Options):
    rank: int = 16
    alpha: float = Field(default=16.0, gt=0)
    targets: tuple[str, ...] = ("qkv",)


class Lora:
    """W + alpha / rank * B A on the chosen linear layers, B zero at the start (arXiv 2106.09685)."""

    name = "lora"
    summary = "PEFT's LoRA, on the query, key and value projections by default (--targets)"

    def recipe(self, name):
        return Recipe(lr=2e-3, head_lr=3e-3)

    def options(self, name, given):
        options = LoraOptions(**given)
        if unknown := [target for target in options.targets if target not in TARGETS]:
            raise PliantError(f"--targets {unknown[0]!r} is none of {', '.join(TARGETS)}")
        return options

    def insert(self, model, anatomy, blocks, options):
        from peft import LoraConfig, inject_adapter_in_model

        check_rank(options.rank, anatomy.width)
        paths = [path for b in blocks for target in options.targets for path in getattr(anatomy.blocks[b], target)]
        if bypassed := [path for b in blocks for path in anatomy.blocks[b].read_directly if path in paths]:
            raise PliantError(
                f"LoRA cannot reach {bypassed[0]}: this attention reads its weights without calling the layer; "
                "take --targets proj,fc1,fc2, or another method"
            )
        modules = dict(model.named_modules())  # qkv may list bare biases besides the layers
        config = LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=[p for p in paths if p in modules])
        inject_adapter_in_model(config, model)

    def trained(self, model, anatomy, blocks, options):
        return {"lora": [name for name, _ in model.named_parameters() if ".lora_A." in name or ".lora_B." in name]}

    def switch(self, model, on: bool):
        from peft.tuners.tuners_utils import BaseTunerLayer

        for module in model.modules():
            if isinstance(module, BaseTunerLayer):
                module.enable_adapters(on)


register(Lora())
