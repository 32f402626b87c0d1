"""Gaps, rho and roles over training, as tidy tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.rank_gap import RankGap
from dynamics.analysis.roles import BLOAT, HERO, UNDEFINED, chance_share, chosen_threshold, classify_roles
from dynamics.store import ComponentInfo, Run


@dataclass(frozen=True, eq=False)
class Timeline:
    """The gaps of every snapshot of a run, for one ablation baseline and one score.

    Attributes:
        components: The components.
        baseline: What ablated outputs were replaced by.
        score: What causal importance is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks.
        steps: Optimizer step of each snapshot, ``(step,)``.
        gradient: Gradient magnitude, ``(step, component)``.
        causal: Causal importance, ``(step, component)``.
        gaps: Ranks, Delta and rho of each snapshot.
        roles: Role of each component, ``(step, component)``; all ``"undefined"`` at a step without rho.
    """

    components: tuple[ComponentInfo, ...]
    baseline: str
    score: str
    threshold: float
    steps: np.ndarray
    gradient: np.ndarray
    causal: np.ndarray
    gaps: tuple[RankGap, ...]
    roles: np.ndarray

    @property
    def chance(self) -> float:
        """Return the share of heroes, or of bloats, that luck alone gives; see `chance_share`."""
        return chance_share(len(self.components), self.threshold)

    def gap_table(self) -> pd.DataFrame:
        """Return one row per step and component: G, C, their ranks, Delta and role."""
        n = len(self.components)
        columns = {
            "step": np.repeat(self.steps, n),
            **{
                name: np.tile(np.array(values, dtype=object), len(self.steps))
                for name, values in {
                    "component": [c.label for c in self.components],
                    "layer": [c.layer for c in self.components],
                    "kind": [c.kind for c in self.components],
                    "head": [c.head for c in self.components],
                }.items()
            },
            "gradient": self.gradient.ravel(),
            "causal": self.causal.ravel(),
            **{
                name: np.array([getattr(gap, name) for gap in self.gaps], dtype=float).ravel()
                for name in ("rank_gradient", "rank_causal", "delta")
            },
            "role": self.roles.ravel(),
        }
        # An MLP has no head: pandas' own integers can be missing.
        types = {"component": "str", "layer": "int64", "kind": "str", "head": "Int64", "role": "str"}
        return pd.DataFrame(columns).astype(types)

    def rho_table(self) -> pd.DataFrame:
        """Return one row per step: rho, its p-value or why it is undefined, and the numbers of heroes and bloats.

        ``chance`` is the number of heroes, or of bloats, that luck alone gives. Counts are missing where rho is
        undefined.
        """
        table = pd.DataFrame(
            {
                "step": self.steps,
                "score": self.score,
                "rho": np.array([gap.rho for gap in self.gaps], dtype=float),
                "p_value": np.array([gap.p_value for gap in self.gaps], dtype=float),
                "reason": pd.Series([gap.reason for gap in self.gaps], dtype=object),
                "heroes": self._count(HERO, slice(None)),
                "bloats": self._count(BLOAT, slice(None)),
                "chance": self.chance * len(self.components),
                "threshold": self.threshold,
            }
        )
        return table.astype({"score": "str"})

    def layer_table(self) -> pd.DataFrame:
        """Return one row per step and layer: the numbers of components, heroes and bloats, and what luck alone gives.

        ``chance = components in the layer x chance share``, for heroes and for bloats alike. Counts are missing where
        rho is undefined.
        """
        layers = np.array([component.layer for component in self.components])
        tables = [
            pd.DataFrame(
                {
                    "step": self.steps,
                    "layer": layer,
                    "components": int((layers == layer).sum()),
                    "heroes": self._count(HERO, layers == layer),
                    "bloats": self._count(BLOAT, layers == layer),
                    "chance": self.chance * int((layers == layer).sum()),
                }
            )
            for layer in np.unique(layers)
        ]
        return pd.concat(tables).sort_values(["step", "layer"], kind="stable", ignore_index=True)

    def _count(self, role: str, chosen: slice | np.ndarray) -> pd.Series:
        roles = self.roles[:, chosen]
        counts = pd.Series((roles == role).sum(1), dtype="Int64")
        return counts.mask(pd.Series((roles == UNDEFINED).any(1)))


def read_timeline(
    run: Run, baseline: str = "mean", score: str = "exact_match", threshold: float | None = None
) -> Timeline:
    """Compare gradient magnitude with causal importance at every snapshot of a run.

    Where rho is undefined (all causal importances are equal while accuracy is still 0, or a diverged model gave NaN)
    there is no ranking to judge, and every role of that step is ``"undefined"``.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"``, or ``"loss"``, which is defined even while accuracy is 0.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Returns:
        The timeline; its methods give the tables.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    return timeline_of(read_batch_sums(run, baseline, score), threshold)


def timeline_of(sums: BatchSums, threshold: float | None = None) -> Timeline:
    """Do what `read_timeline` does with sums that have been read already."""
    n = len(sums.components)
    threshold = chosen_threshold(threshold, n)
    gaps = tuple(sums.gap(row) for row in range(len(sums.steps)))
    roles = np.array(
        [classify_roles(gap.delta if gap.reason is None else np.full(n, np.nan), threshold) for gap in gaps]
    )
    return Timeline(
        sums.components, sums.baseline, sums.score, threshold, sums.steps, sums.gradient, sums.causal, gaps, roles
    )


def gap_table(
    run: Run, baseline: str = "mean", score: str = "exact_match", threshold: float | None = None
) -> pd.DataFrame:
    """Return `Timeline.gap_table` of a run; the arguments are those of `read_timeline`."""
    return read_timeline(run, baseline, score, threshold).gap_table()


def rho_table(
    run: Run, baseline: str = "mean", score: str = "exact_match", threshold: float | None = None
) -> pd.DataFrame:
    """Return `Timeline.rho_table` of a run; the arguments are those of `read_timeline`."""
    return read_timeline(run, baseline, score, threshold).rho_table()


def layer_table(
    run: Run, baseline: str = "mean", score: str = "exact_match", threshold: float | None = None
) -> pd.DataFrame:
    """Return `Timeline.layer_table` of a run; the arguments are those of `read_timeline`."""
    return read_timeline(run, baseline, score, threshold).layer_table()
