"""A snapshot in a few numbers, for loggers and the progress bar."""

from __future__ import annotations

import math

from dynamics.analysis import chance_share, classify_roles, default_threshold, rank_gap
from dynamics.snapshot import Snapshot


def gap_summary(snapshot: Snapshot) -> dict[str, float]:
    """Return rho and role counts of a snapshot, for its first baseline.

    Args:
        snapshot: A snapshot; without gradient norms or ablations there is nothing to compare.

    Returns:
        ``rho`` and ``rho_loss`` (Spearman of G with C by exact match, by loss), ``heroes`` and ``bloats`` (by exact
        match) and ``chance``, how many of each luck alone would give. Undefined values are NaN; empty if something
        needed was not measured.
    """
    if not {"gradient_norm", "ablation_loss"} <= set(snapshot) or not snapshot.baselines:
        return {}
    gradient = snapshot["gradient_norm"].mean(-1)
    match_drop = snapshot["exact_match"].mean() - snapshot["ablation_exact_match"][0].mean(-1)
    loss_rise = snapshot["ablation_loss"][0].mean(-1) - snapshot["loss"].mean()
    by_match, by_loss = rank_gap(gradient, match_drop), rank_gap(gradient, loss_rise)
    n = len(snapshot.components)
    threshold = default_threshold(n)
    roles = classify_roles(by_match.delta, threshold)
    defined = by_match.reason is None
    return {
        "rho": by_match.rho,
        "rho_loss": by_loss.rho,
        "heroes": float((roles == "hero").sum()) if defined else math.nan,
        "bloats": float((roles == "bloat").sum()) if defined else math.nan,
        "chance": n * chance_share(n, threshold),
    }
