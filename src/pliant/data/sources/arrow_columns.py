"""Finding images and labels in an Arrow table with, or without, Hugging Face's Image and ClassLabel columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pliant.errors import PliantError

_IMAGE_NAMES = ("image", "img", "images", "picture", "photo", "pixel_values", "jpg", "png", "jpeg")
_LABEL_NAMES = ("label", "labels", "fine_label", "class", "class_name", "target", "category", "cls", "y")

Features = Mapping[str, Any]
"""Hugging Face's description of columns: {"label": {"_type": "ClassLabel", "names": [...]}, ...}."""


def features_of(schema: Any) -> Features:
    """What `datasets` wrote into an Arrow schema; empty where it did not."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def columns(schema: Any, features: Features, name: str) -> tuple[str, str]:
    """Names of the image and the label column.

    Raises:
        PliantError: no such column; names those that there are.
    """
    import pyarrow.types as kinds

    def encoded(column: str) -> bool:
        kind = schema.field(column).type
        if kinds.is_struct(kind):
            kind = kind.field("bytes").type if kind.get_field_index("bytes") >= 0 else None
        return kind is not None and (kinds.is_binary(kind) or kinds.is_large_binary(kind))

    def discrete(column: str) -> bool:
        kind = schema.field(column).type
        kind = kind.value_type if kinds.is_dictionary(kind) else kind
        return kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_boolean(kind)

    images = [column for column in schema.names if encoded(column)]
    labels = [column for column in schema.names if discrete(column)]
    image = _choose(images, features, "Image", _IMAGE_NAMES) or (images[0] if images else None)
    label = _choose(labels, features, "ClassLabel", _LABEL_NAMES)
    for found, what in ((image, "column of encoded images"), (label, "label column")):
        if found is None:
            raise PliantError(
                f"{name}: has no {what} among its columns {', '.join(schema.names) or '(none)'}; "
                "expected image (or img) with encoded bytes, and label"
            )
    return str(image), str(label)


def _choose(fitting: list[str], features: Features, kind: str, names: tuple[str, ...]) -> str | None:
    declared = [column for column in fitting if _kind(features, column) == kind]
    lower = {column.lower(): column for column in reversed(declared or fitting)}
    named = next((lower[name] for name in names if name in lower), None)
    return named or (declared[0] if declared else None)


def _kind(features: Features, column: str) -> str | None:
    feature = features.get(column)
    return feature.get("_type") if isinstance(feature, Mapping) else None


def labels_of(column: Any, feature: Any, name: str) -> tuple[np.ndarray, list[str]]:
    """Labels int64 (N,), -1 where there is none, and class names.

    Names are ClassLabel's in its order; otherwise the values that occur, in their own order.

    Raises:
        PliantError: a label that ClassLabel has no name for.
    """
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    declared = isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    if declared and kinds.is_integer(column.type):
        names = [str(entry) for entry in feature["names"]]
        if len(set(names)) < len(names):
            raise PliantError(f"{name}: its class names are not distinct")
        values = np.asarray(pc.fill_null(column.cast("int64"), -1).to_numpy(), dtype=np.int64)
        if len(values) and values.max() >= len(names):
            raise PliantError(f"{name}: label {values.max()} has no name; its schema names {len(names)} classes")
        return np.maximum(values, -1), names
    present = sorted(value for value in pc.unique(column).to_pylist() if value is not None)
    position = {value: index for index, value in enumerate(present)}
    labels = [position.get(value, -1) for value in column.to_pylist()]
    return np.array(labels, dtype=np.int64), [str(value) for value in present]
