"""Which score ranks components as ablation does: gradient magnitude and every attribution against causal importance."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.attribution import mean_attribution
from dynamics.analysis.importance import recorded_importance
from dynamics.analysis.rank_gap import rank_gap
from dynamics.store import Run

GRADIENT_NORM = "gradient_norm"
"""Name of gradient magnitude G among the measures; the others are attribution methods."""


def magnitude(method: str) -> str:
    """Return the name of an attribution's absolute value among the measures: ``|gim|`` for ``gim``."""
    return f"|{method}|"


def recorded_measures(run: Run) -> dict[str, np.ndarray]:
    """Return every score that a run has of its components, by name, ``(step, component)`` each.

    ``gradient_norm`` is G. ``gradient``, ``gim`` and ``ig`` are attributions, as means over examples; ``|gradient|``,
    ``|gim|`` and ``|ig|`` are the absolute values of these means, which, like G, know no direction.
    """
    measures = {}
    if GRADIENT_NORM in set(run):
        measures[GRADIENT_NORM] = run[GRADIENT_NORM].mean(-1, dtype=float)
    if "attribution" in set(run):
        for method, mean in mean_attribution(run).items():
            measures |= {magnitude(method): np.abs(mean), method: mean}
    return measures


def agreement_table(run: Run, baseline: str = "mean", score: str = "exact_match") -> pd.DataFrame:
    """Return ``rho = Spearman(measure, C)`` of every recorded measure with causal importance, over steps.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: What C is measured in: ``"exact_match"`` or ``"loss"``.

    Returns:
        One row per measure (see `recorded_measures`) and step: ``step``, ``score``, ``measure``, ``rho``, ``p_value``,
        and ``reason``: why rho is undefined, or missing.

    Raises:
        AnalysisError: If the run lacks what is needed, or an argument is out of range.
    """
    _, causal = recorded_importance(run, baseline, score)
    tables = []
    for name, values in recorded_measures(run).items():
        gaps = [rank_gap(v, c, name) for v, c in zip(values, causal, strict=True)]
        tables.append(
            pd.DataFrame(
                {
                    "step": run.steps,
                    "score": score,
                    "measure": name,
                    "rho": np.array([gap.rho for gap in gaps], dtype=float),
                    "p_value": np.array([gap.p_value for gap in gaps], dtype=float),
                    "reason": pd.Series([gap.reason for gap in gaps], dtype=object),
                }
            )
        )
    return pd.concat(tables, ignore_index=True).astype({"score": "str", "measure": "str"})
