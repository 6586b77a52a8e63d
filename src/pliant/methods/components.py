"""Tuning component types alone, in all or some blocks, with the final norm (arXiv 2602.06883, section 4)."""

from __future__ import annotations

from pliant.anatomy import PARTS
from pliant.errors import PliantError
from pliant.methods.base import Options, Recipe, parameter_names, register

TUNABLE = (*PARTS, "embed")


class ComponentOptions(Options):
    parts: tuple[str, ...]


class Components:
    """`mha`, `ln1,ln2`, ...: the named parts of the chosen blocks and the final norm are trained, the rest is frozen."""

    name = "components"
    summary = "a comma list of ln1,mha,ln2,fc1,fc2,embed: those parts and the final norm"

    def recipe(self, name):
        # Gains and biases of norms are few and of order one: they bear, and need, rates that would ruin matrices.
        norms_alone = set(_parts(name)) <= {"ln1", "ln2"}
        return Recipe(lr=3e-3, head_lr=3e-3) if norms_alone else Recipe(lr=2e-4, head_lr=1e-3)

    def options(self, name, given):
        return ComponentOptions(parts=_parts(name), **given)

    def insert(self, model, anatomy, blocks, options):
        pass

    def trained(self, model, anatomy, blocks, options):
        groups = {}
        for part in options.parts:
            paths = anatomy.embed if part == "embed" else [p for b in blocks for p in getattr(anatomy.blocks[b], part)]
            groups[part] = parameter_names(model, paths)
            if not groups[part]:
                raise PliantError(f"{anatomy.family} has no parameters in {part!r}")
        groups["norm"] = parameter_names(model, anatomy.norm)
        return {part: names for part, names in groups.items() if names}


def _parts(name: str) -> tuple[str, ...]:
    """The parts that a method's name lists, in the order of the forward pass."""
    named = {part.strip() for part in name.split(",")}
    return tuple(part for part in (*PARTS, "embed") if part in named)


register(Components())
