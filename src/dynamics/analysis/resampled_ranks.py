"""Ranks of one score of the components on resampled probe batches, kept once they are known."""

from __future__ import annotations

import numpy as np

from dynamics.analysis.ranks import centred_ranks
from dynamics.analysis.resampling import Resampling, resampled_means


class ResampledRanks:
    """Centred ranks of a mean over the probe at every snapshot, on resampled batches.

    Intervals of rho, of gaps, of what is left without depth and of agreement all need the same ranks, and to rank is
    most of the work. Twice a centred rank is a whole number, so that it is kept in few bytes.

    Args:
        sums: Sum of each batch, ``(step, component, batch)``.
        sizes: What the sums are divided by, ``(batch,)``: number of examples of each batch; ones for means of batches.
    """

    def __init__(self, sums: np.ndarray, sizes: np.ndarray) -> None:
        self._sums, self._sizes = sums, sizes
        self._kept: dict[tuple[int, int, int], np.ndarray] = {}
        self._counts: dict[tuple[int, int], np.ndarray] = {}
        self._type = np.int16 if sums.shape[1] < np.iinfo(np.int16).max else np.int32

    @property
    def batches(self) -> int:
        """Return the number of batches."""
        return len(self._sizes)

    def means(self, row: int, resampling: Resampling) -> np.ndarray:
        """Return the means of one snapshot, ``(resample, component)``; see `resampled_means`."""
        key = (resampling.resamples, resampling.seed)
        if key not in self._counts:
            self._counts[key] = resampling.counts(len(self._sizes))
        return resampled_means(self._counts[key], self._sums[row], self._sizes)

    def ranks(self, row: int, resampling: Resampling, means: np.ndarray | None = None) -> np.ndarray:
        """Return the centred ranks of one snapshot, ``(resample, component)``.

        Args:
            row: Which snapshot; its sums must be finite.
            resampling: How batches are drawn.
            means: What `means` returns for it, if it is at hand.
        """
        key = (resampling.resamples, resampling.seed, row)
        if key not in self._kept:
            found = centred_ranks(self.means(row, resampling) if means is None else means)
            self._kept[key] = (2 * found).astype(self._type)
            return found
        return self._kept[key] / 2
