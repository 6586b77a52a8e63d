"""A plan: what a method inserts and trains in a given model. Made without touching the model, then applied to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch import nn

from pliant import anatomy
from pliant.anatomy import PARTS, Anatomy
from pliant.backbone.identity import Identity, fingerprint
from pliant.errors import PliantError
from pliant.methods.base import Method, Options, method_named, parameter_names


@dataclass(frozen=True)
class Row:
    """One line of the plan's table. `share` is of all parameters of the adapted model."""

    part: str
    blocks: str
    parameters: int
    trained: bool
    share: float


@dataclass(frozen=True)
class Adaptation:
    """What was done to a model; travels with it as `model.pliant_adaptation` and into every saved file."""

    method: str
    options: dict[str, Any]
    blocks: tuple[int, ...]
    trained: tuple[str, ...]
    fingerprint: str
    identity: Identity | None
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What will be inserted and trained. `apply` carries it out; nothing else changes the model.

    Attributes:
        name: the method as asked for (`adapter`, `mha,fc1`, ...).
        options: the method's own options.
        anatomy: of the model that the plan was made for; it is applied to no other.
        blocks: indices of the blocks that the method works on.
        trained: names of the parameters to train in the adapted model, by part; the head is always among them.
        rows: the table: every parameter of the adapted model stands in exactly one row.
        prefix: names of the stages before the first trained or inserted part, a fixed function of the image.
    """

    name: str
    method: Method = field(repr=False)
    options: Options
    anatomy: Anatomy = field(repr=False)
    blocks: tuple[int, ...]
    trained: dict[str, list[str]] = field(repr=False)
    rows: tuple[Row, ...] = field(repr=False)
    prefix: tuple[str, ...] = field(repr=False)

    def apply(self, model: nn.Module) -> nn.Module:
        """Insert, freeze and unfreeze, in place; returns `model`, still a plain `nn.Module`.

        Raises:
            PliantError: the model is already adapted, or is not the one that the plan was made for.
        """
        _refuse_adapted(model)
        identity = getattr(model, "pliant_identity", None)
        described = anatomy.find(model)
        if described != self.anatomy:
            raise PliantError(f"the plan was made for another model than this {type(model).__name__}")
        mark = fingerprint(model)
        self.method.insert(model, described, self.blocks, self.options)
        names = set(self.trained_names())
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        self.train_mode(model)
        options = self.options.model_dump()
        model.pliant_adaptation = Adaptation(
            self.name, options, self.blocks, tuple(self.trained_names()), mark, identity
        )  # type: ignore[assignment]
        return model

    def trained_names(self) -> list[str]:
        return [name for names in self.trained.values() for name in names]

    def train_mode(self, model: nn.Module) -> nn.Module:
        """Ready to train: frozen parts in eval mode, so that no dropout or batch statistic can leak in."""
        return model.train(self.name == "full")

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: `body` and `head`, each with and without weight decay.

        Biases, norms and other vectors get none. A group's `name` says which it is, so that a training loop can give
        the new head its own rate.
        """
        named = dict(model.named_parameters())
        groups: list[dict[str, Any]] = []
        for part, names in (("body", [n for p, g in self.trained.items() if p != "head" for n in g]),
                            ("head", self.trained["head"])):  # fmt: skip
            decayed = [named[name] for name in names if named[name].ndim > 1]
            plain = [named[name] for name in names if named[name].ndim <= 1]
            if decayed:
                groups.append({"params": decayed, "name": part})
            if plain:
                groups.append({"params": plain, "name": f"{part}, no decay", "weight_decay": 0.0})
        return groups

    @property
    def trained_parameters(self) -> int:
        return sum(row.parameters for row in self.rows if row.trained)

    def __rich__(self):
        from rich.table import Table

        table = Table(title=f"plan: {self.name}", title_justify="left")
        for column, justify in (("part", "left"), ("blocks", "left"), ("parameters", "right"), ("", "left"),
                                ("share", "right")):  # fmt: skip
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for row in self.rows:
            state = "trained" if row.trained else "frozen"
            style = "bold" if row.trained else "dim"
            table.add_row(row.part, row.blocks, f"{row.parameters:,}", state, f"{row.share:.2%}", style=style)
        total = sum(row.parameters for row in self.rows)
        table.add_section()
        table.add_row("trained", "", f"{self.trained_parameters:,}", "", f"{self.trained_parameters / total:.2%}")
        table.add_row("all", "", f"{total:,}", "", "")
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()


def plan(model: nn.Module, method: str = "adapter", *, blocks: str | Sequence[int] = "all", **options: Any) -> Plan:
    """Plan how to adapt `model`; the model itself is not touched.

    Args:
        model: a plain backbone of a known family, with a head.
        method: `head`, `full`, a comma list of `ln1,mha,ln2,fc1,fc2,embed`, `adapter` or `lora`.
        blocks: `all`, `last:3`, `0,3,5-7`, or indices.
        options: the method's own: `rank`, `alpha`, `init` and `every` for adapters; `rank`, `alpha` and `targets`
            for LoRA.

    Raises:
        PliantError: unknown method, option or block; a rank that does not fit; a model without a head.
    """
    _refuse_adapted(model)
    chosen = method_named(method)
    described = anatomy.find(model)
    if described.head is None:
        raise PliantError(f"{type(model).__name__} has no head to train; load it with num_classes=...")
    indices = parse_blocks(blocks, described.depth)
    settings = _options(chosen, method, options)
    sketch = _on_meta(model)
    chosen.insert(sketch, described, indices, settings)
    adapted = anatomy.find(sketch)
    trained = chosen.trained(sketch, adapted, indices, settings)
    trained["head"] = parameter_names(sketch, adapted.paths("head"))
    names = {name for group in trained.values() for name in group}
    found = anatomy.stages(sketch)
    prefix = tuple(stage.name for stage in found[: anatomy.first_trained(found, names)])
    return Plan(method, chosen, settings, described, indices, trained, _rows(sketch, adapted, trained), prefix)


def parse_blocks(blocks: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """`all`, `last:3`, `0,3,5-7` or indices to sorted block indices of a model of `depth` blocks.

    Raises:
        PliantError: not of that form, empty, or out of range.
    """
    problem = PliantError(f"--blocks {blocks!r}: give all, last:N or indices from 0 to {depth - 1} such as 0,3,5-7")
    if not isinstance(blocks, str):
        indices = [int(index) for index in blocks]
    elif blocks == "all":
        indices = list(range(depth))
    else:
        try:
            if blocks.startswith("last:"):
                count = int(blocks.removeprefix("last:"))
                indices = list(range(depth - count, depth))
            else:
                spans = [span.split("-") for span in blocks.split(",")]
                indices = [index for span in spans for index in range(int(span[0]), int(span[-1]) + 1)]
        except ValueError:
            raise problem from None
    if not indices or min(indices) < 0 or max(indices) >= depth:
        raise problem
    return tuple(sorted(set(indices)))


def adaptation_of(model: nn.Module) -> Adaptation:
    """What was done to `model`. Raises PliantError where it is a plain backbone."""
    found = getattr(model, "pliant_adaptation", None)
    if found is None:
        raise PliantError("this model is not adapted: make a plan and apply it first")
    return found


@contextmanager
def disabled(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, what the method inserted is switched off: the frozen backbone with the trained head.

    Raises:
        PliantError: the method inserts nothing that could be switched off.
    """
    method = method_named(adaptation_of(model).method)
    switch = getattr(method, "switch", None)
    if switch is None:
        raise PliantError(f"method {method.name} changes the backbone itself; load the plain backbone instead")
    switch(model, False)
    try:
        yield model
    finally:
        switch(model, True)


def _refuse_adapted(model: nn.Module) -> None:
    if (done := getattr(model, "pliant_adaptation", None)) is not None:
        raise PliantError(f"this model is already adapted by {done.method!r}; start from a plain backbone")


def _options(method: Method, name: str, given: dict[str, Any]) -> Options:
    from pydantic import ValidationError

    try:
        return method.options(name, {key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise PliantError(f"method {name!r} takes no option {option!r}") from error
        raise PliantError(f"--{option} {first['input']!r} of method {name!r}: {first['msg']}") from error


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy without data, so that a plan costs no memory: deepcopy finds stand-ins for all tensors in its memo."""
    memo: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        stand_in = tensor.detach().to("meta")
        memo[id(tensor)] = (
            nn.Parameter(stand_in, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else stand_in
        )
    return copy.deepcopy(model, memo)


def _rows(model: nn.Module, described: Anatomy, trained: dict[str, list[str]]) -> tuple[Row, ...]:
    """Every parameter in exactly one row: what was inserted, then the backbone's parts, then the rest and the head."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    names = {name for group in trained.values() for name in group}
    owners: dict[str, str] = {}
    for part in ("embed", *PARTS, "norm", "head"):
        owners.update(dict.fromkeys(parameter_names(model, described.paths(part)), part))
    inserted = [part for part in trained if part not in ("embed", *PARTS, "norm", "head", "other")]
    for part in inserted:
        owners.update(dict.fromkeys(trained[part], part))
    counts: dict[tuple[str, bool], list[str]] = {}
    for name in sizes:
        counts.setdefault((owners.get(name, "other"), name in names), []).append(name)
    order = [*inserted, "embed", *PARTS, "other", "norm", "head"]
    return tuple(
        Row(part, _blocks_of(group, described, part), sum(sizes[name] for name in group), is_trained,
            sum(sizes[name] for name in group) / total)
        for (part, is_trained), group in sorted(counts.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    )  # fmt: skip


def _blocks_of(names: list[str], described: Anatomy, part: str) -> str:
    """Which blocks a row's parameters lie in: `all`, `0,3,5-7`, or nothing for what lies outside of blocks."""
    if part in ("embed", "norm", "head"):
        return ""
    roots = [block.path.removesuffix("block") for block in described.blocks]
    found = [index for index, root in enumerate(roots) if any(_below(name, root) for name in names)]
    if len(found) == described.depth:
        return "all"
    spans: list[list[int]] = []
    for index in found:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _below(name: str, root: str) -> bool:
    return name.startswith(root.rstrip(".") + ".")
