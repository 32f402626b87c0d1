"""The sets of components that are ablated together: the Gradient Bloats and the Hidden Heroes of a snapshot."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dynamics.analysis import SCORES, causal_importance, classify_roles, gradient_magnitude, rank_gap
from dynamics.errors import ConfigurationError
from dynamics.snapshot import Snapshot

SETS = {"bloats": "bloat", "heroes": "hero"}
"""The role of the components of each set, by the set's name."""

_NEEDED = ("gradient_norm", "ablation")


def role_sets(snapshot: Snapshot) -> tuple[dict[str, list[int]], str | None]:
    """Return the Bloats and the Heroes of a snapshot, and the score that they were judged by.

    Roles come from G against C under mean ablation, with the default threshold; C is measured in accuracy, or, where
    rho is undefined by it (no example is solved yet, say), in minus the loss. Where rho is undefined by both, there
    are no roles: the sets are empty and the score is ``None``.

    Args:
        snapshot: A snapshot with ``gradient_norm`` and mean ablations.

    Returns:
        Indices of components by set, ``bloats`` and ``heroes``; and ``"exact_match"``, ``"loss"`` or ``None``.
    """
    gradient = gradient_magnitude(snapshot["gradient_norm"])
    # Ranks can be compared from two components on.
    for score in SCORES if len(gradient) > 1 else ():
        ablated = snapshot[f"ablation_{score}"][snapshot.baselines.index("mean")]
        gap = rank_gap(gradient, causal_importance(snapshot[score], ablated, score))
        if gap.reason is None:
            roles = classify_roles(gap.delta)
            return {name: np.flatnonzero(roles == role).tolist() for name, role in SETS.items()}, score
    return {name: [] for name in SETS}, None


def check_role_sets(measurements: Collection[str], baselines: Collection[str]) -> None:
    """Raise a `ConfigurationError` unless snapshots of these measurements and baselines tell the roles."""
    if not set(_NEEDED) <= set(measurements) or "mean" not in baselines:
        raise ConfigurationError(
            "synergy ablates the Bloats and Heroes of a snapshot, which needs the measurements "
            f"{' and '.join(_NEEDED)} and the baseline mean; got the measurements {', '.join(measurements)} and the "
            f"baselines {', '.join(baselines)}. Add what is missing, or leave synergy=None."
        )
