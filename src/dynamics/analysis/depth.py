"""Rho of gradient and cause with less and less of depth and kind in it, with intervals and nulls."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.rank_measures import RankMeasure, rank_measures
from dynamics.analysis.ranks import correlate, correlate_permuted, spread
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
    columns = [_Column(sums, measure, resampling) for measure in measures]
    for row in range(len(sums.steps)):
        if sums.gap(row).reason is None:
            resampled = None if sums.no_interval() else sums.resampled_ranks(row, resampling)
            for column in columns:
                column.draw(row, resampled)
    found = [column.numbers() for column in columns]
    rows = [
        (step, sums.baseline, sums.score, measure.name, *numbers[row], len(measure.chosen), column.reasons[row])
        for row, step in enumerate(sums.steps)
        for measure, column, numbers in zip(measures, columns, found, strict=True)
    ]
    types = {"step": "int64", "baseline": "str", "score": "str", "measure": "str"}
    return tidy(rows, types | dict.fromkeys(_NUMBERS, "float64") | {"n": "int64", "reason": "object"})


class _Column:
    """One measure at every snapshot: its values, and what resampling and permuting make of them.

    Attributes:
        reasons: Why the measure, or its interval, is undefined, of each snapshot.
    """

    def __init__(self, sums: BatchSums, measure: RankMeasure, resampling: Resampling) -> None:
        self.measure, self.resampling = measure, resampling
        self.reasons = [gap.reason or sums.no_interval() for gap in sums.gaps]
        steps = len(sums.steps)
        self.rho, self.null, self.again = np.full(steps, np.nan), *np.full((2, resampling.resamples, steps), np.nan)
        self.defined = np.array([gap.reason is None for gap in sums.gaps])
        if len(measure.chosen) < 2:
            few = f"ranks can be compared from 2 components on; {len(measure.chosen)} are heads"
            self.reasons = [gap.reason or few for gap in sums.gaps]
            self.defined[:] = False
            return
        self.orders = resampling.permutations(measure.exchangeable)
        self.gradient, self.causal = measure.residuals(sums.gradient), measure.residuals(sums.causal)
        flat = {"gradient magnitude": spread(self.gradient) == 0, "causal importance": spread(self.causal) == 0}
        for row in np.flatnonzero(self.defined & np.any(list(flat.values()), axis=0)):
            self.reasons[row] = "; ".join(f"{side} {measure.nothing}" for side, none in flat.items() if none[row])
            self.defined[row] = False
        self.rho[self.defined] = correlate(self.gradient, self.causal)[self.defined]

    def draw(self, row: int, resampled: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Take the null of a snapshot, and the measure on its resamples: centred ranks of G and C, if there are any."""
        if not self.defined[row]:
            return
        self.null[:, row] = correlate_permuted(self.gradient[row], self.causal[row], self.orders)
        if resampled is not None:
            self.again[:, row] = correlate(*(self.measure.residuals_of_ranks(ranks) for ranks in resampled))

    def numbers(self) -> np.ndarray:
        """Return ``(step, number)``, in the order of the table."""
        found = np.full((len(_NUMBERS), len(self.rho)), np.nan)
        rho, null = self.rho[self.defined], self.null[:, self.defined]
        ends = self.resampling.widened_intervals(self.again[:, self.defined], rho, 1)
        found[:, self.defined] = [rho, *ends, *self.resampling.interval(null), two_sided_p(null, rho)]
        return found.T
