"""Splits: disjoint, complete, stratified, the same for the same seed, and reopened exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.data import open_splits
from pliant.data.splits import _packed, _unpacked, allocate, hold_out, sample
from pliant.errors import PliantError

from .conftest import fill, picture, write_parquet

counts_of_classes = st.lists(st.integers(0, 60), min_size=1, max_size=12)
labels_of_two_each = st.lists(st.integers(2, 40), min_size=2, max_size=10).map(
    lambda counts: np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
)


@given(counts_of_classes, st.integers(-3, 800), st.integers(0, 3), st.integers(0, 2))
def test_allocation(counts, total, least, spare):
    counts = np.array(counts)
    shares = allocate(counts, total, least, spare)
    most = np.maximum(counts - spare, 0)
    assert shares.sum() == max(0, min(total, most.sum()))
    assert (shares >= 0).all()
    assert (shares <= most).all()
    if shares.sum() >= np.minimum(most, least).sum():
        assert (shares >= np.minimum(most, least)).all()


@given(labels_of_two_each, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_holding_out(labels, fraction, seed):
    kept, held = hold_out(labels, fraction, seed, "val")
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(labels)))
    for label, count in enumerate(np.bincount(labels)):
        share = (labels[held] == label).sum()
        assert 1 <= share <= count - 1
        # Within one image of the exact share, unless the rule of one kept and one held moves others.
        assert abs(share - fraction * count) <= 1 + len(np.unique(labels))
    np.testing.assert_array_equal(hold_out(labels, fraction, seed, "val")[1], held)


@given(st.integers(5, 30), st.integers(2, 8), st.integers(0, 100))
def test_equal_classes_stay_equal(each, classes, seed):
    labels = np.repeat(np.arange(classes), each)
    taken = np.bincount(labels[sample(labels, classes * (each // 2), seed, "limit")], minlength=classes)
    assert (taken == each // 2).all()


@given(labels_of_two_each, st.integers(1, 400))
def test_limits_reach_every_class_if_possible(labels, total):
    chosen = sample(labels, total, 0, "limit")
    assert len(chosen) == len(set(chosen.tolist())) == min(total, len(labels))
    if total >= labels.max() + 1:
        assert len(np.unique(labels[chosen])) == labels.max() + 1


def test_seed_and_purpose_change_the_draw():
    labels = np.repeat(np.arange(4), 50)
    first = sample(labels, 40, 0, "val")
    assert not np.array_equal(first, sample(labels, 40, 1, "val"))
    assert not np.array_equal(first, sample(labels, 40, 0, "test"))


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 50), unique=True, max_size=20), st.lists(st.sampled_from(["a#", "b/c", "#1."]), max_size=3)
)
def test_packing_keys(rows, files):
    keys = [*(f"{name}.png" for name in files), *(f"train.parquet#{row}" for row in rows)]
    packed = json.loads(json.dumps(_packed(keys)))
    assert list(_unpacked(packed)) == keys
    assert _packed(["a#0", "a#1", "a#2", "a#7"])["rows"] == {"a": "0-2,7"}


def every_key(splits):
    return [[part.key(i) for i in range(len(part))] for part in splits.parts().values()]


def test_a_folder_without_splits(flowers):
    splits = open_splits(str(flowers), seed=3)
    assert splits.train.classes == splits.val.classes == splits.test.classes == ("daisy", "rose", "tulip")
    train, val, test = every_key(splits)
    assert len(train) + len(val) + len(test) == len({*train, *val, *test}) == 60
    assert splits.test.counts().tolist() == [4, 6, 2]
    assert splits.val.counts().tolist() == [2, 2, 1]
    folders = [key.split("/")[0] for key in val]
    assert folders == [splits.val.classes[label] for label in splits.val.labels]
    assert every_key(open_splits(str(flowers), seed=3)) == [train, val, test]
    assert every_key(open_splits(str(flowers), seed=4)) != [train, val, test]
    assert splits.train.name == f"{flowers}/train"


def test_splits_of_its_own_are_used_as_they_are(tmp_path):
    for part, count in (("train", 6), ("Validation", 2), ("test", 3)):
        fill(tmp_path / part, {"a": count, "b": count})
    splits = open_splits(str(tmp_path))
    assert [len(part) for part in splits.parts().values()] == [12, 4, 6]
    assert splits.val.key(0) == "Validation/a/000.png"


def test_missing_validation_is_taken_from_training(tmp_path):
    fill(tmp_path / "train", {"a": 20, "b": 20})
    fill(tmp_path / "test", {"a": 3, "b": 3})
    splits = open_splits(str(tmp_path), val_fraction=0.25)
    assert [len(part) for part in splits.parts().values()] == [30, 10, 6]


def test_validation_becomes_the_test_set_where_there_is_none(tmp_path):
    fill(tmp_path / "train", {"a": 20, "b": 20})
    fill(tmp_path / "valid", {"a": 3, "b": 3})
    splits = open_splits(str(tmp_path))
    assert {key.split("/")[0] for key in every_key(splits)[1]} == {"train"}
    assert {key.split("/")[0] for key in every_key(splits)[2]} == {"valid"}
    assert any("validation images are the test set" in note for note in splits.notes)


def test_classes_agree_by_name_not_by_order(tmp_path):
    fill(tmp_path / "train", {"a": 4, "b": 4, "c": 4})
    fill(tmp_path / "val", {"a": 1, "c": 1})
    fill(tmp_path / "test", {"c": 2})
    splits = open_splits(str(tmp_path))
    assert splits.val.classes == ("a", "b", "c")
    assert splits.val.labels.tolist() == [0, 2]
    assert splits.test.labels.tolist() == [2, 2]


def test_limits(flowers):
    splits = open_splits(str(flowers), limit_train=18, limit_test=6, val_fraction=0.1)
    assert splits.train.counts().tolist() == [6, 9, 3]
    assert splits.test.counts().tolist() == [2, 3, 1]
    assert len(splits.val) == 3  # in proportion it would be 2, but every class has one
    assert len(open_splits(str(flowers), limit_train=18, limit_val=5).val) == 5
    with pytest.raises(PliantError, match="--limit-train 2: fewer than the 3 classes"):
        open_splits(str(flowers), limit_train=2)


def test_limits_only_shrink_what_the_whole_split_has(flowers):
    whole, part = open_splits(str(flowers)), open_splits(str(flowers), limit_train=12, limit_val=3, limit_test=3)
    assert all(set(some) <= set(every) for some, every in zip(every_key(part), every_key(whole), strict=True))


@pytest.fixture(params=["folder", "parquet", "digits"])
def spec(request, flowers, tmp_path):
    if request.param == "folder":
        return str(flowers)
    if request.param == "digits":
        return "digits"
    images = [(flowers / "rose" / f"{i:03}.png").read_bytes() for i in range(30)]
    return str(write_parquet(tmp_path / "some.parquet", images, [i % 3 for i in range(30)], names=["x", "y", "z"]))


def test_stored_splits_reopen_the_same_images(spec):
    splits = open_splits(spec, seed=5, limit_train=12)
    stored = json.loads(json.dumps(splits.to_dict()))
    again = open_splits(spec, seed=99, stored=stored)
    assert every_key(again) == every_key(splits)
    for one, other in zip(splits.parts().values(), again.parts().values(), strict=True):
        assert one.classes == other.classes
        assert one.digest() == other.digest()
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_array_equal(np.asarray(one.image(0)), np.asarray(other.image(0)))
    assert again.to_dict() == splits.to_dict()


def test_stored_splits_survive_new_images_and_moving(flowers, tmp_path):
    splits = open_splits(str(flowers))
    stored = splits.to_dict()
    picture(7).save(flowers / "rose" / "new.png")
    fill(flowers, {"another": 3})
    moved = flowers.rename(tmp_path / "moved")
    assert every_key(open_splits(str(moved), stored=stored)) == every_key(splits)


def test_stored_splits_of_changed_data_are_an_error(flowers):
    stored = open_splits(str(flowers)).to_dict()
    original = (flowers / "rose" / "000.png").read_bytes()
    picture(8, size=(30, 30)).save(flowers / "rose" / "000.png")
    with pytest.raises(PliantError, match="images changed since the run began"):
        open_splits(str(flowers), stored=stored)
    (flowers / "rose" / "000.png").write_bytes(original)
    (flowers / "tulip" / "003.png").rename(flowers / "rose" / "moved.png")
    with pytest.raises(PliantError, match=r"tulip/003\.png' no longer there"):
        open_splits(str(flowers), stored=stored)
    with pytest.raises(PliantError, match="stored splits are damaged"):
        open_splits(str(flowers), stored={"classes": ["a"]})


def test_digests_tell_contents_apart(flowers):
    before = open_splits(str(flowers))
    assert before.train.digest() == open_splits(str(flowers)).train.digest()
    assert before.train.digest() != before.val.digest()
    key = before.train.key(0)
    (flowers / key).write_bytes((flowers / key).read_bytes())
    assert open_splits(str(flowers)).train.digest() != before.train.digest()
