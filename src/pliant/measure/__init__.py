"""Measuring components: plasticity, elasticity, local figures and upper bounds (arXiv 2602.06883)."""

from pliant.measure.measurement import PROTOCOLS, plasticity
from pliant.measure.pairs import ESTIMATORS
from pliant.measure.parts import COMPONENTS
from pliant.measure.result import Plasticity, compare, load

__all__ = ["COMPONENTS", "ESTIMATORS", "PROTOCOLS", "Plasticity", "compare", "load", "plasticity"]
