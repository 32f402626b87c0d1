"""How much of the gaps is depth and kind: the share of the variance of Delta that layer and kind explain."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.rank_measures import indicator_basis
from dynamics.analysis.ranks import rho_and_gaps_of_ranks, spread
from dynamics.analysis.resampling import Resampling, upper_p
from dynamics.analysis.tidy import tidy
from dynamics.store import Run

FACTORS = ("layer", "kind", "layer and kind")
"""What a gap may be explained by."""

_NUMBERS = ("share", "low", "high", "chance", "chance_high", "adjusted_share", "p_value")


def depth_share_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how much of the gaps is depth and kind, over steps.

    ``share = sum of squares of the fit / sum of squares of Delta`` (R squared) of a linear regression of Delta on an
    indicator for each layer, for each kind, or for both without interaction. 0: knowing layer and kind tells nothing of
    a gap; 1: it tells all. An indicator for each of many layers fits noise too: a random order of the same gaps gives
    ``chance = (k - 1) / (n - 1)`` on average, with k the rank of the indicators, and
    ``adjusted_share = (share - chance) / (1 - chance)``.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        level: Confidence level of intervals; ``chance_high`` is this quantile.
        resamples: Number of bootstrap resamples of the probe's batches, and of permutations.
        seed: Seed of both.

    Returns:
        One row per step and factor: ``step``; ``factor``: ``"layer"``, ``"kind"``, ``"layer and kind"``; ``share``;
        ``low``, ``high``: its interval, as that of rho; ``chance``; ``chance_high``: what luck exceeds rarely;
        ``adjusted_share``; ``p_value``: how often luck explains at least as much; ``reason``: why the share, or its
        interval, is undefined.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    return depth_shares_of(read_batch_sums(run, baseline, score), Resampling(level, resamples, seed))


def depth_shares_of(sums: BatchSums, resampling: Resampling) -> pd.DataFrame:
    """Do what `depth_share_table` does with sums that have been read already."""
    layer = np.array([component.layer for component in sums.components])
    kind = np.array([component.kind for component in sums.components])
    bases = [indicator_basis(labels) for labels in ([layer], [kind], [layer, kind])]
    orders = resampling.permutations(np.zeros(len(sums.components), dtype=int))
    rows: list[tuple[object, ...]] = []
    for row, step in enumerate(sums.steps):
        gap = sums.gap(row)
        reason = gap.reason or (None if gap.delta.any() else "every gap is 0: nothing is to be explained")
        if reason is not None:
            rows += [(step, factor, *[np.nan] * len(_NUMBERS), reason) for factor in FACTORS]
            continue
        permuted = gap.delta[orders]
        again = None if sums.no_interval() else rho_and_gaps_of_ranks(*sums.resampled_ranks(row, resampling))[1]
        for factor, basis in zip(FACTORS, bases, strict=True):
            share, null = explained_share(gap.delta, basis), explained_share(permuted, basis)
            ends = [np.nan, np.nan]
            if again is not None:
                shares = explained_share(again, basis)
                ends = list(map(float, resampling.widened_interval(shares[np.isfinite(shares)], share, 1)[:2]))
            chance = (basis.shape[1] - 1) / (len(layer) - 1)
            rest = (share - chance) / (1 - chance) if chance < 1 else np.nan
            numbers = (share, *np.maximum(ends, 0), chance, np.quantile(null, resampling.level), rest)
            rows.append((step, factor, *numbers, upper_p(null, share), sums.no_interval()))
    types = {"step": "int64", "factor": "str"} | dict.fromkeys(_NUMBERS, "float64") | {"reason": "object"}
    return tidy(rows, types)


def explained_share(delta: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return the share of the sum of squares of Delta, whose mean is 0, that lies in the span of a basis.

    Args:
        delta: Gaps, ``(..., component)``.
        basis: Orthonormal columns whose span holds the constant, ``(component, dimensions)``.

    Returns:
        ``(...)``, from 0 to 1; NaN where every gap is 0.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.minimum((spread(delta @ basis) / spread(delta)) ** 2, 1.0)
