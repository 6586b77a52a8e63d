"""timm's VisionTransformer: ViT, DeiT (distilled too), DINOv2, CLIP; whatever its pooling, registers and norms."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pliant.anatomy.registry import block_paths, module_paths, register
from pliant.anatomy.schema import Anatomy, Block


class TimmViT:
    name = "timm VisionTransformer"
    looks_for = "patch_embed, blocks[*].norm1/attn.qkv/norm2/mlp.fc1/mlp.fc2, forward_head"

    def matches(self, model: Any) -> bool:
        blocks = getattr(model, "blocks", None)
        if not (hasattr(model, "_pos_embed") and hasattr(model, "norm_pre") and blocks is not None and len(blocks)):
            return False
        first = blocks[0]
        return all(hasattr(first, name) for name in ("norm1", "attn", "norm2", "mlp")) and not hasattr(model, "rope")

    def describe(self, model: Any) -> Anatomy:
        blocks = tuple(
            Block(
                path=path,
                ln1=module_paths(model, path, "norm1"),
                mha=module_paths(model, path, "attn"),
                ln2=module_paths(model, path, "norm2"),
                fc1=module_paths(model, path, "mlp.fc1", "mlp.fc1_g", "mlp.fc1_x"),
                fc2=module_paths(model, path, "mlp.fc2", "mlp.norm"),
                qkv=module_paths(model, path, "attn.qkv", "attn.q_proj", "attn.k_proj", "attn.v_proj"),
                proj=module_paths(model, path, "attn.proj"),
            )
            for path in block_paths(model, "blocks")
        )
        embed = ("patch_embed", "cls_token", "reg_token", "dist_token", "pos_embed", "norm_pre")
        return Anatomy(
            family=self.name,
            embed=module_paths(model, "", *embed),
            blocks=blocks,
            norm=module_paths(model, "", "norm", "attn_pool", "fc_norm"),
            head="head" if isinstance(model.head, nn.Linear) else None,
            positions="pos_embed" if getattr(model, "pos_embed", None) is not None else None,
            width=model.embed_dim,
            heads=model.get_submodule(blocks[0].path).attn.num_heads,
            head_dist="head_dist" if isinstance(getattr(model, "head_dist", None), nn.Linear) else None,
        )

    def embed(self, model: Any, inputs: Tensor) -> Tensor:
        return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(inputs))))

    def block(self, model: Any, block: nn.Module, tokens: Tensor) -> Tensor:
        return block(tokens)

    def pool(self, model: Any, tokens: Tensor) -> Tensor:
        tokens = model.norm(tokens)
        if hasattr(model, "head_dist"):  # each of a distilled model's two heads reads a token of its own
            return model.head_drop(tokens[:, :2])
        return model.forward_head(tokens, pre_logits=True)

    def classify(self, model: Any, pooled: Tensor) -> Tensor:
        if hasattr(model, "head_dist"):
            return (model.head(pooled[:, 0]) + model.head_dist(pooled[:, 1])) / 2
        return model.head(pooled)


register(TimmViT())
