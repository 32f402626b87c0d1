"""Numbers of heroes and bloats, in all and per layer, against what luck alone gives."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.resampling import Resampling, two_sided_p
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.tidy import tidy
from dynamics.analysis.timeline import Timeline, read_timeline
from dynamics.store import Run

_COLUMNS = {
    "step": "int64",
    "layer": "Int64",
    "role": "str",
    "components": "int64",
    "count": "Int64",
    "chance": "float64",
    "chance_given_gradient": "float64",
    "low": "float64",
    "high": "float64",
    "p_value": "float64",
}


def role_count_table(
    run: Run,
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    level: float = 0.95,
    permutations: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how many heroes and bloats there are, and how many there would be by luck, over steps.

    By luck: the ranks of G and those of C, ties and all, are dealt out to the components at random, independently. A
    layer's ``chance`` is then its share of the components times the number in all, which without ties is
    `chance_share` times n. A layer whose gradients are large has more bloats than that without C knowing anything of
    layers; ``chance_given_gradient`` deals out the ranks of C alone, so that each component keeps its G.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        level: Level of the band.
        permutations: Number of random deals.
        seed: Their seed.

    Returns:
        One row per step, layer and role (``"hero"``, ``"bloat"``): ``step``; ``layer``, missing for the whole model;
        ``role``; ``components``: how many can have it; ``count``; ``chance`` and ``chance_given_gradient``: expected
        counts (exact, not drawn); ``low``, ``high``: band of the count by luck; ``p_value``: two-sided, of the count.
        Counts and all that follows are missing where rho is undefined.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    resampling = Resampling(level, permutations, seed)
    return role_counts_of(read_timeline(run, baseline, score, threshold), resampling)


def role_counts_of(timeline: Timeline, resampling: Resampling) -> pd.DataFrame:
    """Do what `role_count_table` does for a timeline that has been read already."""
    n = len(timeline.components)
    layers = np.array([component.layer for component in timeline.components])
    names = np.unique(layers)
    # Which components belong to the whole model, and to each layer: (group, component).
    groups = np.vstack([np.ones(n), layers == names[:, None]])
    free = np.zeros(n, dtype=int)
    deals = resampling.permutations(free, 1), resampling.permutations(free, 2)
    rows: list[tuple[object, ...]] = []
    for step, gap in zip(timeline.steps, timeline.gaps, strict=True):
        drawn = gap.rank_gradient[deals[0]] - gap.rank_causal[deals[1]]
        pairs = gap.rank_gradient[:, None] - gap.rank_causal
        for role, sign in ((HERO, -1), (BLOAT, 1)):
            count = groups @ (sign * gap.delta >= timeline.threshold)
            of_component = (sign * pairs >= timeline.threshold).mean(1)
            chance = groups.sum(1) * of_component.mean()
            null = (sign * drawn >= timeline.threshold) @ groups.T
            numbers = [count, chance, groups @ of_component, *resampling.interval(null), two_sided_p(null, count)]
            if gap.reason is not None:
                numbers = [np.full(len(groups), np.nan)] * len(numbers)
            for group, layer in enumerate([pd.NA, *names]):
                rows.append((step, layer, role, int(groups[group].sum()), *(values[group] for values in numbers)))
    return tidy(rows, _COLUMNS)
