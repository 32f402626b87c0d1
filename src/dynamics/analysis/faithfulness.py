"""Faithfulness of rankings: how much of the model's score its k highest ranked components bring back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from dynamics.analysis.importance import check_score
from dynamics.analysis.tidy import tidy
from dynamics.errors import AnalysisError
from dynamics.store import Run, RunGroup


@dataclass(frozen=True, eq=False)
class FaithfulnessCurve:
    """The faithfulness of one ranking at one step.

    Attributes:
        values: ``f(k)`` for k = 0 .. n, ``(kept,)``; f(0) = 0 and f(n) = 1. All NaN if undefined.
        cpr: Area under f over k / n: 0.5 if every component brings back as much, 1 if the first brings back all. May
            exceed 1, where components were left out that hurt. NaN if undefined.
        cmd: Area of ``|1 - f|`` over k / n; 0: faithful from the first component on. NaN if undefined.
        full: Score of the whole model, m(n): accuracy, or minus the loss in nats.
        empty: Score with no component kept, m(0).
        reason: Why f is undefined, in words; ``None`` if it is defined.
    """

    values: np.ndarray
    cpr: float
    cmd: float
    full: float
    empty: float
    reason: str | None


def faithfulness_curve(kept: np.ndarray, score: str = "loss") -> FaithfulnessCurve:
    """Return ``f(k) = (m(k) - m(0)) / (m(n) - m(0))``, with its areas CPR and CMD over k / n in [0, 1].

    m(k) is the mean score of the model with the k highest ranked components kept and all others ablated. The areas are
    taken by the trapezoidal rule, at every k: the circuit performance ratio and the circuit-model distance of the
    Mechanistic Interpretability Benchmark (MIB, arXiv 2504.13151), with components as the nodes.

    Where the whole model scores worse than the one without any component, f is defined but turned upside down: look at
    ``full`` and ``empty`` before reading it.

    Args:
        kept: Loss (nats) or exact match (bool) of every example, ``(kept, example)``, kept from 0 to n.
        score: What ``kept`` is: ``"loss"``, whose mean with a minus sign is m, or ``"exact_match"``, whose mean is m.

    Returns:
        The curve; if m(n) - m(0) is 0, or an m is not finite, f is NaN and ``reason`` says why.

    Raises:
        AnalysisError: If the score is unknown, or ``kept`` has not two axes, at least two rows and an example.
    """
    check_score(score)
    values = np.asarray(kept)
    if values.ndim != 2 or len(values) < 2 or not values.shape[1]:
        raise AnalysisError(f"kept must be (kept, example), with at least 2 rows and an example; got {values.shape}.")
    values = values.astype(float) * (1 if score == "exact_match" else -1)
    means = values.mean(-1)
    full, empty = float(means[-1]), float(means[0])
    if not np.isfinite(means).all():
        wrong = int((~np.isfinite(means)).sum())
        return _undefined(means, f"the mean {score} is not finite for {wrong} of {len(means)} numbers of components")
    # Means of differences, not differences of means: scores that are equal for every example give exactly 0.
    gains = (values - values[0]).mean(-1)
    if gains[-1] == 0:
        return _undefined(means, f"the whole model scores the same as with no component kept ({full:g})")
    f = gains / gains[-1] + 0.0  # no -0
    share = np.linspace(0, 1, len(f))
    return FaithfulnessCurve(f, float(trapezoid(f, share)), float(trapezoid(np.abs(1 - f), share)), full, empty, None)


def _undefined(means: np.ndarray, reason: str) -> FaithfulnessCurve:
    unknown = np.full(len(means), np.nan)
    return FaithfulnessCurve(unknown, np.nan, np.nan, float(means[-1]), float(means[0]), reason)


def faithfulness_table(run: Run, score: str = "exact_match") -> pd.DataFrame:
    """Return how faithful every ranking of a run is, over steps.

    Args:
        run: An open run.
        score: ``"exact_match"`` or ``"loss"``.

    Returns:
        One row per step and ranking: ``step, ranking, score, cpr, cmd, full, empty, reason``; see `FaithfulnessCurve`.

    Raises:
        AnalysisError: If the run has no faithfulness, or the score is unknown.
    """
    rows = [
        (step, ranking, score, curve.cpr, curve.cmd, curve.full, curve.empty, curve.reason)
        for step, ranking, curve in _curves(run, score)
    ]
    numbers = dict.fromkeys(["cpr", "cmd", "full", "empty"], "float64")
    types = {"step": "int64", "ranking": "str", "score": "str", **numbers, "reason": "object"}
    return tidy(rows, types)


def faithfulness_curves(run: Run, score: str = "exact_match") -> pd.DataFrame:
    """Return f(k) of every ranking of a run, over steps.

    Args:
        run: An open run.
        score: ``"exact_match"`` or ``"loss"``.

    Returns:
        One row per step, ranking and k: ``step, ranking, score, kept, faithfulness``; NaN where it is undefined.

    Raises:
        AnalysisError: If the run has no faithfulness, or the score is unknown.
    """
    rows = [
        (step, ranking, score, k, f) for step, ranking, curve in _curves(run, score) for k, f in enumerate(curve.values)
    ]
    types = {"step": "int64", "ranking": "str", "score": "str", "kept": "int64", "faithfulness": "float64"}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def _curves(run: Run, score: str) -> list[tuple[int, str, FaithfulnessCurve]]:
    check_score(score)
    group = _recorded(run)
    rankings = group.labels("ranking").tolist()
    return [
        (int(step), ranking, faithfulness_curve(kept, score))
        for step, row in zip(group.steps, group[f"kept_{score}"], strict=True)
        for ranking, kept in zip(rankings, row, strict=True)
    ]


def _recorded(run: Run) -> RunGroup:
    if run.faithfulness is None:
        raise AnalysisError(
            f"{run.path} has no faithfulness: it was tracked with faithfulness=None, or by an earlier version. Track "
            "again with a schedule, such as faithfulness=5000."
        )
    return run.faithfulness
