"""Hidden Heroes and Gradient Bloats: roles of components by their gap, and how many of them luck alone gives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dynamics.errors import AnalysisError

HERO, BLOAT, ALIGNED, UNDEFINED = ROLES = ("hero", "bloat", "aligned", "undefined")
"""The roles; ``"undefined"`` where there is no gap to judge."""


def classify_roles(delta: ArrayLike, threshold: float | None = None) -> np.ndarray:
    """Return the role of each component from its gap ``Delta = rank(G) - rank(C)``.

    - ``"hero"`` (Hidden Hero), ``Delta <= -threshold``: the model needs it far more than its gradient shows.
    - ``"bloat"`` (Gradient Bloat), ``Delta >= threshold``: its gradient is far larger than the model's need of it.
    - ``"aligned"`` between.
    - ``"undefined"`` where Delta is NaN.

    Args:
        delta: Gaps in ranks, of any shape; the last axis is ``component``.
        threshold: Smallest gap of a hero or bloat, in ranks; default: `default_threshold` for that many components.

    Returns:
        Text, of the shape of ``delta``.

    Raises:
        AnalysisError: If the threshold is not positive.
    """
    delta = np.asarray(delta, dtype=float)
    threshold = chosen_threshold(threshold, delta.shape[-1])
    conditions = [np.isnan(delta), delta <= -threshold, delta >= threshold]
    return np.select(conditions, [UNDEFINED, HERO, BLOAT], ALIGNED)


def default_threshold(n: int) -> int:
    """Return ``round(0.3 n)``, at least 1: the paper's 6 ranks for its 20 components, and the same share for others."""
    return max(1, round(0.3 * n))


def chance_share(n: int, threshold: float) -> float:
    """Return ``P(Delta >= tau) = (n - tau)(n - tau + 1) / (2 n^2)``, the share of heroes, or of bloats, by luck alone.

    It counts the pairs of ranks, each from 1 to n, that lie at least tau apart in one direction: what to expect of a
    component if the ranks of G and C were independent and without ties. 0.2625 for n = 20, tau = 6.

    Args:
        n: Number of components that are ranked.
        threshold: Tau, in ranks. Gaps without ties are whole, so a broken number counts as the next whole one.

    Raises:
        AnalysisError: If n is not positive or the threshold is not.
    """
    if n < 1:
        raise AnalysisError(f"the number of components must be at least 1; got {n}.")
    check_threshold(threshold)
    tau = min(math.ceil(threshold), n)
    return (n - tau) * (n - tau + 1) / (2 * n**2)


def chosen_threshold(threshold: float | None, n: int) -> float:
    """Return the threshold, by default `default_threshold` of n components; raise `AnalysisError` if it is no gap."""
    chosen = default_threshold(n) if threshold is None else threshold
    check_threshold(chosen)
    return chosen


def check_threshold(threshold: float) -> None:
    """Raise `AnalysisError` unless the smallest gap of a role is a positive number of ranks."""
    # At 0 a component without any gap would be hero and bloat at once.
    if not 0 < threshold < math.inf:
        raise AnalysisError(f"the threshold of a role must be a positive number of ranks; got {threshold}.")
