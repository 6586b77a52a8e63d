"""Bad data gets one clear line; unreadable images are counted, listed and dropped; one set for evaluation."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from pliant.data import ImageSet, cache_folder, load_batch, open_set, open_splits, verify
from pliant.data.stores import ArrayStore
from pliant.errors import PliantError

from .conftest import fill, picture


def fails(spec, message, **options):
    with pytest.raises(PliantError, match=message) as error:
        open_splits(str(spec), **options)
    assert "\n" not in str(error.value)


def test_no_such_folder(tmp_path):
    fails(tmp_path / "nowhere", r"nowhere: no such file or folder")


def test_folder_without_images(tmp_path):
    fails(tmp_path, "a folder without images")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.heic").write_bytes(b"x")
    fails(tmp_path, r"a folder without images; .*1 file of no supported image type ignored \(1 .heic\)")


def test_loose_images(tmp_path):
    picture().save(tmp_path / "a.png")
    fails(tmp_path, r"1 image loose in it \(such as a.png\) and no class folders; put each image into a folder")


def test_split_root_of_loose_images(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        picture().save(tmp_path / part / "a.png")
    fails(tmp_path, r"/train: 1 image loose in it \(such as a.png\) and no class folders")


def test_split_root_with_only_train_of_loose_images(tmp_path):
    (tmp_path / "train").mkdir()
    picture().save(tmp_path / "train" / "a.png")
    fails(tmp_path, r"/train: 1 image loose in it")


def test_no_training_images(tmp_path):
    fill(tmp_path / "test", {"a": 3, "b": 3})
    fails(tmp_path, "has only test images and nothing to train on")


def test_two_folders_for_one_split(tmp_path):
    for part in ("train", "val", "valid"):
        fill(tmp_path / part, {"a": 3, "b": 3})
    fails(tmp_path, r"has two folders for val \(val, valid\)")


def test_one_class_only(tmp_path):
    fails(fill(tmp_path, {"rose": 9}), r"has one class only \('rose'\)")


def test_a_class_with_fewer_images_than_splits(tmp_path):
    fill(tmp_path, {"rose": 9, "tulip": 2, "lily": 1})
    few = r"too few images in 'lily' \(1\), 'tulip' \(2\): train and val and test need one each of every class"
    fails(tmp_path, few)


def test_one_image_a_class_is_too_few_without_a_validation_set(tmp_path):
    fill(tmp_path / "train", {"a": 3, "b": 1})
    fill(tmp_path / "test", {"a": 3, "b": 1})
    fails(tmp_path, r"too few images in 'b' \(1\): train and val need")


@pytest.mark.parametrize("part", ["val", "test"])
def test_classes_unknown_to_training(tmp_path, part):
    for name in ("train", "val", "test"):
        fill(tmp_path / name, {"a": 3, "b": 3, **({"dahlia": 1} if name == part else {})})
    fails(tmp_path, rf"{part}: class 'dahlia' unknown to training, which has 'a', 'b'")


def test_unreadable_folder(tmp_path):
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "b").chmod(0)
    try:
        if os.access(tmp_path / "b", os.R_OK):
            pytest.skip("this user may read everything")
        fails(tmp_path, "b: cannot be read")
    finally:
        (tmp_path / "b").chmod(0o755)


def test_names_that_are_no_text(tmp_path):
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "b" / os.fsdecode(b"\xff.png")).write_bytes(b"x")
    fails(tmp_path, "is not valid UTF-8; rename it")


@pytest.mark.parametrize("option", ["val_fraction", "test_fraction"])
@pytest.mark.parametrize("value", [0, 1, -0.1, float("nan")])
def test_fractions_out_of_range(tmp_path, option, value):
    fails(fill(tmp_path, {"a": 3, "b": 3}), "must lie between 0 and 1", **{option: value})


# Unreadable images


@pytest.fixture
def damaged(tmp_path):
    """200 images, of which one is truncated and one is a broken link."""
    root = fill(tmp_path / "data", {"a": 100, "b": 100})
    (root / "a" / "007.png").write_bytes((root / "a" / "007.png").read_bytes()[:100])
    (root / "b" / "008.png").unlink()
    (root / "b" / "008.png").symlink_to(tmp_path / "gone.png")
    return root


def test_unreadable_images_are_counted_listed_and_dropped(damaged):
    splits = open_splits(str(damaged))
    assert sum(map(len, splits.parts().values())) == 198
    assert len(splits.skipped) == 2
    assert any("a/007.png: not readable as an image" in line for line in splits.skipped)
    assert any("b/008.png: no such file" in line for line in splits.skipped)
    assert any("2 unreadable images left out" in note for note in splits.notes)
    again = open_splits(str(damaged), stored=json.loads(json.dumps(splits.to_dict())))
    assert (again.skipped, again.notes) == (splits.skipped, splits.notes)


def test_too_many_unreadable_images_are_an_error(damaged):
    message = r"2 of 200 images cannot be decoded, more than --max-corrupt 0.005 allows: .*007.png"
    fails(damaged, message, max_corrupt=0.005)


def test_no_readable_image_of_a_class(tmp_path):
    fill(tmp_path, {"a": 30, "b": 3})
    for path in (tmp_path / "b").iterdir():
        path.write_bytes(b"x")
    fails(tmp_path, "no readable training image is left of 'b'", max_corrupt=1)


def test_images_are_decoded_once_until_they_change(damaged, monkeypatch):
    open_splits(str(damaged))
    assert len(list((cache_folder() / "verified").iterdir())) == 1
    seen = []
    original = verify._reason
    monkeypatch.setattr(verify, "_reason", lambda store, row: seen.append(store.key(row)) or original(store, row))
    assert len(open_splits(str(damaged), seed=1).skipped) == 2
    assert sorted(seen) == ["a/007.png", "b/008.png"]  # failures are tried again
    picture(5).save(damaged / "a" / "007.png")
    assert len(open_splits(str(damaged)).skipped) == 1
    assert len(seen) == 2 + 200


def test_a_damaged_record_of_what_was_decoded_is_no_harm(damaged):
    open_splits(str(damaged))
    for file in (cache_folder() / "verified").iterdir():
        file.write_text('{"readable": "AA=="}')
    assert len(open_splits(str(damaged)).skipped) == 2


def test_a_cache_folder_that_cannot_be_written_is_no_harm(damaged, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path / "file"))
    assert len(open_splits(str(damaged)).skipped) == 2


# One set, to evaluate on


def test_a_folder_to_evaluate_on_is_matched_by_name(tmp_path):
    fill(tmp_path, {"b": 2, "c": 1})
    images = open_set(str(tmp_path), classes=("c", "a", "b"))
    assert images.classes == ("c", "a", "b")
    assert images.labels.tolist() == [2, 2, 0]
    with pytest.raises(PliantError, match="class 'c' unknown to training, which has 'a', 'b'"):
        open_set(str(tmp_path), classes=("a", "b"))


def test_the_named_split_is_evaluated(tmp_path):
    for part, count in (("train", 4), ("val", 2)):
        fill(tmp_path / part, {"a": count, "b": count})
    assert len(open_set(str(tmp_path), split="train")) == 8
    assert len(open_set(str(tmp_path))) == 4
    fill(tmp_path / "test", {"a": 1})
    assert open_set(str(tmp_path), classes=("b", "a")).labels.tolist() == [1]
    with pytest.raises(PliantError, match="has no split 'other', only test, train, val"):
        open_set(str(tmp_path), split="other")


def test_unreadable_images_are_left_out_of_an_evaluation_and_told(damaged, capsys):
    assert len(open_set(str(damaged))) == 198
    assert "left out: " in capsys.readouterr().err


# Sets and batches


def gradient(count: int) -> ImageSet:
    pixels = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    return ImageSet("gradient", ["even", "odd"], np.arange(count) % 2, ArrayStore(pixels, "gradient"))


def test_sets_are_immutable():
    images = gradient(6)
    with pytest.raises(ValueError, match="read-only"):
        images.labels[0] = 1
    part = images.subset([4, 1])
    assert [part.key(i) for i in range(2)] == ["gradient#4", "gradient#1"]
    assert part.labels.tolist() == [0, 1]
    assert part.labels.dtype == np.int64
    assert len(images) == 6
    with pytest.raises(ValueError, match="6 images and 2 labels"):
        ImageSet("x", ["a"], np.zeros(2), images.store)


def test_batches_keep_their_order():
    import torch

    images = gradient(200)
    order = np.random.default_rng(0).permutation(200)

    def transform(image, index):
        value = float(np.asarray(image)[0, 0, 0])
        assert value == index
        return torch.full((3, 2, 2), value)

    batch = load_batch(images, order, transform)
    assert batch.shape == (200, 3, 2, 2)
    assert batch[:, 0, 0, 0].tolist() == order.tolist()


def test_an_unreadable_image_in_a_batch_is_named(damaged):
    import torch

    images = open_set(str(damaged), verify=False)
    with pytest.raises(PliantError, match=r"a/007\.png"):
        load_batch(images, range(100), lambda image, index: torch.zeros(3, 1, 1))
