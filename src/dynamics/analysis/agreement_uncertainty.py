"""How sure the agreement of every score with ablation is, and how far mean and zero ablation agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.agreement import GRADIENT_NORM, magnitude
from dynamics.analysis.batch_sums import BatchSums, ExampleBatches, read_batch_sums_of
from dynamics.analysis.importance import SCORES, check_score
from dynamics.analysis.rank_gap import rank_gap
from dynamics.analysis.ranks import centred_ranks, correlate, correlate_permuted
from dynamics.analysis.resampled_ranks import ResampledRanks
from dynamics.analysis.resampling import Resampling, resampled_means, two_sided_p
from dynamics.analysis.tidy import tidy
from dynamics.errors import AnalysisError
from dynamics.store import Run

ALL = "all"
"""Stands for every baseline of the run, or for every score."""

_NUMBERS = ("rho", "low", "high", "bias", "null_low", "null_high", "p_value")


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of a comparison at one step: its values, and their centred ranks on resampled batches."""

    values: np.ndarray
    resampled: np.ndarray | None


def agreement_uncertainty_table(
    run: Run,
    baseline: str = ALL,
    score: str = ALL,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return ``rho = Spearman(measure, C)`` of every recorded measure, with intervals and nulls, over steps.

    The measures are those of `recorded_measures`. A resample draws probe batches with replacement; G, attributions and
    C are all taken over the batches drawn, and absolute values after the mean.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"``, ``"zero"``, or ``"all"`` that the run has.
        score: What C is measured in: ``"exact_match"``, ``"loss"``, or ``"all"`` that the run has.
        level: Confidence level of intervals and bands.
        resamples: Number of bootstrap resamples of the probe's batches, and of permutations.
        seed: Seed of both.

    Returns:
        One row per baseline, score, measure and step: ``step, baseline, score, measure, rho``; ``low``, ``high``,
        ``bias``: the interval of rho, as in `uncertainty_table`; ``null_low``, ``null_high``, ``p_value``: band and
        two-sided p-value if components were paired at random; ``reason``: why rho, or its interval, is undefined.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    return agreement_of(run, _causal(run, baseline, score), Resampling(level, resamples, seed))


def agreement_of(run: Run, causal: Sequence[BatchSums], resampling: Resampling) -> pd.DataFrame:
    """Do what `agreement_uncertainty_table` does for causal importances that have been read already."""
    methods = run.methods if "attribution" in set(run) else ()
    measures = [GRADIENT_NORM, *(name for method in methods for name in (magnitude(method), method))]
    steps, orders = len(causal[0].steps), resampling.permutations(np.zeros(len(run.components), dtype=int))
    found = [[_Comparison(resampling, orders, steps, measure) for measure in measures] for _ in causal]
    for row, sides in enumerate(_measures(run, methods, causal[0], resampling)):
        for sums, comparisons in zip(causal, found, strict=True):
            other = _causal_side(sums, row, resampling)
            for side, comparison in zip(sides, comparisons, strict=True):
                comparison.add(row, side, other, sums.no_interval())
    rows = [
        (step, sums.baseline, sums.score, measure, *numbers)
        for sums, comparisons in zip(causal, found, strict=True)
        for measure, comparison in zip(measures, comparisons, strict=True)
        for step, numbers in zip(sums.steps, comparison.rows(), strict=True)
    ]
    return tidy(rows, _types("baseline", "score", "measure"))


def ablation_agreement_table(
    run: Run,
    score: str = ALL,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return ``rho = Spearman(C by mean ablation, C by zero ablation)``, over steps.

    Args:
        run: An open run that recorded both.
        score: What C is measured in: ``"exact_match"``, ``"loss"``, or ``"all"`` that the run has.
        level: Confidence level of intervals and bands.
        resamples: Number of bootstrap resamples of the probe's batches, and of permutations.
        seed: Seed of both.

    Returns:
        One row per score and step: ``step, score``, and the columns of `agreement_uncertainty_table` from ``rho`` on.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    pairs = {}
    for name in _scores(run, score):
        mean, zero = read_batch_sums_of(run, ("mean", "zero"), name)
        pairs[name] = (mean, zero)
    return both_baselines_of(pairs, Resampling(level, resamples, seed))


def both_baselines_of(pairs: Mapping[str, tuple[BatchSums, BatchSums]], resampling: Resampling) -> pd.DataFrame:
    """Do what `ablation_agreement_table` does with sums read already: by mean and by zero ablation, for each score."""
    rows: list[tuple[object, ...]] = []
    for name, pair in pairs.items():
        orders = resampling.permutations(np.zeros(len(pair[0].components), dtype=int))
        names = (f"causal importance by {sums.baseline} ablation" for sums in pair)
        comparison = _Comparison(resampling, orders, len(pair[0].steps), *names)
        for row in range(len(pair[0].steps)):
            mean, zero = (_causal_side(sums, row, resampling) for sums in pair)
            comparison.add(row, mean, zero, pair[0].no_interval())
        rows += [(step, name, *numbers) for step, numbers in zip(pair[0].steps, comparison.rows(), strict=True)]
    return tidy(rows, _types("score"))


class _Comparison:
    """The correlation of two sides, gathered step by step: intervals of all steps together take far less time."""

    def __init__(
        self, resampling: Resampling, orders: np.ndarray, steps: int, first: str, second: str = "causal importance"
    ) -> None:
        self.resampling, self.orders, self.names = resampling, orders, (first, second)
        self.reasons: list[str | None] = [None] * steps
        self.rho, self.null, self.again = np.full(steps, np.nan), *np.full((2, resampling.resamples, steps), np.nan)

    def add(self, row: int, first: _Side, second: _Side, no_interval: str | None) -> None:
        """Compare the sides of one step."""
        gap, centre = rank_gap(first.values, second.values, *self.names), (len(first.values) + 1) / 2
        self.rho[row], self.reasons[row] = gap.rho, gap.reason or no_interval
        if gap.reason is not None:
            return
        self.null[:, row] = correlate_permuted(gap.rank_gradient - centre, gap.rank_causal - centre, self.orders)
        if first.resampled is not None and second.resampled is not None:
            self.again[:, row] = correlate(first.resampled, second.resampled)

    def rows(self) -> list[tuple[object, ...]]:
        """Return the numbers and the reason of each step."""
        found, defined = np.full((len(_NUMBERS), len(self.rho)), np.nan), np.isfinite(self.rho)
        rho, null = self.rho[defined], self.null[:, defined]
        ends = self.resampling.widened_intervals(self.again[:, defined], rho, 1)
        found[:, defined] = [rho, *ends, *self.resampling.interval(null), two_sided_p(null, rho)]
        return [(*numbers, reason) for numbers, reason in zip(found.T, self.reasons, strict=True)]


def _types(*names: str) -> dict[str, str]:
    numbers = dict.fromkeys(_NUMBERS, "float64")
    return {"step": "int64"} | dict.fromkeys(names, "str") | numbers | {"reason": "object"}


def _scores(run: Run, score: str) -> tuple[str, ...]:
    if score != ALL:
        check_score(score)
        return (score,)
    # A run without any is refused by name where the first is read.
    return tuple(name for name in SCORES if f"ablation_{name}" in set(run)) or SCORES


def _causal(run: Run, baseline: str, score: str) -> list[BatchSums]:
    baselines = run.baselines if baseline == ALL else (baseline,)
    if not baselines:
        raise AnalysisError(f"{run.path} holds no ablations. Track again with baselines=('mean', 'zero').")
    found = [sums for name in _scores(run, score) for sums in read_batch_sums_of(run, baselines, name)]
    return sorted(found, key=lambda sums: baselines.index(sums.baseline))


def _measures(run: Run, methods: Sequence[str], sums: BatchSums, resampling: Resampling) -> Iterator[list[_Side]]:
    """Yield the measures of each step."""
    batches, counts = ExampleBatches(run), resampling.counts(len(sums.sizes))
    nothing = np.empty((len(sums.steps), 0))
    for row, attribution in enumerate(run.snapshots.rows("attribution") if methods else nothing):
        sides = [_kept_side(sums.gradient[row], sums.resampled_gradient, row, resampling)]
        for values in attribution:
            of_batch = batches.sums(values)
            mean = of_batch.sum(-1) / sums.sizes.sum()
            known = len(sums.sizes) > 1 and np.isfinite(mean).all()
            means = resampled_means(counts, of_batch, sums.sizes) if known else None
            sides.append(_Side(np.abs(mean), None if means is None else centred_ranks(np.abs(means))))
            sides.append(_Side(mean, None if means is None else centred_ranks(means)))
        yield sides


def _causal_side(sums: BatchSums, row: int, resampling: Resampling) -> _Side:
    return _kept_side(sums.causal[row], sums.resampled_causal, row, resampling)


def _kept_side(values: np.ndarray, resampled: ResampledRanks, row: int, resampling: Resampling) -> _Side:
    known = resampled.batches > 1 and np.isfinite(values).all()
    return _Side(values, resampled.ranks(row, resampling) if known else None)
