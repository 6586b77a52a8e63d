"""The two sides of a measurement, as streams of distinct inputs in an order that the seed fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pliant.data import ImageSet, Preprocess, absolute, open_set
from pliant.data.images import map_images
from pliant.data.sources import open_source
from pliant.errors import PliantError

_READ = 64
"""Images that are decoded at a time."""


@dataclass
class Stream:
    """One side's inputs. Images that cannot be read are skipped and listed, up to a share.

    Attributes:
        name: what people call it.
        order: positions in the data, each once.
        skipped: what could not be read, with why.
    """

    name: str
    images: ImageSet | Tensor
    order: np.ndarray
    preprocess: Preprocess | None = None
    max_corrupt: float = 0.01
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Tensor]:
        self.skipped.clear()
        for start in range(0, len(self.order), _READ):
            batch = self._read(self.order[start : start + _READ])
            if len(batch):
                yield batch

    def _read(self, positions: np.ndarray) -> Tensor:
        if isinstance(self.images, Tensor):
            return self.images[torch.from_numpy(positions)]
        read = map_images(self._one, positions.tolist())
        self.skipped += [each for each in read if isinstance(each, str)]
        if len(self.skipped) > max(1.0, self.max_corrupt * len(self.order)):
            raise PliantError(
                f"{self.name}: {len(self.skipped)} images cannot be read, more than {self.max_corrupt:.0%} "
                f"({self.skipped[0]}); repair or remove them, or raise --max-corrupt"
            )
        good = [each for each in read if isinstance(each, Tensor)]
        return torch.stack(good) if good else torch.empty(0)

    def _one(self, position: int) -> Tensor | str:
        assert isinstance(self.images, ImageSet) and self.preprocess is not None
        try:
            return self.preprocess.evaluate(self.images.image(position))
        except PliantError as error:
            return str(error)


def image_streams(
    pretrain: str | None, downstream: str, preprocess: Preprocess, seed: int, max_corrupt: float = 0.01
) -> tuple[Stream, Stream]:
    """Both sides' images. Without `pretrain`, or with the same data twice, each side takes one half of them.

    Raises:
        PliantError: no such data, fewer than two images a side.
    """
    second = _open(downstream, ("test", "val", "train"))
    if pretrain is None or absolute(pretrain) == absolute(downstream):
        orders = _halves(len(second), seed)
        sides = [(second, order) for order in orders]
    else:
        first = _open(pretrain, ("train", "val", "test"))
        sides = [
            (side, np.random.default_rng([seed, n]).permutation(len(side))) for n, side in enumerate((first, second))
        ]
    streams = [Stream(images.name, images, order, preprocess, max_corrupt) for images, order in sides]
    for stream in streams:
        if len(stream) < 2:
            raise PliantError(f"{stream.name}: {len(stream)} images a side, and two are the least; give more images")
    return streams[0], streams[1]


def text_streams(names: Sequence[str], sequences: Sequence[Tensor], seed: int) -> tuple[Stream, Stream]:
    """Both sides' sequences (N, length); of one text twice, each side takes one half."""
    if names[0] == names[1]:
        orders = _halves(len(sequences[0]), seed)
    else:
        orders = [np.random.default_rng([seed, n]).permutation(len(each)) for n, each in enumerate(sequences)]
    first, second = (Stream(n, s, o) for n, s, o in zip(names, sequences, orders, strict=True))
    return first, second


def _halves(count: int, seed: int) -> list[np.ndarray]:
    order = np.random.default_rng([seed, 0]).permutation(count)
    return [order[0::2], order[1::2]]


def _open(spec: str, preferred: tuple[str, ...]) -> ImageSet:
    """The first of the preferred splits that the data has; all of it where it has none."""
    parts = open_source(spec).parts
    split = next((name for name in preferred if name in parts), preferred[0])
    return open_set(spec, split=split, verify=False)
