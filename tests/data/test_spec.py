"""`DATA[n=500]`: the same as --limit-train 500, and brackets that are part of a path."""

from __future__ import annotations

import pytest

from pliant.data import absolute, open_set, open_splits
from pliant.errors import PliantError

from .conftest import fill


def every_key(splits):
    return [[part.key(i) for i in range(len(part))] for part in splits.parts().values()]


@pytest.mark.parametrize("seed", [0, 3])
def test_equals_limit_train(seed):
    bracket, option = open_splits("digits[n=200]", seed=seed), open_splits("digits", seed=seed, limit_train=200)
    assert every_key(bracket) == every_key(option)
    assert [part.digest() for part in bracket.parts().values()] == [part.digest() for part in option.parts().values()]
    assert len(bracket.train) == 200
    assert len(bracket.val) == 22
    assert every_key(bracket)[2] == every_key(open_splits("digits"))[2]


def test_label_balanced_and_the_same_again(flowers):
    splits = open_splits(f"{flowers}[n=18]")
    assert splits.train.counts().tolist() == [6, 9, 3]
    assert every_key(splits) == every_key(open_splits(f"{flowers}[n=18]"))
    assert max(open_splits("digits[n=100]").train.counts()) - min(open_splits("digits[n=100]").train.counts()) <= 1


def test_reopening_a_run(flowers):
    splits = open_splits(f"{flowers}[n=18]", seed=2)
    assert every_key(open_splits(f"{flowers}[n=18]", stored=splits.to_dict())) == every_key(splits)


def test_one_set_is_limited_only_where_it_is_training():
    assert len(open_set("digits[n=50]")) == len(open_set("digits"))
    assert open_set("digits[n=50]", split="train").counts().tolist() == pytest.approx([5] * 10, abs=1)


def test_with_the_option_too(flowers):
    assert len(open_splits(f"{flowers}[n=18]", limit_train=18).train) == 18
    with pytest.raises(PliantError, match=r"flowers\[n=18\]: and --limit-train 12 disagree"):
        open_splits(f"{flowers}[n=18]", limit_train=12)


def test_fewer_than_the_classes(flowers):
    with pytest.raises(PliantError, match=r"flowers\[n=2\]: fewer than the 3 classes"):
        open_splits(f"{flowers}[n=2]")


@pytest.mark.parametrize(
    "spec",
    ["digits[n=0]", "digits[n=-5]", "digits[n=1.5]", "digits[n=]", "digits[500]", "digits[n=5", "digits]", "[n=5]"],
)
def test_bad_brackets(spec):
    with pytest.raises(PliantError, match=r"as in digits\[n=500\]$") as error:
        open_splits(spec)
    assert str(error.value).startswith(f"{spec}: ")
    assert "\n" not in str(error.value)


def test_two_brackets():
    with pytest.raises(PliantError, match="has two numbers of training images"):
        open_splits("digits[n=20][n=30]")


def test_paths_with_brackets(tmp_path):
    for name in ("a[1]", "b[n=7]"):
        fill(tmp_path / name, {"x": 20, "y": 20})
        assert sum(map(len, open_splits(str(tmp_path / name)).parts().values())) == 40
        assert len(open_splits(f"{tmp_path / name}[n=10]").train) == 10


def test_unknown_data_before_brackets():
    with pytest.raises(PliantError, match="'digit': no such folder.* did you mean digits"):
        open_splits("digit[n=100]")


def test_absolute(tmp_path, monkeypatch):
    fill(tmp_path / "a[1]", {"x": 2, "y": 2})
    monkeypatch.chdir(tmp_path)
    assert absolute("a[1]") == f"{tmp_path}/a[1]"
    assert absolute("a[1][n=4]") == f"{tmp_path}/a[1][n=4]"
    assert absolute("cifar10c-snow-5:a[1][n=4]") == f"cifar10c-snow-5:{tmp_path}/a[1][n=4]"
    assert absolute("digits[n=4]") == "digits[n=4]"
    assert absolute("hf:some/name") == "hf:some/name"
