"""The checks of claims, by what they read. Importing this package registers them."""

from pliant.study.checks import adapters, components, plasticity, training  # noqa: F401
