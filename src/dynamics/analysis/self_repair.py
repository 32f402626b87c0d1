"""Attention self-repair over training: in how many rows of a head it can happen, and how much it hides."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.importance import require
from dynamics.store import Run


def self_repair_table(run: Run) -> pd.DataFrame:
    """Return how many attention rows count, and their mean interaction, for every head over steps.

    Args:
        run: An open run.

    Returns:
        One row per step and head: ``step``, ``component``, ``layer``, ``head``; ``rows``: attention rows per example
        that count (two positions or more contribute above the threshold); ``interaction``: mean over all of these
        rows, whichever example they belong to, in nats, NaN if there is none. Positive: removing the two largest scores
        together costs more than one at a time, so each hides the other.

    Raises:
        AnalysisError: If the run holds no ``self_repair_rows``.
    """
    require(run, "self_repair_rows", "self_repair")
    heads = [index for index, component in enumerate(run.components) if component.kind == "head"]
    rows = run["self_repair_rows"][:, heads].astype(float)
    means = np.nan_to_num(run["self_repair_interaction"][:, heads].astype(float))
    # An example without rows has no mean, and no weight either; NaN rows (a model that diverged) stay NaN.
    total = rows.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        interaction = (rows * means).sum(-1) / total
    columns = {
        "step": np.repeat(run.steps, len(heads)),
        "component": np.tile([run.components[index].label for index in heads], len(run.steps)),
        "layer": np.tile([run.components[index].layer for index in heads], len(run.steps)),
        "head": np.tile([run.components[index].head for index in heads], len(run.steps)),
        "rows": rows.mean(-1).ravel(),
        "interaction": interaction.ravel(),
    }
    return pd.DataFrame(columns).astype({"step": "int64", "component": "str", "layer": "int64", "head": "int64"})


def self_repair_by_layer(run: Run) -> pd.DataFrame:
    """Return `self_repair_table` summed over the heads of each layer: rows per example, mean interaction of a row.

    Args:
        run: An open run.

    Returns:
        One row per step and layer: ``step``, ``layer``, ``rows``, ``interaction``.

    Raises:
        AnalysisError: If the run holds no ``self_repair_rows``.
    """
    table = self_repair_table(run)
    weighted = table.assign(hidden=(table["rows"] * table["interaction"].fillna(0)).where(table["rows"].notna()))
    grouped = weighted.groupby(["step", "layer"])[["rows", "hidden"]]
    layers = grouped.sum(min_count=1).reset_index()
    return layers.assign(interaction=layers["hidden"] / layers["rows"].where(layers["rows"] > 0)).drop(columns="hidden")
