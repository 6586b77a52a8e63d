"""Full finetuning: every parameter is trained."""

from __future__ import annotations

from pliant.anatomy import PARTS
from pliant.errors import PliantError
from pliant.methods.base import Options, Recipe, parameter_names, register


class Full:
    name = "full"
    summary = "every parameter"

    def recipe(self, name):
        return Recipe(lr=5e-5, head_lr=1e-3, warmup=0.2)

    def options(self, name, given):
        return Options(**given)

    def insert(self, model, anatomy, blocks, options):
        pass

    def trained(self, model, anatomy, blocks, options):
        if len(blocks) != anatomy.depth:
            raise PliantError("--blocks does not go with --method full; name the parts to tune in those blocks instead")
        groups = {"embed": parameter_names(model, anatomy.embed)}
        for part in PARTS:
            groups[part] = parameter_names(model, anatomy.paths(part))
        groups["norm"] = parameter_names(model, anatomy.norm)
        taken = {name for names in groups.values() for name in names}
        taken |= set(parameter_names(model, anatomy.paths("head")))
        groups["other"] = [name for name, _ in model.named_parameters() if name not in taken]
        return {part: names for part, names in groups.items() if names}


register(Full())
