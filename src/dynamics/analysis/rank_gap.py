"""The gap between gradient magnitude and causal importance, in ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from dynamics.analysis.ranks import ranks
from dynamics.errors import AnalysisError


@dataclass(frozen=True, eq=False)
class RankGap:
    """How far the ranks by gradient and by cause lie apart, for the components of one snapshot.

    Attributes:
        rho: Spearman's rank correlation of gradient magnitude and causal importance; NaN if it is undefined.
        p_value: Two-sided p-value of ``rho`` under independence (t approximation); NaN if undefined, and for two
            components, which leave no degree of freedom.
        delta: ``rank(G) - rank(C)``, ``(component,)``; it sums to 0. All NaN if an input is not finite.
        rank_gradient: Ascending rank of gradient magnitude from 1, ties averaged, ``(component,)``.
        rank_causal: Ascending rank of causal importance from 1, ties averaged, ``(component,)``.
        reason: Why ``rho`` is undefined, in words; ``None`` if it is defined.
    """

    rho: float
    p_value: float
    delta: np.ndarray
    rank_gradient: np.ndarray
    rank_causal: np.ndarray
    reason: str | None


def rank_gap(
    gradient: ArrayLike, causal: ArrayLike, name: str = "gradient magnitude", causal_name: str = "causal importance"
) -> RankGap:
    """Return ``Delta_i = rank(G_i) - rank(C_i)`` and ``rho = Spearman(G, C)``.

    Ranks ascend from 1 and ties share their mean rank, so Delta sums to 0. From "Hidden Heroes and Gradient Bloats"
    (arXiv 2602.01442).

    Args:
        gradient: Gradient magnitude of each component, ``(component,)``.
        causal: Causal importance of each component, ``(component,)``.
        name: What ``gradient`` is called in a reason, if it is another score than gradient magnitude.
        causal_name: The same for ``causal``.

    Returns:
        The gap. If one side is constant, rho is NaN and ``reason`` says why; Delta is then still defined. If a value
        is not finite, Delta is NaN as well: one unknown value leaves the ranks of all others open.

    Raises:
        AnalysisError: If the two are not arrays of one axis and equal length, or there are fewer than 2 components.
    """
    g, c = np.asarray(gradient, dtype=float), np.asarray(causal, dtype=float)
    if g.ndim != 1 or g.shape != c.shape:
        raise AnalysisError(
            f"gradient and causal must both be (component,), of the same length; got {g.shape} and {c.shape}."
        )
    if len(g) < 2:
        raise AnalysisError(f"ranks can be compared from 2 components on; got {len(g)}.")
    sides = {name: g, causal_name: c}
    if not np.isfinite([g, c]).all():
        unknown = np.full(len(g), np.nan)
        reason = "; ".join(
            f"{int((~np.isfinite(values)).sum())} of {len(values)} values of {side} are not finite"
            for side, values in sides.items()
            if not np.isfinite(values).all()
        )
        return RankGap(np.nan, np.nan, unknown, unknown, unknown, reason)
    rank_gradient, rank_causal = ranks(np.stack([g, c]))
    delta = rank_gradient - rank_causal
    constant = [side for side, values in sides.items() if (values == values[0]).all()]
    if constant:
        reason = "; ".join(f"{side} is the same for all components ({sides[side][0]:g})" for side in constant)
        return RankGap(np.nan, np.nan, delta, rank_gradient, rank_causal, reason)
    rho = float(np.corrcoef(np.column_stack([rank_gradient, rank_causal]), rowvar=False)[1, 0])
    return RankGap(rho, t_approximation(rho, len(g)), delta, rank_gradient, rank_causal, None)


def t_approximation(rho: float, n: int) -> float:
    """Return the two-sided p-value of ``t = rho sqrt((n - 2) / (1 - rho^2))`` with n - 2 degrees of freedom.

    It is that of `scipy.stats.spearmanr`, which takes longer than all that is done here.
    """
    if n < 3:
        return np.nan
    with np.errstate(divide="ignore"):
        size = abs(rho * np.sqrt((n - 2) / np.float64((rho + 1) * (1 - rho))))
    return float(2 * stdtr(n - 2, -size))
