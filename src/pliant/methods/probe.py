"""The linear probe: a yardstick of what the frozen features already tell, fitted without training."""

from __future__ import annotations

from pliant.errors import PliantError
from pliant.methods.base import Options, register


class Probe:
    name = "probe"
    summary = "logistic regression on mean tokens, by scikit-learn: the yardstick, not to deploy"

    def recipe(self, name):
        return None  # nothing is trained by steps

    def options(self, name, given):
        return Options(**given)

    def insert(self, model, anatomy, blocks, options):
        pass

    def trained(self, model, anatomy, blocks, options):
        if len(blocks) != anatomy.depth:
            raise PliantError("--blocks does not go with --method probe, which trains nothing in the blocks")
        return {}


register(Probe())
