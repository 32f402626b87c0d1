"""Gradient norms and effects of probe batches with known means, without a run file."""

from __future__ import annotations

import numpy as np

from dynamics.analysis import BatchSums
from tests.analysis.runs import components


def sums_of(gradient_norm, gains, sizes, listed=None) -> BatchSums:
    """Return batch sums of ``(step, component, batch)`` arrays."""
    gradient_norm, gains, sizes = (np.asarray(values, dtype=float) for values in (gradient_norm, gains, sizes))
    listed = listed or components(1, gains.shape[1] - 1)
    steps = np.arange(len(gains)) * 10
    gradient, causal = gradient_norm.mean(-1), gains.sum(-1) / sizes.sum()
    return BatchSums(tuple(listed), "mean", "loss", steps, sizes, gradient_norm, gains, gradient, causal)


def gaussian_sums(rng, gradient, causal, n_batches=40, noise=0.1, common=0.6, listed=None) -> BatchSums:
    """Return one snapshot whose G and C are the given ones plus noise of a standard deviation of about ``noise``.

    Batches have 1 to 4 examples; those of a batch share one draw, and so, by a correlation of ``common``,
    do G and C of a component.
    """
    n = len(gradient)
    sizes = rng.integers(1, 5, n_batches)
    scale = noise * np.sqrt(n_batches)
    shared, own = rng.normal(size=(2, n, n_batches))
    norms = gradient[:, None] + scale * shared
    of_batch = causal[:, None] + scale * (common * shared + np.sqrt(1 - common**2) * own)
    return sums_of(norms[None], (of_batch * sizes)[None], sizes, listed)
