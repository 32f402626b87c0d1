"""Rankings: the orders in which components are kept, from the scores that a snapshot gives them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from dynamics.errors import MeasurementError
from dynamics.snapshot import Snapshot

GRADIENT_NORM, ABLATION, RANDOM = "gradient_norm", "ablation", "random"
_SEED = 0
"""Of the generator behind ``random``: its order is the same at every step and in every run of as many components."""


def possible_rankings(arrays: Collection[str], baselines: Sequence[str], methods: Sequence[str]) -> tuple[str, ...]:
    """Return the rankings that snapshots with these arrays, baselines and attribution methods allow.

    Args:
        arrays: Names of a snapshot's arrays.
        baselines: Its ablation baselines.
        methods: Its attribution methods.

    Returns:
        ``gradient_norm`` (G, the mean over batches of the gradient norm), each method (mean over examples of the
        signed attribution: positive supports the answer), ``ablation`` (C by loss, mean baseline), ``random`` (a fixed
        order, as a control); then the magnitude of each attribution: ``|gradient|``.
    """
    attributions = tuple(methods) if "attribution" in arrays else ()
    return (
        *([GRADIENT_NORM] if "gradient_norm" in arrays else []),
        *attributions,
        *([ABLATION] if "ablation_loss" in arrays and "mean" in baselines else []),
        RANDOM,
        *(f"|{method}|" for method in attributions),
    )


def select_rankings(rankings: str | Iterable[str] | None, possible: Sequence[str]) -> tuple[str, ...]:
    """Return the rankings to use, each once, in the given order; ``None``: all possible ones but the magnitudes.

    Raises:
        MeasurementError: If a ranking is unknown or what it ranks by is not measured, or if there is none.
    """
    if rankings is None:
        return tuple(name for name in possible if not name.startswith("|"))
    chosen = tuple(dict.fromkeys([rankings] if isinstance(rankings, str) else rankings))
    if not chosen or not set(chosen) <= set(possible):
        unknown = ", ".join(repr(name) for name in chosen if name not in possible)
        raise MeasurementError(
            f"rankings must be among {', '.join(possible)}, which is what the snapshot's measurements, baselines and "
            f"methods allow; got {unknown or 'none'}."
        )
    return chosen


def ranking_scores(snapshot: Snapshot, rankings: Sequence[str]) -> np.ndarray:
    """Return what the components are ranked by, descending: ``(ranking, component)``, float64.

    Args:
        snapshot: The snapshot.
        rankings: Names out of what `possible_rankings` gives for it.
    """
    return np.stack([_scores(snapshot, name) for name in rankings])


def _scores(snapshot: Snapshot, name: str) -> np.ndarray:
    n = len(snapshot.components)
    if name == GRADIENT_NORM:
        return np.asarray(snapshot["gradient_norm"].mean(-1, dtype=float))
    if name == ABLATION:
        ablated = snapshot["ablation_loss"][snapshot.baselines.index("mean")].astype(float)
        return np.asarray((ablated - snapshot["loss"].astype(float)).mean(-1))
    if name == RANDOM:
        return np.random.default_rng(_SEED).permutation(n).astype(float)
    mean = snapshot["attribution"][snapshot.methods.index(name.strip("|"))].mean(-1, dtype=float)
    return np.abs(mean) if name.startswith("|") else np.asarray(mean)


def descending(scores: np.ndarray) -> np.ndarray:
    """Return the order of the components by score, the highest first: ``(ranking, component)``, int64.

    Ties are broken by the order of the components, and NaN comes last.

    Args:
        scores: ``(ranking, component)``.
    """
    # NaN is sorted to the end whatever the sign; a stable sort leaves ties in their order.
    return np.argsort(-scores, axis=-1, kind="stable").astype(np.int64)
