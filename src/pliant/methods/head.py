"""Linear probing by gradient descent: only the new head is trained."""

from __future__ import annotations

from pliant.errors import PliantError
from pliant.methods.base import Options, Recipe, register


class Head:
    name = "head"
    summary = "the new head alone; the backbone runs once"

    def recipe(self, name) -> Recipe | None:
        return Recipe(lr=1e-2, head_lr=1e-2, weight_decay=1e-4)

    def options(self, name, given):
        return Options(**given)

    def insert(self, model, anatomy, blocks, options):
        pass

    def trained(self, model, anatomy, blocks, options):
        if len(blocks) != anatomy.depth:
            raise PliantError(f"--blocks does not go with --method {self.name}, which trains nothing in the blocks")
        return {}


register(Head())
