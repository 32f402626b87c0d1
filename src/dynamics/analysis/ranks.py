"""Ranks of many sets of components at once, and their correlations."""

from __future__ import annotations

import numpy as np

_FEW = 16
"""Up to so many components are ranked by comparing each with each."""
_NO_SPREAD = 1e-8
"""Sums of squares of ranks, or of what is left of them, below this are rounding: ranks are whole or half numbers."""


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ascending ranks from 1 along the last axis, ties averaged: `scipy.stats.rankdata`, fast for many rows.

    Args:
        values: Finite numbers, ``(..., component)``.

    Returns:
        Ranks, of the same shape.
    """
    n = values.shape[-1]
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    place = np.arange(1.0, n + 1)
    new = ordered[..., 1:] != ordered[..., :-1]
    if new.all():
        found = np.broadcast_to(place, values.shape)
    else:
        edge = np.ones((*values.shape[:-1], 1), dtype=bool)
        first = np.maximum.accumulate(np.where(np.concatenate([edge, new], -1), place, 0), axis=-1)
        last = np.where(np.concatenate([new, edge], -1), place, n)[..., ::-1]
        found = (first + np.minimum.accumulate(last, axis=-1)[..., ::-1]) / 2
    result = np.empty(values.shape)
    np.put_along_axis(result, order, found, axis=-1)
    return result


def centred_ranks_within(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return ranks that are taken inside each group of components, less the group's mean rank.

    Args:
        values: Finite numbers, ``(..., component)``.
        groups: Whole numbers: the group of each component, ``(component,)``.

    Returns:
        Ranks from 1 to the size m of the component's group, less ``(m + 1) / 2``, of the shape of ``values``.
    """
    if (groups == groups[:1]).all():
        return centred_ranks(values)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    if (sizes == sizes[0]).all() and (np.diff(group) >= 0).all():
        return centred_ranks(values.reshape(*values.shape[:-1], len(sizes), sizes[0])).reshape(values.shape)
    result = np.empty(values.shape)
    # Groups of one size are ranked together: models have many layers of equal size.
    for size in np.unique(sizes):
        index = np.stack([m for m in members if len(m) == size])
        result[..., index] = centred_ranks(values[..., index])
    return result


def correlate(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the correlation of centred ranks along the last axis; NaN where one side has no spread.

    Args:
        first: Ranks less their mean, or less what explains them, ``(..., component)``.
        second: The same of the other score, ``(..., component)``.

    Returns:
        ``(...)``, from -1 to 1.
    """
    size = spread(first) * spread(second)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.einsum("...i,...i->...", first, second) / size
    return np.clip(np.where(size > 0, found, np.nan), -1, 1)


def correlate_permuted(first: np.ndarray, second: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return ``correlate(first, second[orders])``: the order changes no spread, so that it is taken once.

    Args:
        first: Centred ranks, or what is left of them, ``(component,)``.
        second: The same of the other score, ``(component,)``.
        orders: Permutations of the components, ``(permutation, component)``.

    Returns:
        ``(permutation,)``; NaN where one side has no spread.
    """
    size = float(spread(first) * spread(second))
    if not size > 0:
        return np.full(len(orders), np.nan)
    return np.clip(second[orders] @ first / size, -1, 1)


def rho_and_gaps(gradient: np.ndarray, causal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Spearman's rho and Delta of every row.

    Args:
        gradient: Gradient magnitude, ``(row, component)``.
        causal: Causal importance, ``(row, component)``.

    Returns:
        Rho, ``(row,)``, NaN where one side is constant; and Delta of the rows in which rho is defined, since elsewhere
        nothing is ranked, ``(defined row, component)``.
    """
    return rho_and_gaps_of_ranks(centred_ranks(gradient), centred_ranks(causal))


def rho_and_gaps_of_ranks(gradient: np.ndarray, causal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do what `rho_and_gaps` does with centred ranks, ``(row, component)`` each."""
    rho = correlate(gradient, causal)
    return rho, (gradient - causal)[np.isfinite(rho)]


def spread(centred: np.ndarray) -> np.ndarray:
    """Return the root of the sum of squares of centred ranks along the last axis; exactly 0 where they are equal."""
    squares = np.einsum("...i,...i->...", centred, centred)
    return np.sqrt(np.where(squares > _NO_SPREAD, squares, 0.0))


def centred_ranks(values: np.ndarray) -> np.ndarray:
    """Return `ranks` less their mean, ``(n + 1) / 2``; `correlate` makes Spearman's rho of them."""
    n = values.shape[-1]
    if n > _FEW:
        return ranks(values) - (n + 1) / 2
    # Half of how many lie below less how many lie above: the same, and for few faster than to sort.
    twice = np.zeros(values.shape, dtype=np.int8)
    for place in range(n):
        other = values[..., place, None]
        twice += (values > other).view(np.int8)
        twice -= (values < other).view(np.int8)
    return twice / 2
