"""Ways to adapt a backbone, one file each, and the plan that applies one to a model."""

from pliant.methods import adapter, components, full, head, lora, probe  # noqa: F401  (each registers itself)
from pliant.methods.base import Method, Options, Recipe, is_fitted, method_named, methods, register
from pliant.methods.plan import Adaptation, Plan, Row, adaptation_of, disabled, plan

__all__ = [
    "Adaptation", "Method", "Options", "Plan", "Recipe", "Row",
    "adaptation_of", "disabled", "is_fitted", "method_named", "methods", "plan", "register",
]  # fmt: skip
