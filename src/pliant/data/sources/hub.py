"""Data sets of the Hugging Face hub: `hf:name`, or `hf:name:configuration`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pliant.data.sources.arrow_columns import columns, labels_of
from pliant.data.sources.image_folder import SPLIT_NAMES
from pliant.data.sources.parquet import labelled
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.data.stores import ArrowStore
from pliant.errors import PliantError


class Hub:
    def matches(self, spec: str) -> bool:
        return spec.startswith("hf:")

    def open(self, spec: str) -> Opened:
        found = _load(spec)
        opened = Opened({})
        for split, dataset in found.items():
            part = SPLIT_NAMES.get(re.split(r"[-_.]", split.lower())[0])
            if part is None or part in opened.parts:
                opened.notes.append(f"{spec}: split {split} ignored")
                continue
            images, notes = _images(dataset, f"{spec}/{part}", split)
            opened.notes += notes
            if len(images):
                opened.parts[part] = images
        if not opened.parts:
            splits = ", ".join(found)
            raise PliantError(f"{spec}: no labelled images in train, validation or test; its splits are {splits}")
        return opened

    def catalogue(self) -> list[SourceInfo]:
        how = "downloaded by the datasets library when first used"
        return [SourceInfo("hf:NAME[:CONFIG]", None, "a data set of the Hugging Face hub", how, None)]


def _load(spec: str) -> dict[str, Any]:
    name, _, config = spec.removeprefix("hf:").partition(":")
    if not name:
        raise PliantError(f"{spec!r}: names no data set; write hf:NAME, such as hf:cifar10")
    import datasets

    try:
        return dict(datasets.load_dataset(name, config or None))
    # The library's errors have no common base, and those of its HTTP client change between versions.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PliantError(
            f"{spec}: cannot be had from the hub ({reason}); a folder of images or a parquet file works without it"
        ) from error


def _images(dataset: Any, name: str, split: str) -> tuple[Any, list[str]]:
    table = dataset.flatten_indices().data.table if dataset._indices is not None else dataset.data.table
    features = dataset.features.to_dict()
    image, label = columns(table.schema, features, name)
    store = ArrowStore(table.column(image), split, str(dataset._fingerprint), Path())
    return labelled(store, [labels_of(table.column(label), features.get(label), name)], name)
