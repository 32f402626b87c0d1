"""What every attribution method says of every component over training."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.importance import require
from dynamics.store import Run


def mean_attribution(run: Run) -> dict[str, np.ndarray]:
    """Return the attribution of every component as the mean over the probe's examples, by method.

    ``A_i = mean over examples of A_i(e)``, in nats; positive: the component supports the answer.

    Returns:
        One array ``(step, component)`` for each method, in float64.

    Raises:
        AnalysisError: If the run has no attributions.
    """
    require(run, "attribution", "attribution")
    shape = (len(run.steps), len(run.methods), len(run.components))
    # Row by row: all rows together may be larger than memory.
    means = np.array([row.mean(-1, dtype=float) for row in run.snapshots.rows("attribution")]).reshape(shape)
    return dict(zip(run.methods, np.moveaxis(means, 1, 0), strict=True))


def signed_share(values: np.ndarray) -> np.ndarray:
    """Return each component's share of what all do, with its sign: ``v_i / sum over j of |v_j|``.

    Scores of different units and of different times can be compared so: the sizes of the shares sum to 1.

    Args:
        values: ``(..., component)``.

    Returns:
        ``(..., component)``, from -1 to 1; NaN where all values are 0, or one is not finite.
    """
    total = np.abs(values).sum(-1, keepdims=True)
    known = np.isfinite(total) & (total > 0)
    return np.divide(values, total, out=np.full(np.shape(values), np.nan), where=known)


def attribution_table(run: Run) -> pd.DataFrame:
    """Return what every attribution method says of every component, over steps.

    Args:
        run: An open run.

    Returns:
        One row per method, step and component: ``step, method, component, layer, kind``; ``attribution``: the mean
        over examples, in nats, positive where the component supports the answer; ``share``: see `signed_share`.

    Raises:
        AnalysisError: If the run has no attributions.
    """
    steps, n = run.steps, len(run.components)
    tables = [
        pd.DataFrame(
            {
                "step": np.repeat(steps, n),
                "method": method,
                "component": np.tile([component.label for component in run.components], len(steps)),
                "layer": np.tile([component.layer for component in run.components], len(steps)),
                "kind": np.tile([component.kind for component in run.components], len(steps)),
                "attribution": values.ravel(),
                "share": signed_share(values).ravel(),
            }
        )
        for method, values in mean_attribution(run).items()
    ]
    types = {"step": "int64", "layer": "int64", **dict.fromkeys(["method", "component", "kind"], "str")}
    return pd.concat(tables, ignore_index=True).astype(types)
