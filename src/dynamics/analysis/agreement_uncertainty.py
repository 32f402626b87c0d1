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
from dynamics.analysis.ranks import centred_ranks, correlate
from dynamics.analysis.resampling import Resampling, resampled_means, two_sided_p
from dynamics.analysis.tidy import tidy
from dynamics.errors import AnalysisError
from dynamics.store import Run

ALL = "all"
"""Stands for every baseline of the run, or for every score."""

_NUMBERS = ("rho", "low", "high", "bias", "null_low", "null_high", "p_value")


@dataclass(frozen=True, eq=False)
class _Ranked:
    """One side of a comparison at one step: its values, and their centred ranks on resampled batches."""

    name: str
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
    counts = resampling.counts(len(causal[0].sizes))
    orders = resampling.permutations(np.zeros(len(run.components), dtype=int))
    rows = []
    for row, (step, measures) in enumerate(zip(run.steps, _measures(run, causal[0], counts), strict=True)):
        for sums in causal:
            side = _ranked_causal(sums, row, counts, "causal importance")
            for measure in measures:
                found = _compare(measure, side, orders, resampling, sums.no_interval())
                rows.append((step, sums.baseline, sums.score, measure.name, *found))
    table = tidy(rows, _types("baseline", "score", "measure"))
    # One series after the other, as in `agreement_table`.
    order = table.groupby(["baseline", "score", "measure"], sort=False).ngroup()
    return table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


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
    rows = []
    for name, pair in pairs.items():
        counts = resampling.counts(len(pair[0].sizes))
        orders = resampling.permutations(np.zeros(len(pair[0].components), dtype=int))
        for row, step in enumerate(pair[0].steps):
            mean, zero = (
                _ranked_causal(sums, row, counts, f"causal importance by {sums.baseline} ablation") for sums in pair
            )
            rows.append((step, name, *_compare(mean, zero, orders, resampling, pair[0].no_interval())))
    return tidy(rows, _types("score"))


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


def _measures(run: Run, sums: BatchSums, counts: np.ndarray) -> Iterator[list[_Ranked]]:
    """Yield the measures of each step."""
    batches, methods = ExampleBatches(run), run.methods if "attribution" in set(run) else ()
    nothing = np.empty((len(sums.steps), 0))
    attributions = run.snapshots.rows("attribution") if methods else iter(nothing)
    ones = np.ones(len(sums.sizes))
    for row, attribution in enumerate(attributions):
        found = [_ranked(GRADIENT_NORM, sums.gradient[row], counts, sums.gradient_norm[row], ones)]
        for method, values in zip(methods, attribution, strict=True):
            mean, of_batch = values.mean(-1, dtype=float), batches.sums(values)
            found.append(_ranked(magnitude(method), np.abs(mean), counts, of_batch, sums.sizes, absolute=True))
            found.append(_ranked(method, mean, counts, of_batch, sums.sizes))
        yield found


def _ranked_causal(sums: BatchSums, row: int, counts: np.ndarray, name: str) -> _Ranked:
    return _ranked(name, sums.causal[row], counts, sums.gains[row], sums.sizes)


def _ranked(
    name: str, values: np.ndarray, counts: np.ndarray, sums: np.ndarray, sizes: np.ndarray, absolute: bool = False
) -> _Ranked:
    if len(sizes) < 2 or not np.isfinite(values).all():
        return _Ranked(name, values, None)
    means = resampled_means(counts, sums, sizes)
    return _Ranked(name, values, centred_ranks(np.abs(means) if absolute else means))


def _compare(
    first: _Ranked, second: _Ranked, orders: np.ndarray, resampling: Resampling, no_interval: str | None
) -> tuple[float | str | None, ...]:
    gap, centre = rank_gap(first.values, second.values, first.name, second.name), (len(first.values) + 1) / 2
    if gap.reason is not None:
        return (*[np.nan] * len(_NUMBERS), gap.reason)
    null = correlate(gap.rank_gradient - centre, gap.rank_causal[orders] - centre)
    luck = (*map(float, resampling.interval(null)), float(two_sided_p(null, gap.rho)))
    if first.resampled is None or second.resampled is None:
        return (gap.rho, np.nan, np.nan, np.nan, *luck, no_interval)
    again = correlate(first.resampled, second.resampled)
    ends = resampling.widened_interval(again[np.isfinite(again)], gap.rho, 1)
    return (gap.rho, *map(float, ends), *luck, None)
