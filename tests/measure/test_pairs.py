import numpy as np
import pytest
import torch

from pliant.errors import PliantError
from pliant.measure import pairs


@pytest.mark.parametrize("estimator", pairs.ESTIMATORS)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_distances_are_those_of_float64(estimator, size, monkeypatch):
    monkeypatch.setattr(pairs, "_CHUNK", 60)  # several pieces
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, size, 5, 6, generator=generator) + 100
    shifts = pairs.shifts_of(estimator, size)
    found = pairs.squared_distances(x, y, shifts).numpy()
    wanted = (x.double()[:, None] - y.double()[None]).square().sum((2, 3)).numpy()
    taken = pairs.taken_pairs(shifts, size)
    assert taken.sum() == size * min(size, {"paired": 1, "cyclic": 4, "all-pairs": size}[estimator])
    assert taken.sum(0).tolist() == taken.sum(1).tolist()  # every image in as many pairs
    np.testing.assert_allclose(found[taken], wanted[taken], rtol=1e-6)
    assert np.isnan(found[~taken]).all()


def test_near_duplicates_keep_their_digits():
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0)) * 1000
    y = x + 2.0**-4
    found = pairs.squared_distances(x, y, range(4))
    assert found.diagonal() == pytest.approx(((y - x).double() ** 2).sum((1, 2)).numpy(), rel=1e-6)
    assert (pairs.squared_distances(x, x, range(1)).diagonal() == 0).all()


def test_blocks_hold_each_image_once_and_as_many_of_either_side():
    x = [torch.arange(n).reshape(-1, 1) + start for n, start in ((3, 0), (5, 3), (2, 8))]
    y = [(torch.arange(4).reshape(-1, 1) + 4 * k, torch.zeros(4)) for k in range(3)]
    blocks = list(pairs.blocks_of_pairs(x, y, 4))
    assert [len(a) for a, _ in blocks] == [len(b) for _, b in blocks] == [4, 4, 2]
    assert torch.cat([a for a, _ in blocks]).flatten().tolist() == list(range(10))
    assert torch.cat([b for _, b in blocks]).flatten().tolist() == list(range(10))
    whole = list(pairs.blocks_of_pairs([torch.zeros(8, 1)], [torch.zeros(8, 1)], None))
    assert [len(a) for a, _ in whole] == [8]


def test_what_batches_may_be():
    ids = torch.zeros(2, 4, dtype=torch.int64)
    assert pairs.inputs_of({"input_ids": ids, "attention_mask": torch.ones(2, 4)}) is ids
    assert pairs.inputs_of((ids, 3)) is ids
    with pytest.raises(PliantError, match="padded"):
        pairs.inputs_of({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0]] * 2)})
    with pytest.raises(PliantError, match="give tensors"):
        pairs.inputs_of("image.jpg")
