"""Everything that a picture shows, as tables: the last place before drawing, and the only one that reads the run."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dynamics.analysis import (
    SCORES,
    accuracy_table,
    agreement_table,
    faithfulness_curves,
    faithfulness_table,
    read_timeline,
    self_repair_by_layer,
    thin,
)
from dynamics.plot.facts import Fact, facts
from dynamics.store import Run


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables behind a picture.

    Attributes:
        name: Name of the run.
        facts: What to know about the run, by name.
        accuracy: ``step, series, accuracy, averaged``.
        rho: ``step, score, rho, p_value, reason, heroes, bloats, chance, threshold``, both scores below each other.
        agreement: ``step, score, measure, rho, p_value, reason``, both scores below each other.
        cells: One row per snapshot and component: ``step, component, layer, kind, head, gradient, rank_gradient``, and
            ``causal, rank_causal, delta, role`` for each score, as ``delta_loss``.
        layers: One row per snapshot and layer: ``step, layer, components, chance``, and ``heroes, bloats`` for each
            score.
        self_repair: ``step, layer, rows, interaction``; no row if the run has none.
        faithfulness: ``step, ranking, score, cpr, cmd, full, empty, reason``, both scores below each other; no row if
            the run has none.
        curves: ``step, ranking, score, kept, faithfulness``, both scores below each other.
    """

    name: str
    facts: tuple[Fact, ...]
    accuracy: pd.DataFrame
    rho: pd.DataFrame
    agreement: pd.DataFrame
    cells: pd.DataFrame
    layers: pd.DataFrame
    self_repair: pd.DataFrame
    faithfulness: pd.DataFrame
    curves: pd.DataFrame


def read_tables(run: Run, baseline: str = "mean", threshold: float | None = None) -> Tables:
    """Analyse a run for a picture of it.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Raises:
        AnalysisError: If the run lacks what is needed, or has no snapshot yet.
    """
    timelines = {score: read_timeline(run, baseline, score, threshold) for score in SCORES}
    return Tables(
        # Runs are told apart by their folders when all files have the usual name.
        run.path.resolve().parent.name if run.path.name == "run.h5" else run.path.stem,
        facts(run, timelines[SCORES[0]]),
        thin(accuracy_table(run)),
        pd.concat([timeline.rho_table() for timeline in timelines.values()], ignore_index=True),
        pd.concat([agreement_table(run, baseline, score) for score in SCORES], ignore_index=True),
        _side_by_side(
            {score: timeline.gap_table() for score, timeline in timelines.items()},
            ["causal", "rank_causal", "delta", "role"],
        ),
        _side_by_side({score: timeline.layer_table() for score, timeline in timelines.items()}, ["heroes", "bloats"]),
        _self_repair(run),
        *_faithfulness(run),
    )


def _self_repair(run: Run) -> pd.DataFrame:
    if "self_repair_rows" not in set(run):
        return pd.DataFrame(columns=["step", "layer", "rows", "interaction"])
    return self_repair_by_layer(run)


def _faithfulness(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    if run.faithfulness is None:
        return pd.DataFrame(columns=["step"]), pd.DataFrame(columns=["step"])
    return (
        pd.concat([faithfulness_table(run, score) for score in SCORES], ignore_index=True),
        pd.concat([faithfulness_curves(run, score) for score in SCORES], ignore_index=True),
    )


def _side_by_side(tables: dict[str, pd.DataFrame], by_score: list[str]) -> pd.DataFrame:
    # All rows are in the same order; only these columns depend on the score.
    parts = [table[by_score].add_suffix(f"_{score}") for score, table in tables.items()]
    return pd.concat([next(iter(tables.values())).drop(columns=by_score), *parts], axis=1)
