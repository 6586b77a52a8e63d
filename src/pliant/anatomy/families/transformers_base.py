"""What all families of the transformers library share: a map from roles to attributes, and how it is read.

A family is a subclass that fills in the map. Names are dotted, relative to a block or to the tower: the module that
holds embeddings and blocks, which is the model itself or, in a classifier, one child of it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pliant.anatomy.registry import attribute, block_paths, module_paths
from pliant.anatomy.schema import Anatomy, Block

QKV = ("q_proj", "k_proj", "v_proj")
OWN_TOWER = "tower"
"""Where a classifier that pliant puts on a bare tower keeps it; such a one reads what the tower itself pools."""


class TransformersFamily:
    """Base of the families; the attributes below are the map.

    Attributes:
        name: of the family.
        blocks: the list of blocks.
        ln1, mha, ln2, fc1, fc2, proj: the parts of a block, several names where variants differ.
        qkv: names within the first of `mha`.
        embed_names: what makes the first block's input; the first name must exist.
        norm: what comes after the last block; the first name must exist.
        positions: the learned position grid.
        requires, lacks: attributes of the tower that tell this family from its neighbours.
        heads: names that the classifier may have at the root.
        head_dist: name of a distilled model's second classifier.
    """

    name: str
    blocks = "layers"
    ln1: tuple[str, ...] = ("layernorm_before",)
    mha: tuple[str, ...] = ("attention",)
    ln2: tuple[str, ...] = ("layernorm_after",)
    fc1: tuple[str, ...] = ("mlp.fc1",)
    fc2: tuple[str, ...] = ("mlp.fc2",)
    qkv: tuple[str, ...] = QKV
    proj: tuple[str, ...] = ("o_proj",)
    embed_names: tuple[str, ...] = ("embeddings",)
    norm: tuple[str, ...] = ("layernorm", "pooler")
    positions: str | None = "embeddings.position_embeddings"
    requires: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    heads: tuple[str, ...] = ("classifier",)
    head_dist: str | None = None

    def __init__(self) -> None:
        query, fc1, fc2 = f"{self.mha[0]}.{self.qkv[0]}", " or ".join(self.fc1), " or ".join(self.fc2)
        block = "/".join((self.ln1[0], query, self.ln2[0], fc1, fc2))
        self.looks_for = ", ".join((self.embed_names[0], f"{self.blocks}[*].{block}", self.norm[0], *self.requires))

    def matches(self, model: Any) -> bool:
        return self._tower_path(model) is not None

    def tower(self, model: Any) -> Any:
        return model.get_submodule(self._tower_path(model) or "")

    def _tower_path(self, model: Any) -> str | None:
        if self._is_tower(model):
            return ""
        # A root with more than a tower and its classifier (a text tower, a decoder) is another model.
        heads = [name for name in (*self.heads, self.head_dist) if name and hasattr(model, name)]
        filled = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
        rest = [name for name in filled if name not in heads]
        return rest[0] if heads and len(rest) == 1 and self._is_tower(getattr(model, rest[0])) else None

    def _is_tower(self, module: Any) -> bool:
        blocks = attribute(module, self.blocks)
        if not (isinstance(blocks, nn.ModuleList) and len(blocks)):
            return False
        attention = self.mha[0]
        in_block = (self.ln1[0], self.ln2[0], *(f"{attention}.{name}" for name in (*self.qkv, *self.proj)))
        in_tower = (self.embed_names[0], self.norm[0], *self.requires)
        return (
            all(attribute(blocks[0], name) is not None for name in in_block)
            and any(attribute(blocks[0], name) is not None for name in self.fc2)
            and all(attribute(module, name) is not None for name in in_tower)
            and all(attribute(module, name) is None for name in self.lacks)
        )

    def describe(self, model: Any) -> Anatomy:
        root = self._tower_path(model) or ""
        prefix = f"{root}." if root else ""
        config = self.tower(model).config
        head = next((name for name in self.heads if isinstance(getattr(model, name, None), nn.Linear)), None)
        second = self.head_dist if isinstance(getattr(model, self.head_dist or "", None), nn.Linear) else None
        learned = self.positions and attribute(self.tower(model), self.positions) is not None
        return Anatomy(
            family=self.name,
            embed=module_paths(model, root, *self.embed_names),
            blocks=tuple(self._block(model, path) for path in block_paths(model, prefix + self.blocks)),
            norm=module_paths(model, root, *self.norm),
            head=head,
            positions=f"{prefix}{self.positions}" if learned else None,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            head_dist=second,
        )

    def _block(self, model: Any, path: str) -> Block:
        attention = f"{path}.{self.mha[0]}"
        return Block(
            path=path,
            ln1=module_paths(model, path, *self.ln1),
            mha=module_paths(model, path, *self.mha),
            ln2=module_paths(model, path, *self.ln2),
            fc1=module_paths(model, path, *self.fc1),
            fc2=module_paths(model, path, *self.fc2),
            qkv=module_paths(model, attention, *self.qkv),
            proj=module_paths(model, attention, *self.proj),
        )

    def embed(self, model: Any, inputs: Tensor) -> Tensor:
        embeddings = self.tower(model).embeddings
        return embeddings(inputs.to(next(embeddings.parameters()).dtype))

    def block(self, model: Any, block: nn.Module, tokens: Tensor) -> Tensor:
        return block(tokens, **self.context(self.tower(model), tokens))

    def context(self, tower: Any, tokens: Tensor) -> dict[str, Any]:
        """What a block is given besides its tokens (B, n, d)."""
        return {"attention_mask": None}

    def pool(self, model: Any, tokens: Tensor) -> Tensor:
        path = self._tower_path(model)
        pool = self.pool_tower if path in ("", OWN_TOWER) else self.pool_classifier
        return pool(self.tower(model), tokens)

    def pool_tower(self, tower: Any, tokens: Tensor) -> Tensor:
        """What a tower of its own returns as `pooler_output`: by default the class token, by its pooler if any."""
        tokens = tower.layernorm(tokens)
        pooler = getattr(tower, "pooler", None)
        return tokens[:, 0] if pooler is None else pooler(tokens)

    def pool_classifier(self, tower: Any, tokens: Tensor) -> Tensor:
        """What the classifier around a tower reads."""
        return self.pool_tower(tower, tokens)

    def classify(self, model: Any, pooled: Tensor) -> Tensor:
        for name in self.heads:
            if hasattr(model, name):
                return getattr(model, name)(pooled)
        return pooled
