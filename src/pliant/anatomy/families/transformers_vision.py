"""Vision towers of the transformers library, alone or below an image classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pliant.anatomy.families.positions import as_in_eval, patch_grid
from pliant.anatomy.families.transformers_base import TransformersFamily
from pliant.anatomy.registry import register

_GATED_FC1 = ("mlp.fc1", "mlp.gate_proj", "mlp.up_proj")
_GATED_FC2 = ("mlp.fc2", "mlp.down_proj")


class ViT(TransformersFamily):
    name = "transformers ViT"
    requires = ("embeddings.cls_token", "embeddings.position_embeddings")
    lacks = ("embeddings.distillation_token", "layers.0.lambda_1")  # DeiT's, BEiT's


class DeiT(TransformersFamily):
    name = "transformers DeiT"
    requires = ("embeddings.distillation_token",)
    heads = ("classifier", "cls_classifier")
    head_dist = "distillation_classifier"

    def pool(self, model: Any, tokens: Tensor) -> Tensor:
        if hasattr(model, "distillation_classifier"):  # two heads, each on a token of its own
            return self.tower(model).layernorm(tokens)[:, :2]
        return super().pool(model, tokens)

    def classify(self, model: Any, pooled: Tensor) -> Tensor:
        if hasattr(model, "distillation_classifier"):
            return (model.cls_classifier(pooled[:, 0]) + model.distillation_classifier(pooled[:, 1])) / 2
        return super().classify(model, pooled)


class DINOv2(TransformersFamily):
    name = "transformers DINOv2"
    blocks, ln1, ln2, fc1, fc2 = "encoder.layer", ("norm1",), ("norm2",), _GATED_FC1, _GATED_FC2
    norm = ("layernorm",)

    def pool_classifier(self, tower: Any, tokens: Tensor) -> Tensor:
        tokens = tower.layernorm(tokens)
        registers = getattr(tower.config, "num_register_tokens", 0)
        return torch.cat([tokens[:, 0], tokens[:, 1 + registers :].mean(dim=1)], dim=1)


class DINOv3(TransformersFamily):
    name = "transformers DINOv3"
    blocks, ln1, ln2 = "model.layer", ("norm1",), ("norm2",)
    fc1, fc2 = ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)
    norm, positions, requires = ("norm",), None, ("rope_embeddings",)

    def context(self, tower: Any, tokens: Tensor) -> dict[str, Any]:
        rope, patch = tower.rope_embeddings, _pair(tower.config.patch_size)
        prefix = 1 + tower.config.num_register_tokens
        rows, columns = patch_grid(tokens.shape[1] - prefix, (rope.num_patches_h, rope.num_patches_w))
        # The angles depend on the image's shape and type alone, never on a pixel.
        image = tokens.new_zeros(1).expand(1, 1, rows * patch[0], columns * patch[1])
        with as_in_eval(rope):
            return {"attention_mask": None, "position_embeddings": rope(image)}

    def pool_tower(self, tower: Any, tokens: Tensor) -> Tensor:
        return tower.norm(tokens)[:, 0]


class BEiT(TransformersFamily):
    name = "transformers BEiT"
    mha = ("attention", "relative_position_bias")
    # One table of relative positions that all blocks read: trained, it leaves no block a fixed function of the image,
    # so it counts with the embedding.
    embed_names = ("embeddings", "shared_position_bias")
    requires = ("layers.0.lambda_1",)

    def context(self, tower: Any, tokens: Tensor) -> dict[str, Any]:
        patch = tower.config.patch_size
        size = _pair(tower.config.image_size)
        grid = patch_grid(tokens.shape[1] - 1, (size[0] // patch, size[1] // patch))
        shared = tower.shared_position_bias
        mask = None if shared is None else shared(grid, dim_size=tokens.shape[1])
        return {"attention_mask": mask, "resolution": (grid[0] * patch, grid[1] * patch)}


class CLIP(TransformersFamily):
    name = "transformers CLIP vision tower"
    blocks, ln1, ln2 = "encoder.layers", ("layer_norm1",), ("layer_norm2",)
    mha, proj = ("self_attn",), ("out_proj",)
    embed_names, norm = ("embeddings", "pre_layrnorm"), ("post_layernorm",)
    positions = "embeddings.position_embedding.weight"
    requires = ("embeddings.class_embedding", "pre_layrnorm")

    def embed(self, model: Any, inputs: Tensor) -> Tensor:
        return self.tower(model).pre_layrnorm(super().embed(model, inputs))

    def pool_tower(self, tower: Any, tokens: Tensor) -> Tensor:
        return tower.post_layernorm(tokens[:, 0])

    def pool_classifier(self, tower: Any, tokens: Tensor) -> Tensor:
        return tokens[:, 1:].mean(dim=1)  # transformers' classifier reads the tokens before the last norm


class SigLIP(TransformersFamily):
    name = "transformers SigLIP vision tower"
    blocks, ln1, ln2 = CLIP.blocks, CLIP.ln1, CLIP.ln2
    mha, proj = CLIP.mha, CLIP.proj
    norm, positions = ("post_layernorm", "head"), CLIP.positions
    requires, lacks = ("embeddings.patch_embedding",), ("embeddings.class_embedding",)

    def pool_tower(self, tower: Any, tokens: Tensor) -> Tensor:
        return tower.head(tower.post_layernorm(tokens)) if tower.use_head else self.pool_classifier(tower, tokens)

    def pool_classifier(self, tower: Any, tokens: Tensor) -> Tensor:
        return tower.post_layernorm(tokens).mean(dim=1)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


for family in (ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT):
    register(family())
