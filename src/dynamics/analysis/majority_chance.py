"""How often luck alone makes a component a Hero, or a Bloat, at most snapshots of a run, and in so many runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.timeline import Timeline


def majority_chance(timeline: Timeline, inside: np.ndarray) -> dict[str, float]:
    """Return the probability of each role in more than half of the snapshots, were G and C of components independent.

    ``sum over i, j of [rank(G_i) - rank(C_j) <= -tau at more than half of the snapshots] / n^2`` for Heroes, and
    likewise for Bloats: a component's G, and apart from it its C, are those of components drawn at random, the same at
    all snapshots. One snapshot without ties gives `chance_share`.

    Args:
        timeline: The run's ranks and threshold.
        inside: The snapshots that count, ``(step,)``, bool; rho is defined in each.

    Returns:
        The probability by role, ``"hero"`` and ``"bloat"``.
    """
    gaps = [gap for gap, kept in zip(timeline.gaps, inside, strict=True) if kept]
    gradient = np.stack([gap.rank_gradient for gap in gaps], axis=1)
    causal = np.stack([gap.rank_causal for gap in gaps], axis=1)
    often = dict.fromkeys((HERO, BLOAT), 0)
    for own in gradient:
        # (other component, step)
        delta = own - causal
        often[HERO] += int(((delta <= -timeline.threshold).mean(1) > 0.5).sum())
        often[BLOAT] += int(((delta >= timeline.threshold).mean(1) > 0.5).sum())
    return {role: count / len(gradient) ** 2 for role, count in often.items()}


def at_least(chances: Sequence[float] | ArrayLike) -> np.ndarray:
    """Return the probability that at least k of independent events happen, ``(k,)`` for k from 0 to their number.

    Args:
        chances: The probability of each event, ``(event,)``.
    """
    # How many happen: the convolution of the events.
    exactly = np.ones(1)
    for chance in np.asarray(chances, dtype=float):
        exactly = np.convolve(exactly, [1 - chance, chance])
    # Summed from the rare end, small numbers are not lost beside large ones.
    return np.minimum(exactly[::-1].cumsum()[::-1], 1.0)
