"""The linear probe: a yardstick of what the frozen features already tell, fitted without training."""

from __future__ import annotations

from pliant.methods.base import register
from pliant.methods.head import Head


class Probe(Head):
    name = "probe"
    summary = "logistic regression on mean tokens, by scikit-learn: the yardstick, not to deploy"

    def recipe(self, name):
        return None  # nothing is trained by steps


register(Probe())
