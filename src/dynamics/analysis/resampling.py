"""Intervals by the cluster bootstrap over probe batches, and p-values by permutation of components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamics.errors import AnalysisError


@dataclass(frozen=True)
class Resampling:
    """How intervals and null distributions are drawn; equal settings give equal numbers.

    The draws do not depend on the snapshot: every one is resampled by the same batches, so that differences between
    snapshots are paired, and permuted alike.

    Attributes:
        level: Confidence level of intervals and bands, between 0 and 1.
        resamples: Number of bootstrap resamples, and of permutations.
        seed: Seed of the generator; none that other code uses is touched.

    Raises:
        AnalysisError: If the level or the number is out of range.
    """

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise AnalysisError(f"the level of an interval must lie between 0 and 1, such as 0.95; got {self.level}.")
        if self.resamples < 1:
            raise AnalysisError(f"the number of resamples must be at least 1; got {self.resamples}.")

    def counts(self, n_batches: int) -> np.ndarray:
        """Return how often each batch is drawn when as many are drawn with replacement, ``(resample, batch)``."""
        rng = np.random.default_rng([self.seed, 0])
        return rng.multinomial(n_batches, np.full(n_batches, 1 / n_batches), self.resamples).astype(float)

    def permutations(self, groups: np.ndarray, stream: int = 1) -> np.ndarray:
        """Return random orders of components that change places only with those of their own group.

        Args:
            groups: Whole numbers: the group of each component, ``(component,)``; all equal: any order may come.
            stream: Another number gives independent orders.

        Returns:
            Indices, ``(permutation, component)``: ``values[permutations]`` are the permuted values.
        """
        rng = np.random.default_rng([self.seed, stream])
        group = np.unique(groups, return_inverse=True)[1].reshape(-1)
        keys = rng.random((self.resamples, len(group))) + 2 * group
        found = np.empty(keys.shape, dtype=np.intp)
        found[:, np.argsort(group, kind="stable")] = np.argsort(keys, axis=-1)
        return found

    def interval(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the percentile interval of values along the first axis, ``(resample, ...)``; NaN if there are none."""
        if not len(values):
            unknown = np.full(values.shape[1:], np.nan)
            return unknown, unknown
        tail = (1 - self.level) / 2
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        return low, high

    def widened_intervals(
        self, values: np.ndarray, estimates: np.ndarray, bound: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Do what `widened_interval` does for each column, from those of its resamples that are finite.

        Args:
            values: The resamples, ``(resample, column)``.
            estimates: The estimates from the whole probe, ``(column,)``.
            bound: Largest size that a value can have.

        Returns:
            Low end, high end and bias, ``(column,)`` each; NaN where no resample is finite.
        """
        found = np.full((3, len(estimates)), np.nan)
        finite = np.isfinite(values)
        whole = finite.all(0)
        # All columns at once: to sort them one by one takes many times as long.
        found[:, whole] = self.widened_interval(values[:, whole], estimates[whole], bound)
        for column in np.flatnonzero(~whole & finite.any(0)):
            own = values[finite[:, column], column]
            found[:, column] = self.widened_interval(own, estimates[column], bound)
        return found[0], found[1], found[2]

    def widened_interval(
        self, values: np.ndarray, estimate: np.ndarray | float, bound: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the percentile interval, extended at one end by twice the bias; for functions of ranks.

        Noise mixes ranks up: it pulls rho to 0 and large gaps inwards. The estimate has suffered it once, its resamples
        twice, so that they lie to one side of the estimate by the bias that the estimate itself has, and the percentile
        interval by twice that from where it belongs. It is kept where noise is small, and moved by minus twice the bias
        where it is large; not knowing which, the interval covers both.

        Args:
            values: The resamples, ``(resample, ...)``.
            estimate: The estimate from the whole probe, ``(...)``.
            bound: Largest size that a value can have; the interval ends there.

        Returns:
            Low end, high end and bias (mean of the resamples less the estimate), ``(...)`` each.
        """
        low, high = self.interval(values)
        bias = values.mean(0) - estimate if len(values) else np.full(np.shape(estimate), np.nan)
        low, high = low - 2 * np.maximum(bias, 0), high - 2 * np.minimum(bias, 0)
        return np.clip(low, -bound, bound), np.clip(high, -bound, bound), bias


def resampled_means(counts: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the mean over the examples of resampled batches: a batch brings all of its examples, as often as drawn.

    Args:
        counts: How often each batch is drawn, ``(resample, batch)``.
        sums: Sum over the examples of each batch, ``(component, batch)``.
        sizes: Number of examples of each batch, ``(batch,)``; ones, if ``sums`` are values of whole batches.

    Returns:
        ``(resample, component)``. Components whose sums are equal in every batch get equal means, to the bit.
    """
    # A matrix product may round equal columns differently, which would break ties: it sees each but once.
    first: dict[bytes, int] = {}
    where = [first.setdefault(row.tobytes(), len(first)) for row in sums + 0.0]  # no -0
    if len(first) == len(sums):
        return (counts @ sums.T) / (counts @ sizes)[:, None]
    _, chosen = np.unique(where, return_index=True)
    means = (counts @ sums[chosen].T) / (counts @ sizes)[:, None]
    return means[:, where]


def two_sided_p(null: np.ndarray, observed: np.ndarray | float) -> np.ndarray:
    """Return ``min(1, 2 min(P(null >= observed), P(null <= observed)))``, the observed value counted among the null.

    Args:
        null: Values of permuted components, ``(permutation, ...)``.
        observed: The value found, ``(...)``.

    Returns:
        P-values, ``(...)``; at least ``2 / (permutations + 1)``.
    """
    return np.minimum(1.0, 2 * np.minimum(upper_p(null, observed), upper_p(-null, -np.asarray(observed))))


def upper_p(null: np.ndarray, observed: np.ndarray | float) -> np.ndarray:
    """Return ``(1 + #(null >= observed)) / (1 + permutations)``, ``(...)``: a p-value that is never 0, and valid."""
    # Equal correlations may differ by rounding.
    return (1 + (null >= np.asarray(observed) - 1e-9).sum(0)) / (1 + len(null))
