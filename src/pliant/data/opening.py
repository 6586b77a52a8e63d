"""From what a person named to training, validation and test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.sources import Opened, open_source
from pliant.data.spec import without_count
from pliant.data.splits import Splits, hold_out, limited, restore
from pliant.data.verify import drop_unreadable
from pliant.data.wording import counted, shown
from pliant.errors import PliantError
from pliant.progress import say


def open_splits(
    spec: str,
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    limit_train: int | None = None,
    limit_val: int | None = None,
    limit_test: int | None = None,
    max_corrupt: float = 0.01,
    verify: bool = True,
    stored: Mapping[str, Any] | None = None,
) -> Splits:
    """Training, validation and test images of `spec`, split by `seed` where the data has no splits of its own.

    Images without splits: `test_fraction` is the test set, `val_fraction` of the rest validation, both stratified. A
    missing validation set is taken from training. A data set with only training and validation is tested on the
    latter, and validation is taken from training. The classes are those of the training images; validation and test
    images are matched to them by name.

    Args:
        spec: a folder of images, a parquet file or folder, `hf:name`, or a name of `catalogue()`; `[n=500]` behind any
            of them is `limit_train=500`.
        limit_train, limit_val, limit_test: at most this many images after splitting, every class keeping its share.
            With `limit_train` alone, validation shrinks in proportion.
        max_corrupt: share of images that may be unreadable; they are dropped and listed in `skipped`.
        verify: decode all images once now, unless they are known to be good.
        stored: `Splits.to_dict()` of an earlier call, to reopen exactly the same images; all other options are void.

    Raises:
        PliantError: no such data, no images, one class only, a class with too few images, a class that training does
            not know, too many unreadable images; with `stored`, images that are gone or changed.
    """
    for option, fraction in (("--val-fraction", val_fraction), ("--test-fraction", test_fraction)):
        if not 0 < fraction < 1:
            raise PliantError(f"{option} {fraction:g}: must lie between 0 and 1")
    source, count = without_count(spec)
    opened = open_source(source)
    if stored is not None:
        return restore(opened.parts, stored, spec)
    limit_train = _one_limit(limit_train, count, spec)
    notes = list(opened.notes)
    parts = _three(opened, spec, seed, val_fraction, test_fraction, notes)
    classes = parts["train"].classes
    parts = {name: images.with_classes(classes).named(f"{spec}/{name}") for name, images in parts.items()}
    if limit_train is not None and limit_val is None:
        limit_val = max(round(limit_train * val_fraction / (1 - val_fraction)), len(classes))
    limits = {"train": limit_train, "val": limit_val, "test": limit_test}
    _check_limit(limit_train, parts["train"], spec if count else f"--limit-train {limit_train}")
    parts = {name: limited(images, limits[name], seed, name) for name, images in parts.items()}
    skipped: list[str] = []
    if verify:
        parts, skipped = drop_unreadable(parts, max_corrupt, spec)
        _check_left(parts, spec)
        if skipped:
            notes.append(f"{spec}: {counted(len(skipped), 'unreadable image')} left out")
    return Splits(**parts, notes=notes, skipped=skipped, spec=spec)


def open_set(
    spec: str,
    classes: Sequence[str] | None = None,
    split: str = "test",
    *,
    max_corrupt: float = 0.01,
    verify: bool = True,
) -> ImageSet:
    """One labelled set: all images of a source without splits, else those of `split` (train, val or test).

    Notes, and unreadable images that were left out, are told on standard error.

    Args:
        spec: as for `open_splits`; a number of training images in brackets limits the split `train` and no other.
        classes: labels are matched by name onto these.

    Raises:
        PliantError: no such data or split, a class not among `classes`, too many unreadable images.
    """
    source, count = without_count(spec)
    opened = open_source(source)
    notes = list(opened.notes)
    images = _one(opened, split, spec, notes)
    if split == "train" and "train" in opened.parts:
        _check_limit(count, images, spec)
        images = limited(images, count, 0, split)
    if classes is not None:
        images = images.with_classes(classes)
    if verify:
        kept, skipped = drop_unreadable({split: images}, max_corrupt, spec)
        images = kept[split]
        notes += [f"left out: {reason}" for reason in skipped]
    for note in notes:
        say(f"note: {note}")
    return images


def _one(opened: Opened, split: str, spec: str, notes: list[str]) -> ImageSet:
    parts = opened.parts
    if "all" in parts:
        return parts["all"]
    if split == "test" and "test" not in parts and "val" in parts:
        notes.append(f"{spec}: has no test images, so its validation images are the test set")
        return parts["val"]
    if split not in parts:
        raise PliantError(f"{spec}: has no split {split!r}, only {', '.join(parts)}; name one of these")
    return parts[split]


def _three(
    opened: Opened, spec: str, seed: int, val_fraction: float, test_fraction: float, notes: list[str]
) -> dict[str, ImageSet]:
    """Training, validation and test images, whatever of them the source has."""
    parts = dict(opened.parts)
    if "all" not in parts and "train" not in parts:
        raise PliantError(f"{spec}: has only {' and '.join(parts)} images and nothing to train on; add a train split")
    whole = parts.pop("all", None) or parts["train"]
    whole = _with_own_classes(whole, notes)
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
        notes.append(
            f"{spec}: has no test images, so validation images are the test set, and validation is taken from training"
        )
    missing = [name for name in ("val", "test") if name not in parts]
    _check_classes(whole, missing, spec)
    parts["train"] = whole
    for name, fraction in (("test", test_fraction), ("val", val_fraction)):
        if name in missing:
            kept, held = hold_out(parts["train"].labels, fraction, seed, name)
            parts[name] = parts["train"].subset(held)
            parts["train"] = parts["train"].subset(kept)
    return parts


def _with_own_classes(images: ImageSet, notes: list[str]) -> ImageSet:
    """Training images with only the classes that they have: an unused name would be a class nobody can learn."""
    counts = images.counts()
    if (counts > 0).all():
        return images
    empty = [name for name, count in zip(images.classes, counts, strict=True) if not count]
    notes.append(f"{images.name}: {counted(len(empty), 'class', 'classes')} without images ignored ({shown(empty)})")
    return images.with_classes([name for name, count in zip(images.classes, counts, strict=True) if count])


def _check_classes(images: ImageSet, missing: list[str], spec: str) -> None:
    if len(images.classes) < 2:
        only = f"one class only ({images.classes[0]!r})" if images.classes else "no images"
        raise PliantError(f"{spec}: has {only}; a classifier needs images of at least two classes")
    needed = 1 + len(missing)
    counts = zip(images.classes, images.counts().tolist(), strict=True)
    few = [f"{name!r} ({count})" for name, count in counts if count < needed]
    if few:
        parts = " and ".join(["train", *missing])
        more = f" and {counted(len(few) - 5, 'more class', 'more classes')}" if len(few) > 5 else ""
        raise PliantError(
            f"{spec}: too few images in {', '.join(few[:5])}{more}: {parts} need one each of every class; "
            "add images or remove the class"
        )


def _one_limit(limit_train: int | None, count: int | None, spec: str) -> int | None:
    """The number of training images, which may stand in brackets or as an option."""
    if None not in (limit_train, count) and limit_train != count:
        raise PliantError(f"{spec}: and --limit-train {limit_train} disagree; give one of them")
    return limit_train if count is None else count


def _check_limit(limit: int | None, train: ImageSet, named: str) -> None:
    if limit is not None and limit < len(train.classes):
        raise PliantError(f"{named}: fewer than the {len(train.classes)} classes; give at least one image a class")


def _check_left(parts: Mapping[str, ImageSet], spec: str) -> None:
    lost = [parts["train"].classes[label] for label in np.flatnonzero(parts["train"].counts() == 0)]
    if lost:
        raise PliantError(f"{spec}: no readable training image is left of {shown(lost)}; repair or remove")
    for name, images in parts.items():
        if not len(images):
            raise PliantError(f"{spec}: no readable {name} image is left; repair or remove")
