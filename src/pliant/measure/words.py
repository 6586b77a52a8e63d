"""What a measurement says, in plain sentences that follow from its figures."""

from __future__ import annotations

import pandas as pd

from pliant.measure.result import Plasticity

NORMS = "LayerNorms"


def sentences(measured: Plasticity, protocol: str) -> list[str]:
    """Which components amplify and which contract, in which order; and a warning where that is an effect of scale."""
    table = measured.table(protocol).set_index("component")
    said = [_effect(table), _order(measured, protocol)]
    warning = scale_warning(measured, protocol)
    return [*said, warning] if warning else said


def _effect(table: pd.DataFrame) -> str:
    above, below = table["low"] > 1, table["high"] < 1
    groups = (
        ("amplifies", "amplify", table.index[above]),
        ("contracts", "contract", table.index[below]),
        ("cannot be told from 1", "cannot be told from 1", table.index[~(above | below)]),
    )
    parts = []
    for one, several, members in groups:
        names = _joint(list(members))
        if names:
            parts.append(f"{listed(names)} {one if names[-1] != NORMS and len(names) == 1 else several}")
    return "; ".join(parts) + "."


def _joint(names: list[str]) -> list[str]:
    """LN1 and LN2 together are the LayerNorms, in what people call them."""
    if {"LN1", "LN2"} <= set(names):
        return [*(name for name in names if name not in ("LN1", "LN2")), NORMS]
    return names


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _order(measured: Plasticity, protocol: str) -> str:
    """LN2 > LN1 > FC1: neighbours that the data cannot tell apart are joined by ~."""
    return f"By plasticity: {chain(measured, protocol)}."


def chain(measured: Plasticity, protocol: str) -> str:
    ranked = measured.ranking(protocol)
    text = ranked[0]
    for upper, lower in zip(ranked, ranked[1:], strict=False):
        text += f" {'>' if apart(measured, protocol, upper, lower) else '~'} {lower}"
    return text


def apart(measured: Plasticity, protocol: str, upper: str, lower: str) -> bool:
    """Is the mean of `upper` above that of `lower`, by the 95 % interval of their difference?"""
    found = measured.differences
    found = found[found["protocol"] == protocol]
    for row in found.to_dict("records"):
        if (row["first"], row["second"]) == (upper, lower):
            return row["low"] > 0
        if (row["first"], row["second"]) == (lower, upper):
            return row["high"] < 0
    return False


def scale_warning(measured: Plasticity, protocol: str) -> str | None:
    """Plasticity depends on the units of tokens; where relative change clearly ranks otherwise, the ranking is of scale."""
    if not _turned(measured, protocol):
        return None
    order = " > ".join(measured.ranking(protocol, by="elasticity"))
    return (
        f"Careful: the ranking is an effect of scale. By relative change (elasticity) it is {order}: "
        "a norm's rate falls as tokens grow, a linear layer's does not. What to tune is better asked of your data, "
        "method by method, with pliant adapt."
    )


def _turned(measured: Plasticity, protocol: str) -> bool:
    """Do two components that the rates tell apart stand the other way round, and apart, by elasticity?"""
    table = measured.table(protocol).set_index("component")
    low, high = table["elasticity_low"].to_dict(), table["elasticity_high"].to_dict()
    ranked = measured.ranking(protocol)
    return any(
        low[lower] > high[upper] and apart(measured, protocol, upper, lower)
        for place, upper in enumerate(ranked)
        for lower in ranked[place + 1 :]
    )
