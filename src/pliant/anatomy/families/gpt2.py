"""transformers' GPT-2: token ids in place of images, causal attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pliant.anatomy.families.transformers_base import TransformersFamily
from pliant.anatomy.registry import register


class GPT2(TransformersFamily):
    """Sequences are taken as unpadded: a cached prefix knows nothing of the ids it came from."""

    name = "transformers GPT-2"
    blocks, ln1, ln2 = "h", ("ln_1",), ("ln_2",)
    mha, qkv, proj = ("attn",), ("c_attn",), ("c_proj",)
    fc1, fc2 = ("mlp.c_fc",), ("mlp.c_proj",)
    embed_names, norm, positions = ("wte", "wpe"), ("ln_f",), None
    heads = ("score", "lm_head")

    def embed(self, model: Any, inputs: Tensor) -> Tensor:
        tower = self.tower(model)
        positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        return tower.drop(tower.wte(inputs) + tower.wpe(positions))

    def context(self, tower: Any, tokens: Tensor) -> dict[str, Any]:
        from transformers import DynamicCache
        from transformers.masking_utils import create_causal_mask

        # A cache, new for each block, for the same rounding: it lays keys and values out as the model's forward does.
        cache = DynamicCache(config=tower.config) if tower.config.use_cache else None
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        mask = create_causal_mask(
            config=tower.config, inputs_embeds=tokens, attention_mask=None, cache=cache, position_ids=positions
        )
        return {"attention_mask": mask, "cache": cache, "position_ids": positions}

    def pool_tower(self, tower: Any, tokens: Tensor) -> Tensor:
        return tower.ln_f(tokens)

    def classify(self, model: Any, pooled: Tensor) -> Tensor:
        """Logits of every token from a language model (B, n, vocabulary), of the last one from a classifier."""
        if hasattr(model, "score"):
            return model.score(pooled)[:, -1]  # in transformers' own order, for the same rounding
        return super().classify(model, pooled)


register(GPT2())
