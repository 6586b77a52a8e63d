"""What a method is: what it inserts, what it trains, and the settings that suit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict
from torch import nn

from pliant.anatomy import Anatomy
from pliant.errors import PliantError


class Options(BaseModel):
    """A method's own options. Strict: a name that the method does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Recipe(BaseModel):
    """The settings a method trains well with by default; chosen on validation data (docs/defaults.md).

    Rates are AdamW's peak rates, `head_lr` the new head's; warm-up is a fraction of all steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float
    head_lr: float
    weight_decay: float = 0.05
    warmup: float = 0.1
    epochs: int = 20


class Method(Protocol):
    """One way to adapt a backbone. Adding one is one file that registers an instance."""

    name: str
    summary: str

    def recipe(self, name: str) -> Recipe | None:
        """What the method as named trains well with; None for one that is fitted in closed form, not by steps."""
        ...

    def options(self, name: str, given: dict[str, Any]) -> Options:
        """The options of the method as named (`mha,fc1` carries its parts in its name)."""
        ...

    def insert(self, model: nn.Module, anatomy: Anatomy, blocks: Sequence[int], options: Any) -> None:
        """Put new modules into `model`, in place. At the start the logits must not change by one bit."""
        ...

    def trained(self, model: nn.Module, anatomy: Anatomy, blocks: Sequence[int], options: Any) -> dict[str, list[str]]:
        """After insertion: names of the parameters to train, by part (the head is added by the plan)."""
        ...


_methods: dict[str, Method] = {}


def register(method: Method) -> Method:
    _methods[method.name] = method
    return method


def methods() -> dict[str, Method]:
    """All methods by name, in the order that help texts show them."""
    import pliant.methods  # noqa: F401  (registers the built-in ones)

    return dict(_methods)


def method_named(name: str) -> Method:
    """The method called `name`; a comma list of parts is the method `components`.

    Raises:
        PliantError: unknown name; names the near ones.
    """
    from pliant.backbone.timm_models import near
    from pliant.methods.components import TUNABLE

    known = methods()
    if name in known and name != "components":
        return known[name]
    parts = [part.strip() for part in name.split(",")]
    if all(part in TUNABLE for part in parts):
        return known["components"]
    unknown = next(part for part in parts if part not in TUNABLE)
    if unknown in known and len(parts) > 1:
        raise PliantError(f"--method {name}: {unknown} cannot be combined; lists are of {','.join(TUNABLE)} only")
    names = [n for n in known if n != "components"] + list(TUNABLE)
    raise PliantError(
        f"unknown method {unknown!r}{near(unknown, names)}; methods are {', '.join(n for n in known if n != 'components')}"
        f", or a comma list of {','.join(TUNABLE)}"
    )


def is_fitted(name: str) -> bool:
    """Is the method called `name` fitted at once, and not trained by steps? Raises PliantError as `method_named`."""
    return method_named(name).recipe(name) is None


def parameter_names(model: nn.Module, paths: Sequence[str]) -> list[str]:
    """Names of all parameters at or below `paths`, in the model's order."""
    return [
        name
        for name, _ in model.named_parameters()
        if any(name == path or name.startswith(path + ".") for path in paths)
    ]
