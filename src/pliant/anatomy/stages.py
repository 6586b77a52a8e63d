"""A forward pass as a list of stages, so that what is frozen can be computed once and the rest trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from pliant.anatomy.registry import family_of
from pliant.anatomy.schema import BlockWrapper


@dataclass(frozen=True)
class Stage:
    """One step of the forward pass: `run` maps (B, ...) to (B, ...); `paths` says whose parameters it reads."""

    name: str
    paths: tuple[str, ...]
    run: Callable[[Tensor], Tensor]


def stages(model: nn.Module) -> list[Stage]:
    """The whole forward pass of `model`; running all stages in order equals `model(x)` bit for bit.

    A wrapped block is two stages: the block itself, and what the wrapper adds after it.
    """
    family = family_of(model)
    anatomy = family.describe(model)
    result = [Stage("embed", anatomy.embed, lambda x: family.embed(model, x))]
    for index, entry in enumerate(anatomy.blocks):
        result += _block_stages(model, family, index, entry.path)
    result.append(Stage("pool", anatomy.norm, lambda x: family.pool(model, x)))
    result.append(Stage("head", anatomy.paths("head"), lambda x: family.classify(model, x)))
    return result


def through(found: Iterable[Stage], x: Tensor) -> Tensor:
    """What the stages, one after the other, make of x."""
    for stage in found:
        x = stage.run(x)
    return x


def _block_stages(model: nn.Module, family, index: int, path: str) -> list[Stage]:
    inner = model.get_submodule(path)
    found = [Stage(f"block.{index}", (path,), lambda x: family.block(model, inner, x))]
    parent, _, last = path.rpartition(".")
    if last == "block" and isinstance(wrapper := model.get_submodule(parent), BlockWrapper):
        added = tuple(f"{parent}.{name}" for name, _ in wrapper.named_parameters() if not name.startswith("block."))
        found.append(Stage(f"after.{index}", added, wrapper.after))
    return found


def first_trained(found: list[Stage], trained: set[str]) -> int:
    """Index of the first stage that reads a parameter named in `trained`; all before it is a fixed function."""
    for index, stage in enumerate(found):
        if any(_covers(path, name) for path in stage.paths for name in trained):
            return index
    return len(found)


def _covers(path: str, name: str) -> bool:
    return name == path or name.startswith(path + ".")
