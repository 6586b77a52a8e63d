"""Means of rates over pairs that share images, with intervals that know it. Keeps sums, never rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    """What one block of pairs gave, float64.

    Attributes:
        rates: (S, B, B), ||f(x_i) - f(y_j)|| / ||x_i - y_j|| of series s; NaN for pairs that were not taken.
        inputs, outputs: (S, 2, B), squared norms of inputs and outputs of the images of either side.
    """

    rates: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray


class Moments:
    """Sums over pairs and over images, from which means and intervals of all series follow.

    A pair's rate is mu + a_i + b_j + e_ij: pairs that share an image are not independent. The variance of the mean is
    estimated by clustering on the images of either side: V(rows) + V(columns) - V(pairs) (two-way clustering; Cameron,
    Gelbach and Miller 2011), which for all pairs is the leading term of the two-sample U-statistic and for single
    pairs the usual s^2 / n. Cross terms between series are kept, so that means over blocks and differences of
    components have exact intervals too. Memory does not depend on the number of images.

    Attributes:
        pairs: number of pairs.
        images: number of images of either side.
        dropped: pairs of identical inputs.
        largest: (S,), the largest rate.
    """

    def __init__(self, series: int) -> None:
        self.series = series
        size = 1 + 3 * series  # of a cluster: pairs, rates, squared norms of inputs and of outputs
        self.pairs, self.dropped = 0, 0
        self.images = np.zeros(2, dtype=int)
        self.largest = np.full(series, -np.inf)
        self._totals = np.zeros((2, size))
        self._crossed = np.zeros((2, size, size))
        self._pair_crossed = np.zeros((series, series))

    def add(self, sample: Sample, taken: np.ndarray) -> np.ndarray:
        """Add a block; `taken` (B, B) says which pairs were. Returns which of them count, (B, B).

        A pair counts where every series has a rate: one whose inputs are identical has none and is dropped.
        """
        counts = taken & np.isfinite(sample.rates).all(axis=0)
        self.dropped += int(taken.sum() - counts.sum())
        self.pairs += int(counts.sum())
        rates = np.where(counts, sample.rates, 0.0)
        for side, axis in ((0, 2), (1, 1)):
            number = counts.sum(axis=axis - 1)
            cluster = np.concatenate(
                [number[None], rates.sum(axis=axis), sample.inputs[:, side], sample.outputs[:, side]]
            )
            cluster = cluster[:, number > 0]
            self.images[side] += cluster.shape[1]
            self._totals[side] += cluster.sum(axis=1)
            self._crossed[side] += cluster @ cluster.T
        single = rates[:, counts]
        self._pair_crossed += single @ single.T
        if single.size:
            self.largest = np.maximum(self.largest, single.max(axis=1))
        return counts

    @property
    def means(self) -> np.ndarray:
        """Mean rate of every series, (S,)."""
        return self._totals[0][1 : 1 + self.series] / self.pairs

    @property
    def elasticities(self) -> np.ndarray:
        """Mean rate times the root mean square norm of the inputs over that of the outputs, (S,)."""
        _, _, inputs, outputs = self._split(self._totals.sum(axis=0))
        return self.means * np.sqrt(inputs / np.where(outputs > 0, outputs, np.nan))

    def mean_interval(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Value and half-width at 95 % of weighted sums of means; `weights` is (K, S)."""
        value = weights @ self.means
        gradient = np.zeros((len(weights), 1 + 3 * self.series))
        gradient[:, 0] = -value / self.pairs
        gradient[:, 1 : 1 + self.series] = weights / self.pairs
        return value, self._half_width(gradient)

    def elasticity_interval(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Value and half-width of weighted sums of elasticities, by the delta method."""
        elastic = self.elasticities
        _, rates, inputs, outputs = self._split(self._totals.sum(axis=0))
        # A component that puts out nothing has no elasticity; the sums that leave it out keep theirs.
        scaled = np.where(weights == 0, 0.0, weights * elastic)
        value = scaled.sum(axis=1)
        # The sums of rates stand twice in the total of both sides, once a side; those of norms once.
        gradient = np.concatenate(
            [-value[:, None] / self.pairs, *(_over(scaled, by) for by in (rates / 2, 2 * inputs, -2 * outputs))], axis=1
        )
        return value, self._half_width(gradient)

    def deviation(self, weights: np.ndarray) -> np.ndarray:
        """Standard deviation over pairs of weighted sums of rates, (K,)."""
        return np.sqrt(np.einsum("ks,st,kt->k", weights, self._pair_covariance(), weights).clip(0))

    def _split(self, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        s = self.series
        return totals[:1], totals[1 : 1 + s], totals[1 + s : 1 + 2 * s], totals[1 + 2 * s :]

    def _pair_covariance(self) -> np.ndarray:
        if self.pairs < 2:
            return np.full((self.series, self.series), np.nan)
        return (self._pair_crossed - self.pairs * np.outer(self.means, self.means)) / (self.pairs - 1)

    def _half_width(self, gradient: np.ndarray) -> np.ndarray:
        least = self.images.min()
        if least < 2:
            return np.full(len(gradient), np.nan)
        rates = gradient[:, 1 : 1 + self.series]
        single = self.pairs * np.einsum("ks,st,kt->k", rates, self._pair_covariance(), rates)
        variance = -single
        for side, count in enumerate(self.images):
            total = self._totals[side]
            centred = self._crossed[side] - np.outer(total, total) / count
            variance += np.einsum("kv,vw,kw->k", gradient, centred, gradient) * count / (count - 1)
        # Of the pairs alone it is never less; the difference above can be, by chance.
        return stats.t.ppf((1 + LEVEL) / 2, least - 1) * np.sqrt(np.maximum(variance, single).clip(0))


def _over(scaled: np.ndarray, by: np.ndarray) -> np.ndarray:
    """A quotient, 0 where the numerator is: what has no weight has no influence, whatever it is divided by."""
    return np.divide(scaled, by, out=np.zeros_like(scaled), where=scaled != 0)
