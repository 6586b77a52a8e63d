"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels, which come with the library."""

from __future__ import annotations

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.data.splits import hold_out
from pliant.data.stores import ArrayStore

_TEST_SEED = 0
"""The test images are the same whatever the run's seed, so that results compare."""


class Digits:
    def matches(self, spec: str) -> bool:
        return spec == "digits"

    def open(self, spec: str) -> Opened:
        from sklearn.datasets import load_digits

        loaded = load_digits()
        # Values run from 0 to 16.
        pixels = np.round(loaded.images * (255 / 16)).astype(np.uint8)
        names = [str(name) for name in loaded.target_names]
        every = ImageSet("digits", names, loaded.target, ArrayStore(pixels, "digits"))
        train, test = hold_out(every.labels, 0.2, _TEST_SEED, "test")
        return Opened({"train": every.subset(train), "test": every.subset(test)})

    def catalogue(self) -> list[SourceInfo]:
        return [SourceInfo("digits", 10, "1,797 handwritten digits, 8x8 grey", "comes with scikit-learn", True)]
