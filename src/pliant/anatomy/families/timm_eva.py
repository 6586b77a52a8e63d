"""timm's Eva: EVA-02, DINOv3 and kin; rotary positions, SwiGLU, separate or fused projections."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pliant.anatomy.families.positions import as_in_eval, patch_grid
from pliant.anatomy.registry import attribute, block_paths, module_paths, register
from pliant.anatomy.schema import Anatomy, Block, BlockWrapper

_QKV = ("attn.qkv", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.q_bias", "attn.v_bias")


class TimmEva:
    name = "timm Eva"
    looks_for = "patch_embed, rope, blocks[*].norm1/attn.qkv or attn.q_proj/norm2/mlp.fc1 or mlp.fc1_g/mlp.fc2, fc_norm"

    def matches(self, model: Any) -> bool:
        blocks = getattr(model, "blocks", None)
        if not (isinstance(blocks, nn.ModuleList) and len(blocks)):
            return False
        root = ("patch_embed", "_pos_embed", "rope", "fc_norm", "forward_head")
        block = ("norm1", "attn.proj", "norm2", "mlp.fc2")
        return all(hasattr(model, name) for name in root) and all(attribute(blocks[0], name) for name in block)

    def describe(self, model: Any) -> Anatomy:
        paths = block_paths(model, "blocks")
        # The frequencies of mixed rotary positions are one parameter that every block reads: trained, they leave no
        # block a fixed function of the image, so they count with the embedding.
        embed = ("patch_embed", "cls_token", "reg_token", "pos_embed", "rope", "norm_pre")
        return Anatomy(
            family=self.name,
            embed=module_paths(model, "", *embed),
            blocks=tuple(self._block(model, path) for path in paths),
            norm=module_paths(model, "", "norm", "attn_pool", "fc_norm"),
            head="head" if isinstance(model.head, nn.Linear) else None,
            positions="pos_embed" if model.pos_embed is not None else None,
            width=model.embed_dim,
            heads=model.get_submodule(paths[0]).attn.num_heads,
        )

    def _block(self, model: Any, path: str) -> Block:
        attention = model.get_submodule(path).attn
        # Fused projections without a bias of their own are computed as F.linear(x, qkv.weight, joined biases).
        fused = getattr(attention, "q_bias", None) is not None and not attention.qkv_bias_separate
        return Block(
            path=path,
            ln1=module_paths(model, path, "norm1"),
            mha=module_paths(model, path, "attn"),
            ln2=module_paths(model, path, "norm2"),
            fc1=module_paths(model, path, "mlp.fc1", "mlp.fc1_g", "mlp.fc1_x"),
            fc2=module_paths(model, path, "mlp.fc2", "mlp.norm"),
            qkv=module_paths(model, path, *_QKV),
            proj=module_paths(model, path, "attn.proj"),
            read_directly=module_paths(model, path, "attn.qkv") if fused else (),
        )

    def embed(self, model: Any, inputs: Tensor) -> Tensor:
        return model.norm_pre(model._pos_embed(model.patch_embed(inputs))[0])

    def block(self, model: Any, block: nn.Module, tokens: Tensor) -> Tensor:
        return block(tokens, rope=self._rope(model, block, tokens))

    def _rope(self, model: Any, block: nn.Module, tokens: Tensor) -> Tensor | None:
        """Rotary angles of `tokens` (B, n, d) in `block`: its own where each block has some."""
        if model.rope is None:
            return None
        fixed = hasattr(model.rope, "feat_shape") and not model.dynamic_img_size
        grid = patch_grid(tokens.shape[1] - model.num_prefix_tokens, model.patch_embed.grid_size)
        with as_in_eval(model.rope):
            angles = model.rope.get_embed() if fixed else model.rope.get_embed(shape=grid)
        return angles[_index(model.blocks, block)] if model.rope_mixed else angles

    def pool(self, model: Any, tokens: Tensor) -> Tensor:
        return model.forward_head(model.norm(tokens), pre_logits=True)

    def classify(self, model: Any, pooled: Tensor) -> Tensor:
        return model.head(pooled)


def _index(blocks: nn.ModuleList, block: nn.Module) -> int:
    inner = [each.block if isinstance(each, BlockWrapper) else each for each in blocks]
    return next(index for index, each in enumerate(inner) if each is block)


register(TimmEva())
