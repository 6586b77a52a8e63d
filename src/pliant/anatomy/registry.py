"""The list of known families, and finding the one that fits a model."""

from __future__ import annotations

from torch import nn

from pliant.anatomy.schema import Anatomy, BlockWrapper, Family
from pliant.errors import PliantError

_families: list[Family] = []


def register(family: Family) -> Family:
    """Add a family; it is asked before those registered earlier, so that a special case can win."""
    _families.insert(0, family)
    return family


def known_families() -> list[Family]:
    import pliant.anatomy.families  # noqa: F401  (registers the built-in ones)

    return list(_families)


def family_of(model: nn.Module) -> Family:
    """The family that recognises `model`.

    Raises:
        PliantError: none does; says what was looked for and found, and how to register a new family.
    """
    known = known_families()
    for family in known:
        if family.matches(model):
            return family
    looked = "\n".join(f"    {family.name}: {family.looks_for}" for family in reversed(known))
    found = ", ".join(f"{name} ({type(child).__name__})" for name, child in model.named_children()) or "no submodules"
    raise PliantError(
        f"{type(model).__name__} is of no known family. Found at its root: {found}. Looked for:\n\n{looked}\n\n"
        f"To teach pliant this family:\n\n{_HOW_TO}"
    )


def find(model: nn.Module) -> Anatomy:
    """The anatomy of `model`. Raises PliantError where no family recognises it."""
    return family_of(model).describe(model)


def block_paths(model: nn.Module, path: str) -> list[str]:
    """Paths of the blocks in the list at `path`, looking through wrappers."""
    blocks = model.get_submodule(path)
    return [
        f"{path}.{name}.block" if isinstance(block, BlockWrapper) else f"{path}.{name}"
        for name, block in blocks.named_children()
    ]


def module_paths(model: nn.Module, root: str, *names: str) -> tuple[str, ...]:
    """Those of `names` that exist below `root` and hold parameters; modules and bare parameters alike."""
    owner = model.get_submodule(root) if root else model
    prefix = f"{root}." if root else ""
    found = []
    for name in names:
        value = attribute(owner, name)
        if isinstance(value, nn.Parameter) or (isinstance(value, nn.Module) and any(True for _ in value.parameters())):
            found.append(prefix + name)
    return tuple(found)


def attribute(owner: object, dotted: str) -> object:
    """The attribute at a dotted path, or None where there is none."""
    for part in dotted.split("."):
        owner = getattr(owner, part, None)
    return owner


_HOW_TO = """\
    from pliant.anatomy import Anatomy, Block, register

    class MyFamily:
        name, looks_for = "my-vit", "layers[*].attention"
        def matches(self, model): return hasattr(model, "layers")
        def describe(self, model):  # paths from the model's root
            blocks = tuple(Block(path=f"layers.{i}", ln1=(f"layers.{i}.norm1",), mha=(f"layers.{i}.attention",),
                                 ln2=(f"layers.{i}.norm2",), fc1=(f"layers.{i}.up",), fc2=(f"layers.{i}.down",),
                                 qkv=(f"layers.{i}.attention.qkv",), proj=(f"layers.{i}.attention.out",))
                           for i in range(len(model.layers)))
            return Anatomy("my-vit", ("patches", "cls"), blocks, ("norm",), "head", "pos", width=384, heads=6)
        def embed(self, model, x): return model.patches(x)
        def block(self, model, block, tokens): return block(tokens)
        def pool(self, model, tokens): return model.norm(tokens)[:, 0]
        def classify(self, model, pooled): return model.head(pooled)

    register(MyFamily())"""
