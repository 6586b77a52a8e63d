"""Linear probing by gradient descent: only the new head is trained."""

from __future__ import annotations

from pliant.errors import PliantError
from pliant.methods.base import Options, Recipe, register


class Head:
    name = "head"
    summary = "the new head alone; the backbone runs once"

    def recipe(self, name):
        return Recipe(lr=1e-2, head_lr=1e-2, weight_decay=1e-4)

    def options(self, name, given):
        return Options(**given)

    def insert(self, model, anatomy, blocks, options):
        pass

    def trained(self, model, anatomy, blocks, options):
        if len(blocks) != anatomy.depth:
            raise PliantError("--blocks does not go with --method head, which trains nothing in the blocks")
        return {}


register(Head())
