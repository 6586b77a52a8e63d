"""pliant adapts pretrained Vision Transformers, and says why it adapts what it adapts.

    model = pliant.load("pico", num_classes=10)
    plan = pliant.plan(model, method="adapter", rank=16)
    plan.apply(model)
    optimizer = torch.optim.AdamW(plan.parameters(model), lr=1e-3)
    ...
    pliant.save(model, "out/")
    pliant.restore(pliant.load("pico"), "out/")

`pliant.adapt.run(Settings(...))` does the whole job, as the command line does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Torch takes seconds to import, so each name is imported when it is first used.
_HOME = {
    "load": "pliant.backbone",
    "fingerprint": "pliant.backbone",
    "replace_head": "pliant.backbone",
    "plan": "pliant.methods",
    "disabled": "pliant.methods",
    "save": "pliant.adapt",
    "restore": "pliant.adapt",
    "load_adapted": "pliant.adapt",
    "plasticity": "pliant.measure",
    "Plasticity": "pliant.measure",
    "PliantError": "pliant.errors",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from pliant.adapt import load_adapted as load_adapted
    from pliant.adapt import restore as restore
    from pliant.adapt import save as save
    from pliant.backbone import fingerprint as fingerprint
    from pliant.backbone import load as load
    from pliant.backbone import replace_head as replace_head
    from pliant.errors import PliantError as PliantError
    from pliant.measure import Plasticity as Plasticity
    from pliant.measure import plasticity as plasticity
    from pliant.methods import disabled as disabled
    from pliant.methods import plan as plan  # type: ignore[no-redef]


def __getattr__(name: str) -> Any:
    if name in ("adapt", "anatomy", "backbone", "data", "measure", "methods"):
        return import_module(f"pliant.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'pliant' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
