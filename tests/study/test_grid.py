"""Study files are strict, and a run is known by what determines its result."""

from __future__ import annotations

import pytest

from pliant.errors import PliantError
from pliant.study.file import Study, parse, read
from pliant.study.grid import left_out, runs_of


def study(fixed=None, **axes) -> Study:
    return parse({"axes": axes, "fixed": {"data": "digits"} | (fixed or {})}, "study.yaml")


def names(found: Study) -> set[str]:
    return {run.name for run in runs_of(found)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"axes": {"methods": ["head"]}}, "unknown axis 'methods', did you mean method"),
        ({"axes": {"rates": [1.0]}}, "unknown axis 'rates'"),
        ({"axis": {}}, "unknown key 'axis', did you mean axes?"),
        ({"method": ["head"]}, "put it below axes: or fixed:"),
        ({"axes": {"lr": []}, "fixed": {"data": "digits"}}, "axes.lr is empty"),
        ({"axes": {"lr": 0.1}, "fixed": {"data": "digits"}}, "axes.lr must be a list, as in lr: [0.1]"),
        ({"axes": {"lr": [0.1]}, "fixed": {"lr": 0.1, "data": "digits"}}, "lr is both fixed and an axis"),
        ({"axes": {"lr": [0.1, 0.1]}, "fixed": {"data": "digits"}}, "axes.lr has 0.1 twice"),
        ({"axes": {"rank": ["8"]}, "fixed": {"data": "digits"}}, "axes.rank: '8' should be a valid integer"),
        ({"axes": {"seed": [True]}, "fixed": {"data": "digits"}}, "axes.seed: True should be a valid integer"),
        ({"axes": {"epochs": [0]}, "fixed": {"data": "digits"}}, "axes.epochs: 0 should be greater than 0"),
        ({"axes": {"out": ["a"]}}, "runs go to the folder that --out names"),
        ({"axes": {"device": ["cpu"]}}, "device cannot be an axis"),
        ({"axes": {"seed": [0]}, "fixed": {"data": ["a", "b"]}}, "fixed.data is a list"),
        ({"axes": {"seed": [0]}}, "names no data"),
        (None, "is no study file"),
    ],
)
def test_bad_files_are_one_clear_line(content, said):
    with pytest.raises(PliantError) as caught:
        parse(content, "study.yaml")
    assert str(caught.value).startswith("study.yaml: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": ["head", "full"], "rank": [4, 8]}, "rank is set, but none of the study's methods (head, full)"),
        ({"method": ["heads"]}, "unknown method 'heads', did you mean head"),
        ({"method": ["adapter"], "lr": [0.1, -0.1]}, "lr -0.1 must be positive"),
        ({"method": ["adapter"], "alpha": [-1.0]}, "alpha -1.0 of adapter"),
        ({"method": ["head"], "views": [4]}, "views needs an augmentation"),
    ],
)
def test_contradictions(changes, said):
    with pytest.raises(PliantError) as caught:
        runs_of(study(**changes))
    assert str(caught.value).startswith("study.yaml: ") and said in str(caught.value)


def test_a_method_runs_once_for_an_axis_that_it_does_not_take():
    runs = runs_of(study(method=["head", "adapter", "mha"], rank=[4, 8], blocks=["all", "last:2"]))
    counts = [sum(run.settings.method == method for run in runs) for method in ("head", "adapter", "mha")]
    assert counts == [1, 4, 2]
    assert all(run.settings.rank is None for run in runs if run.settings.method != "adapter")


def test_seeds_are_the_outermost_loop():
    assert [run.settings.seed for run in runs_of(study(method=["head", "full"], seed=[1, 0]))] == [1, 1, 0, 0]


def test_a_name_is_of_what_determines_the_result():
    given = study(method=["adapter"])
    assert names(given) == names(study(method=["adapter"], rank=[16]))  # the default, said or not
    assert names(given) == names(study({"device": "cpu", "cache": "off", "micro_batch": 4}, method=["adapter"]))
    assert names(given) == names(study({"method": "adapter", "head_lr": 3e-3}, lr=[5e-3]))
    assert names(study(method=["ln2,ln1"])) == names(study(method=["ln1,ln2"]))
    assert not names(given) & names(study({"batch_size": 16}, method=["adapter"]))
    assert len(next(iter(names(given)))) == 16


def test_growing_and_shrinking():
    small = runs_of(study(method=["head"], seed=[0, 1]))
    assert left_out(small, runs_of(study(method=["full", "head"], seed=[2, 1, 0], lr=[None, 0.1]))) == []
    assert left_out(small, runs_of(study({"method": "head"}, seed=[0]))) == ["seed 1 (now 0)"]
    assert left_out(small, runs_of(study({"epochs": 3}, method=["head"], seed=[0, 1]))) == ["epochs 20 (now 3)"]


def test_yaml_is_read_as_people_mean_it(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(
        "axes:\n  lr: [1e-3, 3E-3, .5, auto]\n  seed: [0]\nfixed: {data: digits, precision: no, cache: off}\n"
    )
    found = read(path)
    assert found.axes["lr"] == [1e-3, 3e-3, 0.5, "auto"]
    assert found.fixed == {"data": "digits", "precision": "no", "cache": "off"}
    path.write_text(found.yaml())
    assert (read(path).axes, read(path).fixed) == (found.axes, found.fixed)
    for text, said in (("axes:\n  lr: [1]\n  lr: [2]\n", "'lr' stands twice"), ("axes: [", "not readable as YAML")):
        path.write_text(text)
        with pytest.raises(PliantError, match=said):
            read(path)
    with pytest.raises(PliantError, match="no such file"):
        read(tmp_path / "none.yaml")
