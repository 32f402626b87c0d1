"""How sure rho, gaps, roles and causal importance are, from resampled probe batches and permuted components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.rank_gap import RankGap
from dynamics.analysis.ranks import correlate_permuted, rho_and_gaps_of_ranks
from dynamics.analysis.resampling import Resampling, two_sided_p
from dynamics.analysis.roles import chosen_threshold
from dynamics.store import Run


@dataclass(frozen=True, eq=False)
class SnapshotUncertainty:
    """Resamples of one snapshot, summed up.

    Attributes:
        gap: The gap of the whole probe.
        rho_resamples: Rho of each bootstrap resample, ``(resample,)``; NaN where one side is constant; all NaN if rho
            itself is undefined, or batches cannot be resampled.
        rho: Low end, high end and bias of rho.
        null: Low end, high end and two-sided p-value of rho under permutation.
        delta: Low and high ends of Delta, ``(2, component)``.
        hero: Share of resamples in which the component is a Hidden Hero, ``(component,)``.
        bloat: The same for Gradient Bloats.
        causal: Low and high ends of C, ``(2, component)``.
        reason: Why rho, or its interval, is undefined; ``None`` if both are defined.
    """

    gap: RankGap
    rho_resamples: np.ndarray
    rho: tuple[float, float, float]
    null: tuple[float, float, float]
    delta: np.ndarray
    hero: np.ndarray
    bloat: np.ndarray
    causal: np.ndarray
    reason: str | None


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """How sure the findings of every snapshot of a run are, for one ablation baseline and one score.

    Attributes:
        sums: G and C, batch by batch.
        threshold: Smallest gap of a hero or bloat, in ranks.
        resampling: How it was resampled.
        snapshots: What came out, one for each step.
    """

    sums: BatchSums
    threshold: float
    resampling: Resampling
    snapshots: tuple[SnapshotUncertainty, ...]

    @property
    def rho_resamples(self) -> np.ndarray:
        """Return rho of every snapshot on the same resampled batches, ``(step, resample)``."""
        return np.array([snapshot.rho_resamples for snapshot in self.snapshots])

    @property
    def distinguishable(self) -> np.ndarray:
        """Return which C have an interval without 0, ``(step, component)``: 1, 0, or NaN where there is none."""
        low, high = np.moveaxis(np.array([snapshot.causal for snapshot in self.snapshots]), 1, 0)
        return np.where(np.isnan(low), np.nan, (low > 0) | (high < 0))

    def uncertainty_table(self) -> pd.DataFrame:
        """Return one row per step: rho with its interval and null, ties, and the noise floor of C."""
        rho, null = (np.array([getattr(s, name) for s in self.snapshots]).T for name in ("rho", "null"))
        distinguishable = self.distinguishable
        table = pd.DataFrame(
            {
                "step": self.sums.steps,
                "baseline": self.sums.baseline,
                "score": self.sums.score,
                "rho": np.array([s.gap.rho for s in self.snapshots]),
                "low": rho[0],
                "high": rho[1],
                "bias": rho[2],
                "defined": np.isfinite(self.rho_resamples).mean(1),
                "null_low": null[0],
                "null_high": null[1],
                "p_null": null[2],
                "ties": tied_share(self.sums.causal),
                "indistinguishable": 1 - distinguishable.mean(1),
                "reason": pd.Series([s.reason for s in self.snapshots], dtype=object),
            }
        )
        return table.astype({"baseline": "str", "score": "str"})

    def role_probability_table(self) -> pd.DataFrame:
        """Return one row per step and component: Delta and C with intervals, and the probability of each role."""
        n, steps = len(self.sums.components), len(self.snapshots)
        delta, causal = (np.array([getattr(s, name) for s in self.snapshots]) for name in ("delta", "causal"))
        distinguishable = pd.Series(self.distinguishable.ravel()).astype("boolean")
        columns = {
            "step": np.repeat(self.sums.steps, n),
            "component": np.tile([c.label for c in self.sums.components], steps),
            "layer": np.tile([c.layer for c in self.sums.components], steps),
            "kind": np.tile([c.kind for c in self.sums.components], steps),
            "delta": np.array([s.gap.delta for s in self.snapshots]).ravel(),
            "delta_low": delta[:, 0].ravel(),
            "delta_high": delta[:, 1].ravel(),
            "p_hero": np.array([s.hero for s in self.snapshots]).ravel(),
            "p_bloat": np.array([s.bloat for s in self.snapshots]).ravel(),
            "causal": self.sums.causal.ravel(),
            "causal_low": causal[:, 0].ravel(),
            "causal_high": causal[:, 1].ravel(),
            "distinguishable": distinguishable,
        }
        return pd.DataFrame(columns).astype({"component": "str", "layer": "int64", "kind": "str"})


def tied_share(values: np.ndarray) -> np.ndarray:
    """Return the share of components whose value another one has too, ``(..., component)`` to ``(...)``.

    NaN where a value is not finite.
    """
    ordered = np.sort(values, axis=-1)
    same = ordered[..., 1:] == ordered[..., :-1]
    edge = np.zeros((*same.shape[:-1], 1), dtype=bool)
    tied = np.concatenate([same, edge], -1) | np.concatenate([edge, same], -1)
    return np.where(np.isfinite(values).all(-1), tied.mean(-1), np.nan)


def resample_snapshot(
    sums: BatchSums,
    row: int,
    threshold: float,
    resampling: Resampling,
    permutations: np.ndarray,
) -> SnapshotUncertainty:
    """Resample the batches, and permute the components, of one snapshot.

    Args:
        sums: G and C, batch by batch.
        row: Which snapshot.
        threshold: Smallest gap of a hero or bloat, in ranks.
        resampling: How batches are drawn, and the level of the intervals.
        permutations: Orders of the components, ``(permutation, component)``.
    """
    gap, n = sums.gap(row), len(sums.components)
    reason = gap.reason or sums.no_interval()
    unknown = np.full((2, n), np.nan)
    null: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    if gap.reason is None:
        centre = (n + 1) / 2
        permuted = correlate_permuted(gap.rank_gradient - centre, gap.rank_causal - centre, permutations)
        band = resampling.interval(permuted)
        null = (float(band[0]), float(band[1]), float(two_sided_p(permuted, gap.rho)))
    if sums.no_interval() or np.isnan(gap.delta).any():
        nothing = np.full(resampling.resamples, np.nan)
        return SnapshotUncertainty(gap, nothing, (np.nan,) * 3, null, unknown, unknown[0], unknown[0], unknown, reason)
    causal = sums.resampled_causal.means(row, resampling)
    # C is an ordinary mean, which has an interval even where all C are equal and nothing can be ranked.
    noise = np.array(resampling.interval(causal))
    if gap.reason is not None:
        nothing = np.full(resampling.resamples, np.nan)
        return SnapshotUncertainty(gap, nothing, (np.nan,) * 3, null, unknown, unknown[0], unknown[0], noise, reason)
    # As in the timeline: where one side is constant nothing is ranked, and no role given.
    ranks = sums.resampled_gradient.ranks(row, resampling), sums.resampled_causal.ranks(row, resampling, causal)
    rho, delta = rho_and_gaps_of_ranks(*ranks)
    roles = [(delta <= -threshold), (delta >= threshold)]
    hero, bloat = (role.mean(0) if len(role) else unknown[0] for role in roles)
    low, high, bias = (float(value) for value in resampling.widened_interval(rho[np.isfinite(rho)], gap.rho, 1))
    ends = np.array(resampling.widened_interval(delta, gap.delta, n - 1)[:2])
    return SnapshotUncertainty(gap, rho, (low, high, bias), null, ends, hero, bloat, noise, reason)


def read_uncertainty(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Uncertainty:
    """Resample every snapshot of a run: batches with replacement for intervals, components permuted for the null.

    A resample draws as many probe batches as there are, with replacement, and takes G over the batches drawn and C over
    all of their examples (cluster bootstrap: the examples of a batch share its gradient norm). Intervals of C are
    percentiles; those of rho and Delta are widened by the bias of ranks, see `Resampling.widened_interval`. The null
    of rho pairs the ranks of G with those of C at random.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        level: Confidence level of intervals and bands.
        resamples: Number of bootstrap resamples, and of permutations.
        seed: Seed of both.

    Returns:
        The uncertainty; its methods give the tables.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    resampling = Resampling(level, resamples, seed)
    return uncertainty_of(read_batch_sums(run, baseline, score), resampling, threshold)


def uncertainty_of(sums: BatchSums, resampling: Resampling, threshold: float | None = None) -> Uncertainty:
    """Do what `read_uncertainty` does with sums that have been read already."""
    n = len(sums.components)
    threshold = chosen_threshold(threshold, n)
    permutations = resampling.permutations(np.zeros(n, dtype=int))
    snapshots = tuple(
        resample_snapshot(sums, row, threshold, resampling, permutations) for row in range(len(sums.steps))
    )
    return Uncertainty(sums, threshold, resampling, snapshots)


def uncertainty_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return rho of every snapshot with its interval and null; the arguments are those of `read_uncertainty`.

    Returns:
        One row per step: ``step, baseline, score, rho``; ``low``, ``high``: interval of rho; ``bias``: mean of the
        resamples less rho; ``defined``: share of resamples in which rho is defined; ``null_low``, ``null_high``,
        ``p_null``: band and two-sided p-value of rho if components were paired at random; ``ties``: share of components
        that share their C with another; ``indistinguishable``: share of components whose C cannot be told from 0;
        ``reason``: why rho, or its interval, is undefined.
    """
    return read_uncertainty(run, baseline, score, None, level, resamples, seed).uncertainty_table()


def role_probability_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how sure each component's gap, role and C are; the arguments are those of `read_uncertainty`.

    Returns:
        One row per step and component: ``step, component, layer, kind, delta``; ``delta_low``, ``delta_high``;
        ``p_hero``, ``p_bloat``: share of the resamples in which it has that role; ``causal`` (C) with ``causal_low``,
        ``causal_high``; ``distinguishable``: whether that interval excludes 0, missing where there is none.
    """
    return read_uncertainty(run, baseline, score, threshold, level, resamples, seed).role_probability_table()
