"""Accuracy over training: on the probe at each snapshot, and as the training logged it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from dynamics.analysis.importance import require
from dynamics.store import Run

PROBE = "probe"
"""Name of the probe's series; the others carry the names under which the training logged them."""

# train/exact_match, val_acc, ood/accuracy_epoch: the last part of the name ends in what is measured.
_ACCURACY = re.compile(r"(^|[/_.])(exact_match|accuracy|acc)(_length_\d+)?(_step|_epoch)?$", re.IGNORECASE)
_SLACK = 1e-3
_PER_LENGTH = re.compile(r"_length_\d+")


def accuracy_table(run: Run, per_length: bool = False) -> pd.DataFrame:
    """Return the exact-match accuracy on the probe, and every logged metric whose name says accuracy or exact match.

    The accuracy of single training batches is noisy; `thin` averages it.

    Args:
        run: An open run.
        per_length: Keep metrics of single lengths too, such as ``ood/exact_match_length_8``.

    Returns:
        One row per series and step: ``step``, ``series`` (``"probe"``, or the metric's name) and ``accuracy``, from 0
        to 1; a metric that exceeds 1 is taken to be in percent, and one that exceeds 100 is no accuracy and left out.
        Steps at which it was not logged, or not finite, have no row.

    Raises:
        AnalysisError: If the run has no ``exact_match``.
    """
    require(run, "exact_match", "clean")
    matches = run["exact_match"]
    tables = [_series(PROBE, run.steps, matches.reshape(len(matches), -1).mean(1) if len(matches) else np.empty(0))]
    steps, values = run.metrics.steps, run.metrics["value"]
    for column, name in enumerate(run.metrics.labels("metric")):
        if _ACCURACY.search(name) and (per_length or not _PER_LENGTH.search(name)):
            # The writer may be adding a metric at this moment: its name comes before its first value.
            logged = values[:, column] if column < values.shape[1] else np.full(len(steps), np.nan)
            kept = np.isfinite(logged)
            # Half above 1: a mean of ones in single precision may come out a little above.
            scale = 100 if (logged[kept] > 1.5).any() else 1
            shares = logged[kept] / scale
            # What is not a share by any reading is not an accuracy, whatever its name.
            if ((shares >= -_SLACK) & (shares <= 1 + _SLACK)).all():
                tables.append(_series(name, steps[kept], shares))
    table = pd.concat(tables, ignore_index=True)
    return table.astype({"series": "str"})


def thin(table: pd.DataFrame, most: int = 400) -> pd.DataFrame:
    """Average each series of an accuracy table over windows of neighbouring rows, so that few enough remain.

    Args:
        table: What `accuracy_table` returns.
        most: Rows that a series may keep; a shorter series is left alone.

    Returns:
        The same columns, and ``averaged``: how many rows each one stands for. Its step is that of the window's last.
    """
    parts = []
    for _, rows in table.groupby("series", sort=False):
        window = -(-len(rows) // most)
        groups = rows.groupby(np.arange(len(rows)) // window)
        parts.append(
            groups.agg(
                step=("step", "last"),
                series=("series", "last"),
                accuracy=("accuracy", "mean"),
                averaged=("step", "size"),
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else table.assign(averaged=1)


def _series(name: str, steps: np.ndarray, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"step": steps, "series": name, "accuracy": values})
