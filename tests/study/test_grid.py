"""Study files are strict, and a run is known by what determines its result."""

from __future__ import annotations

import pytest

from pliant.errors import PliantError
from pliant.study.file import Study, parse, read
from pliant.study.grid import left_out, runs_of
from pliant.study.results import varied


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
        ({"axes": {"head_lr": ["auto"]}, "fixed": {"data": "digits"}}, "axes.head_lr: 'auto' should be"),
        ({"axes": {"epochs": [0]}, "fixed": {"data": "digits"}}, "axes.epochs: 0 should be greater than 0"),
        ({"axes": {"out": ["a"]}}, "runs go to the folder that --out names"),
        ({"axes": {"device": ["cpu"]}}, "device cannot be an axis"),
        ({"axes": {"seed": [0]}, "fixed": {"data": ["a", "b"]}}, "fixed.data is a list"),
        ({"axes": {"seed": [0]}}, "names no data"),
        ({"grids": []}, "grids must be a list of grids"),
        ({"grids": {"axes": {}}}, "grids must be a list of grids"),
        ({"grids": [{"axes": {"data": ["a"]}}], "axes": {"seed": [0]}}, "has axes: beside grids:"),
        ({"grids": [{"axes": {"data": ["a"]}}, {"axes": {"seed": [0]}}]}, "grid 2: names no data"),
        ({"grids": [{"axes": {"data": []}}]}, "grid 1: axes.data is empty"),
        ({"grids": [{"lr": [0.1]}]}, "grid 1: unknown key 'lr'; put it below axes:"),
        ({"grids": [{"axes": {"data": ["a"]}, "grids": []}]}, "grid 1: unknown key 'grids'"),
        ({"grids": [{"axes": {"data": ["a"]}}], "fixed": {"data": "b"}}, "grid 1: data is also fixed for all grids"),
        ({"grids": [{"axes": {"data": ["a"]}}], "fixed": {"dats": "b"}}, "fixed: unknown setting 'dats'"),
        ({"grids": ["a"]}, "grid 1: must hold axes:"),
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


def union(*grids, **fixed) -> Study:
    return parse({"grids": list(grids), "fixed": {"data": "digits"} | fixed}, "study.yaml")


def test_grids_are_united():
    """Optimizers with rates of their own, ranks with adapters alone, and runs of several grids once."""
    sgd = {"axes": {"lr": [0.1, 0.3], "method": ["mha", "ln1"], "seed": [0, 1]}, "fixed": {"optimizer": "sgd"}}
    adamw = {"axes": {"method": ["mha", "ln1"], "seed": [1, 0], "lr": [1e-3]}}
    adapters = {"axes": {"method": ["adapter"], "rank": [4, 16], "seed": [0]}}
    again = {"axes": {"method": ["adapter"], "seed": [0]}}  # of rank 16, which is the default
    runs = runs_of(union(sgd, adamw, adapters, again))
    said = [(run.settings.seed, run.settings.method, run.settings.optimizer, run.settings.lr) for run in runs]
    assert len(runs) == 8 + 4 + 2
    assert {(optimizer, lr) for _, method, optimizer, lr in said if method == "mha"} == {
        ("sgd", 0.1), ("sgd", 0.3), ("adamw", 1e-3),
    }  # fmt: skip
    assert [seed for seed, *_ in said] == [0] * 8 + [1] * 6
    assert [method for seed, method, *_ in said if seed == 1] == ["mha"] * 3 + ["ln1"] * 3
    assert names(union(sgd, adamw)) == names(union(sgd)) | names(union(adamw))
    assert names(union(adapters)) == names(study(method=["adapter"], rank=[4, 16], seed=[0]))


def test_options_must_be_taken_by_their_grid():
    heads, adapters = ({"axes": {"method": [method], "seed": [0]}} for method in ("head", "adapter"))
    assert [run.settings.rank for run in runs_of(union(heads, adapters, rank=8))] == [None, 8]
    with pytest.raises(PliantError, match=r"rank is set, but none of the study's methods \(head, full\)"):
        runs_of(union(heads, {"axes": {"method": ["full"]}}, rank=8))
    with pytest.raises(PliantError, match=r"rank is set, but none of the study's methods \(head\)"):
        runs_of(union({**heads, "fixed": {"rank": 8}}, adapters))


def test_what_a_setting_is_chosen_from():
    sgd = {"axes": {"lr": [0.1, 0.3], "method": ["mha"]}, "fixed": {"optimizer": "sgd"}}
    adamw = {"axes": {"lr": [1e-3], "method": ["mha"]}, "fixed": {"batch_size": 8}}
    adapters = {"axes": {"method": ["adapter"]}, "fixed": {"rank": 4, "lr": 1e-3}}
    for grids, found in (((sgd, adamw, adapters), {"lr", "optimizer", "batch_size"}), ((adamw, adapters), set())):
        asked = union(*grids)
        assert set(varied(asked, runs_of(asked))) == found
    plain = study(method=["adapter", "lora", "head"], rank=[4], lr=[1e-3, 1e-2], seed=[0, 1])
    assert varied(plain, runs_of(plain)) == ["lr"]
    same = study({"head_lr": "same"}, method=["mha", "ln1"], lr=[1e-3, 1e-2])
    assert varied(same, runs_of(same)) == ["lr"]
    assert {(run.settings.lr, run.settings.head_lr) for run in runs_of(same)} == {(1e-3, 1e-3), (1e-2, 1e-2)}


def test_a_name_is_of_what_determines_the_result():
    given = study(method=["adapter"])
    assert names(given) == names(study(method=["adapter"], rank=[16]))  # the default, said or not
    assert names(given) == names(study({"device": "cpu", "cache": "off", "micro_batch": 4}, method=["adapter"]))
    assert names(given) == names(study({"method": "adapter", "head_lr": 3e-3}, lr=[5e-3]))
    assert names(study({"head_lr": "same"}, lr=[5e-3])) == names(study({"head_lr": 5e-3}, lr=[5e-3]))
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
    assert found.values("lr") == [1e-3, 3e-3, 0.5, "auto"]
    assert found.grids[0].fixed == {"data": "digits", "precision": "no", "cache": "off"}
    path.write_text(found.yaml())
    assert read(path) == found
    for text, said in (("axes:\n  lr: [1]\n  lr: [2]\n", "'lr' stands twice"), ("axes: [", "not readable as YAML")):
        path.write_text(text)
        with pytest.raises(PliantError, match=said):
            read(path)
    path.write_text(
        "fixed: {data: digits}\ngrids:\n  - axes: {lr: [1e-3]}\n  - {axes: {rank: [4]}, fixed: {seed: 1}}\n"
    )
    found = read(path)
    assert found.grids[0].axes == {"lr": [1e-3]} and found.grids[1].fixed == {"seed": 1}
    path.write_text(found.yaml())
    assert read(path) == found
    with pytest.raises(PliantError, match="no such file"):
        read(tmp_path / "none.yaml")
