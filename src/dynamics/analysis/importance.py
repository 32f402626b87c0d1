"""Gradient magnitude and causal importance from what was recorded per batch and per example."""

from __future__ import annotations

import numpy as np

from dynamics.errors import AnalysisError, NothingYetError
from dynamics.store import Run

SCORES = ("exact_match", "loss")
"""What causal importance is measured in: exact-match accuracy (the paper's), or minus the loss."""


def gradient_magnitude(gradient_norm: np.ndarray) -> np.ndarray:
    """Return ``G_i``, the mean over batches of component i's gradient norm: a mean of norms, not the norm of a mean.

    Args:
        gradient_norm: ``(..., component, batch)``.

    Returns:
        ``(..., component)``, in the unit of the norms.
    """
    return np.mean(gradient_norm, axis=-1, dtype=float)


def example_gains(clean: np.ndarray, ablated: np.ndarray, score: str) -> np.ndarray:
    """Return what each example's score loses when a component is ablated; the mean over examples is C.

    Args:
        clean: Exact match (bool) or loss (nats) of the whole model, ``(example,)``.
        ablated: The same with each component ablated, ``(component, example)``.
        score: What ``clean`` and ``ablated`` are: ``"exact_match"``, whose mean is the accuracy, or ``"loss"``, whose
            mean, with a minus sign, is the score.

    Returns:
        ``(component, example)``: 1 where a match is lost and -1 where one is gained, or nats of loss gained.

    Raises:
        AnalysisError: If the score is unknown.
    """
    check_score(score)
    clean, ablated = clean.astype(float), ablated.astype(float)
    return clean - ablated if score == "exact_match" else ablated - clean


def causal_importance(clean: np.ndarray, ablated: np.ndarray, score: str) -> np.ndarray:
    """Return ``C_i = score(model) - score(model with i ablated)``; positive: the model needs component i.

    Args:
        clean: Exact match (bool) or loss (nats) of the whole model, ``(example,)``.
        ablated: The same with each component ablated, ``(component, example)``.
        score: ``"exact_match"`` or ``"loss"``; see `example_gains`.

    Returns:
        ``(component,)``: accuracy lost, from -1 to 1, or nats of loss gained.

    Raises:
        AnalysisError: If the score is unknown.
    """
    # The mean of the differences, not the difference of two means: an ablation that changes nothing gives exactly 0,
    # and components of equal effect tie.
    return example_gains(clean, ablated, score).mean(-1)


def recorded_importance(run: Run, baseline: str, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient magnitude G and causal importance C at every snapshot of a run.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.

    Returns:
        G and C, ``(step, component)`` each.

    Raises:
        AnalysisError: If the run lacks an array, or the baseline; or if the score is unknown.
    """
    check_recorded(run, baseline, score)
    clean, ablated = run[score], run[f"ablation_{score}"][:, run.baselines.index(baseline)]
    # One step at a time keeps the float64 differences small; the recorded arrays may be hundreds of megabytes.
    causal = [causal_importance(*pair, score) for pair in zip(clean, ablated, strict=True)]
    return gradient_magnitude(run["gradient_norm"]), np.array(causal).reshape(-1, len(run.components))


def check_recorded(run: Run, baseline: str, score: str) -> None:
    """Raise `AnalysisError` unless the run holds what G and C are computed from, for a known baseline and score."""
    check_score(score)
    require(run, "gradient_norm", "gradient_norm")
    require(run, f"ablation_{score}", "ablation")
    if baseline not in run.baselines:
        raise AnalysisError(
            f"{run.path} holds no ablations to the baseline {baseline!r}; choose among {', '.join(run.baselines)}."
        )


def check_score(score: str) -> None:
    """Raise `AnalysisError` unless the score is one of `SCORES`."""
    if score not in SCORES:
        raise AnalysisError(f"the score must be one of {', '.join(SCORES)}; got {score!r}.")


def require(run: Run, name: str, measurement: str) -> None:
    """Raise `AnalysisError` unless the run holds an array, and name the measurement that records it."""
    if name not in set(run):
        raise AnalysisError(
            f"{run.path} has no {name!r}, which this analysis needs; it holds {', '.join(run)}. "
            f'Track again with measurements="all", or with {measurement!r} among them.'
        )


def require_snapshots(run: Run) -> None:
    """Raise `NothingYetError` if the run has no snapshot yet."""
    if not len(run.steps):
        raise NothingYetError(f"{run.path} has no snapshots yet; try again once the training has taken its first.")
