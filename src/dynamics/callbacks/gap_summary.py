"""A snapshot in a few numbers, for loggers and the progress bar."""

from __future__ import annotations

import math

import lightning as L

from dynamics.analysis import (
    causal_importance,
    chance_share,
    classify_roles,
    default_threshold,
    gradient_magnitude,
    rank_gap,
)
from dynamics.callbacks.logged_metrics import PREFIX
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
    needed = {"gradient_norm", "ablation_loss", "ablation_exact_match"}
    n = len(snapshot.components)
    if not needed <= set(snapshot) or n < 2:
        return {}
    gradient = gradient_magnitude(snapshot["gradient_norm"])
    by_match, by_loss = (
        rank_gap(gradient, causal_importance(snapshot[score], snapshot[f"ablation_{score}"][0], score))
        for score in ("exact_match", "loss")
    )
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


def send_summary(trainer: L.Trainer, snapshot: Snapshot) -> dict[str, float]:
    """Send `gap_summary` to the trainer's loggers, and return it under the names that they were given."""
    summary = {f"{PREFIX}{name}": value for name, value in gap_summary(snapshot).items()}
    if summary:
        for logger in trainer.loggers:
            logger.log_metrics(summary, step=trainer.global_step)
    return summary
