"""Linear probing by gradient descent: only the new head is trained."""

from __future__ import annotations

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
        return {}


register(Head())
