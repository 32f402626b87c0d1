"""Rho of gradient and cause with less and less of depth and kind in it, with intervals and nulls."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.rank_measures import RankMeasure, rank_measures
from dynamics.analysis.ranks import correlate, spread
from dynamics.analysis.resampling import Resampling, two_sided_p
from dynamics.analysis.tidy import tidy
from dynamics.store import Run

_NUMBERS = ("rho", "low", "high", "bias", "null_low", "null_high", "p_value")


def depth_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return rho among all components, among heads, within layers, and given layer and kind, over steps.

    In pre-LN models the gradient falls with depth whatever the components do, and heads and MLPs differ in scale. What
    each measure is, `rank_measures` says.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        level: Confidence level of intervals and bands.
        resamples: Number of bootstrap resamples of the probe's batches, and of permutations.
        seed: Seed of both.

    Returns:
        One row per step and measure: ``step, baseline, score, measure, rho``; ``low``, ``high``, ``bias``: the interval
        of rho, as in `uncertainty_table`; ``null_low``, ``null_high``, ``p_value``: band and two-sided p-value under
        the measure's own permutations; ``n``: number of components that count; ``reason``: why rho, or its interval, is
        undefined.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    return depths_of(read_batch_sums(run, baseline, score), Resampling(level, resamples, seed))


def depths_of(sums: BatchSums, resampling: Resampling) -> pd.DataFrame:
    """Do what `depth_table` does with sums that have been read already."""
    measures = rank_measures(sums.components)
    counts = resampling.counts(len(sums.sizes))
    permutations = [resampling.permutations(measure.exchangeable) for measure in measures]
    rows: list[tuple[object, ...]] = []
    for row, step in enumerate(sums.steps):
        finite = np.isfinite([sums.gradient[row], sums.causal[row]]).all()
        resampled = sums.resample(row, counts) if finite and not sums.no_interval() else None
        for measure, orders in zip(measures, permutations, strict=True):
            numbers, reason = _measure(sums, row, measure, resampled, orders, resampling)
            rows.append((step, sums.baseline, sums.score, measure.name, *numbers, len(measure.chosen), reason))
    types = {"step": "int64", "baseline": "str", "score": "str", "measure": "str"}
    return tidy(rows, types | dict.fromkeys(_NUMBERS, "float64") | {"n": "int64", "reason": "object"})


def _measure(
    sums: BatchSums,
    row: int,
    measure: RankMeasure,
    resampled: tuple[np.ndarray, np.ndarray] | None,
    orders: np.ndarray,
    resampling: Resampling,
) -> tuple[list[float], str | None]:
    unknown = [np.nan] * len(_NUMBERS)
    gap = sums.gap(row)
    if gap.reason is not None:
        return unknown, gap.reason
    if len(measure.chosen) < 2:
        return unknown, f"ranks can be compared from 2 components on; {len(measure.chosen)} are heads"
    gradient, causal = measure.residuals(sums.gradient[row]), measure.residuals(sums.causal[row])
    sides = {"gradient magnitude": gradient, "causal importance": causal}
    flat = [f"{side} {measure.nothing}" for side, values in sides.items() if spread(values) == 0]
    if flat:
        return unknown, "; ".join(flat)
    rho = float(correlate(gradient, causal))
    null = correlate(gradient, causal[orders])
    found = [*map(float, resampling.interval(null)), float(two_sided_p(null, rho))]
    if resampled is None:
        return [rho, np.nan, np.nan, np.nan, *found], sums.no_interval()
    again = correlate(*(measure.residuals(values) for values in resampled))
    ends = resampling.widened_interval(again[np.isfinite(again)], rho, 1)
    return [rho, *map(float, ends), *found], None
