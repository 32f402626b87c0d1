"""Gaps less their layer's mean, and the roles that are left."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.ranks import rho_and_gaps_of_ranks
from dynamics.analysis.resampling import Resampling, two_sided_p
from dynamics.analysis.roles import BLOAT, HERO, chosen_threshold, classify_roles
from dynamics.analysis.tidy import tidy
from dynamics.store import Run


def adjusted_gap_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return ``Delta_i - mean of Delta over the layer of i``: the gap less what the whole layer shares.

    That is the gap of ranks from which the layer's mean rank was taken, for G and C alike. It sums to 0 in each layer.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks, before and after; default ``round(0.3 n)``.
        level: Confidence level of intervals.
        resamples: Number of bootstrap resamples of the probe's batches.
        seed: Their seed.

    Returns:
        One row per step and component: ``step, component, layer, kind, delta``; ``layer_delta``: mean over its layer;
        ``adjusted``: the difference; ``adjusted_low``, ``adjusted_high``: its interval; ``role`` by ``delta``,
        ``adjusted_role`` by ``adjusted``, both ``"undefined"`` where rho is.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    sums = read_batch_sums(run, baseline, score)
    return adjusted_gaps_of(sums, Resampling(level, resamples, seed), threshold)


def adjusted_gaps_of(sums: BatchSums, resampling: Resampling, threshold: float | None = None) -> pd.DataFrame:
    """Do what `adjusted_gap_table` does with sums that have been read already."""
    n = len(sums.components)
    threshold = chosen_threshold(threshold, n)
    layers = np.array([component.layer for component in sums.components])
    tables = []
    for row, step in enumerate(sums.steps):
        gap = sums.gap(row)
        adjusted = less_layer_mean(gap.delta, layers)
        ends = np.full((2, n), np.nan)
        if gap.reason is None and not sums.no_interval():
            _, delta = rho_and_gaps_of_ranks(*sums.resampled_ranks(row, resampling))
            ends = np.array(resampling.widened_interval(less_layer_mean(delta, layers), adjusted, n - 1)[:2])
        undefined = np.where(gap.reason is None, 0.0, np.nan)
        tables.append(
            pd.DataFrame(
                {
                    "step": step,
                    "component": [c.label for c in sums.components],
                    "layer": [c.layer for c in sums.components],
                    "kind": [c.kind for c in sums.components],
                    "delta": gap.delta,
                    "layer_delta": gap.delta - adjusted,
                    "adjusted": adjusted,
                    "adjusted_low": ends[0],
                    "adjusted_high": ends[1],
                    "role": classify_roles(gap.delta + undefined, threshold),
                    "adjusted_role": classify_roles(adjusted + undefined, threshold),
                }
            )
        )
    types = {"step": "int64", "layer": "int64"} | dict.fromkeys(("component", "kind", "role", "adjusted_role"), "str")
    return pd.concat(tables, ignore_index=True).astype(types)


def adjusted_count_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    level: float = 0.95,
    permutations: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how many roles are left once each layer's mean rank is taken off, and how many luck would leave.

    By luck: the ranks of C are dealt out anew within each layer, so that all that layers share stays as it is.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks, before and after; default ``round(0.3 n)``.
        level: Level of the band.
        permutations: Number of random deals.
        seed: Their seed.

    Returns:
        One row per step and role (``"hero"``, ``"bloat"``): ``step, role``; ``count`` by Delta; ``left`` by the
        adjusted Delta; ``kept``: how many have the role by both; ``chance``: expected ``left`` by luck (exact);
        ``low``, ``high``: its band; ``p_value``: two-sided, of ``left``. Missing where rho is undefined.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    sums = read_batch_sums(run, baseline, score)
    return adjusted_counts_of(sums, Resampling(level, permutations, seed), threshold)


def adjusted_counts_of(sums: BatchSums, resampling: Resampling, threshold: float | None = None) -> pd.DataFrame:
    """Do what `adjusted_count_table` does with sums that have been read already."""
    n = len(sums.components)
    threshold = chosen_threshold(threshold, n)
    layers = np.array([component.layer for component in sums.components])
    together = layers[:, None] == layers
    orders = resampling.permutations(layers)
    rows: list[tuple[object, ...]] = []
    for row, step in enumerate(sums.steps):
        gap = sums.gap(row)
        if gap.reason is not None:
            rows += [(step, role, *[pd.NA] * 3, *[np.nan] * 4) for role in (HERO, BLOAT)]
            continue
        gradient, causal = (less_layer_mean(side, layers) for side in (gap.rank_gradient, gap.rank_causal))
        adjusted, drawn = less_layer_mean(gap.delta, layers), _settled(gradient - causal[orders])
        pairs = _settled(gradient[:, None] - causal)
        for role, sign in ((HERO, -1), (BLOAT, 1)):
            before, after = sign * gap.delta >= threshold, sign * adjusted >= threshold
            chance = ((sign * pairs >= threshold) & together).sum(1) / together.sum(1)
            null = (sign * drawn >= threshold).sum(1)
            low, high = resampling.interval(null)
            left = after.sum()
            p_value = two_sided_p(null, left)
            rows.append((step, role, before.sum(), left, (before & after).sum(), chance.sum(), low, high, p_value))
    types = {"step": "int64", "role": "str"} | dict.fromkeys(("count", "left", "kept"), "Int64")
    types |= dict.fromkeys(("chance", "low", "high", "p_value"), "float64")
    return tidy(rows, types)


def less_layer_mean(values: np.ndarray, layers: np.ndarray) -> np.ndarray:
    """Return values less the mean over the components of their layer.

    Args:
        values: ``(..., component)``.
        layers: The layer of each component, ``(component,)``.
    """
    together = (layers[:, None] == layers).astype(float)
    return _settled(values - values @ (together / together.sum(0)))


def _settled(values: np.ndarray) -> np.ndarray:
    # Means of ranks are seldom whole: without this, a gap of exactly the threshold would hang on rounding.
    return np.round(values, 9)
