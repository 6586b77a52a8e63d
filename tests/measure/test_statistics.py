"""Intervals that hold the true mean as often as they say, for pairs that share images."""

import numpy as np
import pytest

from pliant.measure.pairs import taken_pairs
from pliant.measure.statistics import Moments, Sample

SERIES = 3


def measured(rng, images, block, shifts, row, column, single):
    """Rates exp(0.3 (a_i + b_j + e_ij)): the true mean is known. Norms are correlated with the rates."""
    moments = Moments(SERIES)
    taken = taken_pairs(range(shifts), block)
    for _ in range(images // block):
        a, b = row * rng.normal(size=(SERIES, block, 1)), column * rng.normal(size=(SERIES, 1, block))
        rates = np.exp(0.3 * (a + b + single * rng.normal(size=(SERIES, block, block))))
        norms = np.stack([np.exp(0.1 * a[:, :, 0]), np.exp(0.1 * b[:, 0])], axis=1)
        moments.add(Sample(np.where(taken, rates, np.nan), norms, norms**3), taken)
    return moments


@pytest.mark.parametrize(
    ("images", "block", "shifts", "row", "column", "single"),
    [
        (32, 16, 1, 1, 1, 1),  # paired
        (64, 16, 4, 1, 1, 1),  # cyclic
        (32, 16, 16, 1, 1, 1),  # all pairs
        (64, 64, 64, 1, 0.2, 1),  # all pairs, one side varies little
        (48, 16, 16, 0, 0, 1),  # all pairs, and nothing shared
    ],
)
def test_the_interval_holds_the_truth_in_95_of_100(images, block, shifts, row, column, single):
    rng = np.random.default_rng(0)
    truth = np.exp(0.045 * (row**2 + column**2 + single**2))
    elastic = truth * _elastic_scale(row, column)
    weights = np.full((1, SERIES), 1 / SERIES)
    hits = np.zeros(2)
    runs = 600
    for _ in range(runs):
        found = measured(rng, images, block, shifts, row, column, single)
        for index, (interval, true) in enumerate(((found.mean_interval, truth), (found.elasticity_interval, elastic))):
            value, half = interval(weights)
            hits[index] += abs(value[0] - true) <= half[0]
    assert (hits / runs >= 0.92).all() and (hits / runs <= 0.98).all(), hits / runs


def _elastic_scale(row, column):
    """sqrt(E |x|^2 / E |f(x)|^2) of both sides together: squared norms are exp(0.1 a) and their cubes."""
    inputs = np.mean([np.exp(0.005 * v**2) for v in (row, column)])
    outputs = np.mean([np.exp(0.045 * v**2) for v in (row, column)])
    return np.sqrt(inputs / outputs)


def test_taking_pairs_for_independent_would_be_several_times_too_sure():
    found = measured(np.random.default_rng(1), 64, 64, 64, 1, 1, 0.5)
    _, half = found.mean_interval(np.eye(SERIES))
    naive = 1.96 * found.deviation(np.eye(SERIES)) / np.sqrt(found.pairs)
    assert (half > 4 * naive).all()


def test_sums_equal_the_formulas_on_all_rates():
    rng = np.random.default_rng(2)
    rates = rng.uniform(1, 2, (2, 6, 6))
    norms = rng.uniform(1, 2, (2, 2, 6))
    moments = Moments(2)
    counted = moments.add(Sample(rates, norms, 3 * norms), np.ones((6, 6), bool))
    assert counted.all() and moments.pairs == 36 and moments.images.tolist() == [6, 6]
    np.testing.assert_allclose(moments.means, rates.mean((1, 2)))
    np.testing.assert_allclose(moments.deviation(np.eye(2)), rates.reshape(2, -1).std(1, ddof=1))
    np.testing.assert_allclose(moments.largest, rates.max((1, 2)))
    np.testing.assert_allclose(moments.elasticities, rates.mean((1, 2)) / np.sqrt(3))
    rows, columns = rates.mean(2).var(1, ddof=1) / 6, rates.mean(1).var(1, ddof=1) / 6
    pairs = rates.reshape(2, -1).var(1, ddof=1) / 36
    from scipy import stats

    expected = stats.t.ppf(0.975, 5) * np.sqrt(np.maximum(rows + columns - pairs, pairs))
    np.testing.assert_allclose(moments.mean_interval(np.eye(2))[1], expected)


def test_blocks_one_by_one_equal_blocks_together_and_dropped_pairs_are_counted():
    rng = np.random.default_rng(3)
    rates = rng.uniform(1, 2, (2, 4, 4))
    rates[0, 1, 2] = np.nan
    norms = np.ones((2, 2, 4))
    moments = Moments(2)
    counted = moments.add(Sample(rates, norms, norms), np.ones((4, 4), bool))
    assert moments.dropped == 1 and moments.pairs == 15 and not counted[1, 2]
    np.testing.assert_allclose(moments.means[1], rates[1][counted].mean())


def test_precision_of_rates_that_hardly_vary():
    moments = Moments(1)
    rates = 1 + 1e-7 * np.random.default_rng(4).normal(size=(1, 32, 32))
    moments.add(Sample(rates, np.ones((1, 2, 32)), np.ones((1, 2, 32))), taken_pairs(range(1), 32))
    single = rates[0].diagonal()
    assert moments.deviation(np.eye(1))[0] == pytest.approx(single.std(ddof=1), rel=5e-2)
