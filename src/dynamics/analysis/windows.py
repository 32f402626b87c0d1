"""Windows of accuracy, by name: the snapshots at which gradients and causes can be compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dynamics.analysis.importance import require
from dynamics.analysis.timeline import Timeline
from dynamics.errors import AnalysisError
from dynamics.store import Run

Window = str | tuple[float, float]
"""A name among `WINDOWS`, or the least and the largest accuracy."""

WINDOWS: dict[str, tuple[float, float]] = {"paper": (0.20, 0.75), "all": (0.0, 1.0)}
"""Least and largest accuracy by name. ``"paper"``: where arXiv 2602.01442 compares gradients with causes."""


def window_bounds(window: Window) -> tuple[float, float]:
    """Return the least and the largest accuracy of a window.

    Args:
        window: A name among `WINDOWS`, or the two bounds themselves, as shares from 0 to 1.

    Raises:
        AnalysisError: If the name is unknown, or the bounds are no range of shares.
    """
    if isinstance(window, str):
        if window not in WINDOWS:
            raise AnalysisError(
                f"the window must be one of {', '.join(WINDOWS)}, or two shares such as (0.2, 0.75); got {window!r}."
            )
        return WINDOWS[window]
    low, high = window
    if not 0 <= low <= high <= 1:
        raise AnalysisError(f"a window needs 0 <= low <= high <= 1; got ({low}, {high}).")
    return float(low), float(high)


def in_window(accuracy: ArrayLike, window: Window = "paper") -> np.ndarray:
    """Return which accuracies, of any shape, lie in a window; both bounds belong to it, and NaN never does."""
    low, high = window_bounds(window)
    values = np.asarray(accuracy, dtype=float)
    return (values >= low) & (values <= high)


def probe_accuracy(run: Run) -> np.ndarray:
    """Return the exact-match accuracy on the probe at every snapshot, ``(step,)``, from 0 to 1.

    Raises:
        AnalysisError: If the run has no ``exact_match``.
    """
    require(run, "exact_match", "clean")
    matches = run["exact_match"]
    return matches.reshape(len(matches), -1).mean(1) if len(matches) else np.empty(0)


def snapshots_in_window(run: Run, window: Window = "paper") -> np.ndarray:
    """Return which snapshots of a run have a probe accuracy in the window, ``(step,)``, bool.

    The probe is made of out-of-distribution examples in the paper's setting, and so in ours.
    """
    return in_window(probe_accuracy(run), window)


def select_snapshots(timeline: Timeline, chosen: ArrayLike) -> Timeline:
    """Return the timeline with the chosen snapshots alone: ``select_snapshots(timeline, snapshots_in_window(run))``.

    Args:
        timeline: What `read_timeline` returns.
        chosen: Which snapshots to keep, ``(step,)``, bool.

    Raises:
        AnalysisError: If ``chosen`` is not one bool for each snapshot, or chooses none.
    """
    mask = np.asarray(chosen)
    if mask.shape != timeline.steps.shape or mask.dtype != bool:
        raise AnalysisError(
            f"chosen must be (step,) and bool, one for each of {len(timeline.steps)} snapshots; "
            f"got {mask.shape} of {mask.dtype}."
        )
    if not mask.any():
        raise AnalysisError(
            f"no snapshot is chosen, of {len(timeline.steps)} from step {timeline.steps[0]} to {timeline.steps[-1]}; "
            "choose a wider window."
        )
    return replace(
        timeline,
        steps=timeline.steps[mask],
        gradient=timeline.gradient[mask],
        causal=timeline.causal[mask],
        gaps=tuple(gap for gap, kept in zip(timeline.gaps, mask, strict=True) if kept),
        roles=timeline.roles[mask],
    )
