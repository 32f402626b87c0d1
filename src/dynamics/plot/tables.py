"""Everything that a picture shows, as tables: the last place before drawing, and the only one that reads the run."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from dynamics.analysis import (
    Findings,
    faithfulness_curves,
    faithfulness_table,
    joint_ablation_table,
    mean_attribution,
    self_repair_by_layer,
    signed_share,
    thin,
)
from dynamics.analysis.importance import SCORES, require_snapshots
from dynamics.plot.facts import Fact, facts
from dynamics.store import Run


class Tables:
    """The tables behind a picture of a run, each made when a panel asks for it; the run must be open until then.

    Where a table holds what depends on the score that C is measured in, it holds both: below each other, told apart by
    ``score``, or side by side, as ``delta_loss``.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Attributes:
        name: Name of the run.
        findings: Where the tables come from.

    Raises:
        AnalysisError: If the run has no snapshot yet; from a table, if it lacks what that needs.
    """

    def __init__(self, run: Run, baseline: str = "mean", threshold: float | None = None) -> None:
        require_snapshots(run)
        self.run, self.findings = run, Findings(run, baseline, threshold)
        # Runs are told apart by their folders when all files have the usual name.
        self.name = run.path.resolve().parent.name if run.path.name == "run.h5" else run.path.stem

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """Return what to know about the run, by name."""
        return facts(self.run, self.findings.by[SCORES[0]].timeline)

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Return ``step, series, accuracy, averaged``."""
        return thin(self.findings.accuracy)

    @cached_property
    def rho(self) -> pd.DataFrame:
        """Return `ScoreFindings.rho` of both scores, below each other."""
        return pd.concat([found.rho for found in self.findings.by.values()], ignore_index=True)

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Return `Findings.agreement`: ``step, baseline, score, measure, rho, low, high, ..., reason``."""
        return self.findings.agreement

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Return a row for each snapshot and component.

        ``snapshot`` (its row in the file), ``step, component, layer, kind, head, gradient, rank_gradient``, and
        ``causal, rank_causal, delta, role, p_hero, p_bloat`` for each score.
        """
        parts = {}
        for score, found in self.findings.by.items():
            probability = found.role_probability[["p_hero", "p_bloat"]]
            parts[score] = pd.concat([found.timeline.gap_table(), probability], axis=1)
        cells = _side_by_side(parts, ["causal", "rank_causal", "delta", "role", "p_hero", "p_bloat"])
        cells.insert(0, "snapshot", cells.index // len(self.run.components))
        return cells

    @cached_property
    def shares(self) -> pd.DataFrame:
        """Return a row for each snapshot and component: what C and every attribution method say of it.

        ``step, component, layer``; ``value_NAME`` in its own unit and ``share_NAME`` (`signed_share`), where NAME is a
        score of C (``exact_match``, ``loss``) or an attribution method; no row if the run has no attributions.
        """
        if "attribution" not in set(self.run):
            return pd.DataFrame(columns=["step", "component", "layer"])
        causal = {score: found.timeline.causal for score, found in self.findings.by.items()}
        cells = self.findings.by[SCORES[0]].timeline.gap_table()[["step", "component", "layer"]]
        for name, values in {**causal, **mean_attribution(self.run)}.items():
            cells[f"value_{name}"], cells[f"share_{name}"] = values.ravel(), signed_share(values).ravel()
        return cells

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Return a row for each snapshot and layer: ``step, layer, components, chance``, and both counts by score."""
        parts = {score: found.timeline.layer_table() for score, found in self.findings.by.items()}
        return _side_by_side(parts, ["heroes", "bloats"])

    @cached_property
    def self_repair(self) -> pd.DataFrame:
        """Return ``step, layer, rows, interaction``; no row if the run has none."""
        if "self_repair_rows" not in set(self.run):
            return pd.DataFrame(columns=["step", "layer", "rows", "interaction"])
        return self_repair_by_layer(self.run)

    @cached_property
    def joint(self) -> pd.DataFrame:
        """Return the table of `joint_ablation_table`; no row if the run has no synergy."""
        return pd.DataFrame(columns=["step"]) if self.run.synergy is None else joint_ablation_table(self.run)

    @cached_property
    def synergy(self) -> pd.DataFrame:
        """Return the table of `synergy_table`; no row if the run has no synergy."""
        found = self.findings.synergy
        return pd.DataFrame(columns=["step"]) if found is None else found

    @cached_property
    def faithfulness(self) -> pd.DataFrame:
        """Return ``step, ranking, score, cpr, cmd, full, empty, reason``; no row if the run has none."""
        if self.run.faithfulness is None:
            return pd.DataFrame(columns=["step"])
        return pd.concat([faithfulness_table(self.run, score) for score in SCORES], ignore_index=True)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Return ``step, ranking, score, kept, faithfulness``; no row if the run has none."""
        if self.run.faithfulness is None:
            return pd.DataFrame(columns=["step"])
        return pd.concat([faithfulness_curves(self.run, score) for score in SCORES], ignore_index=True)


def _side_by_side(tables: dict[str, pd.DataFrame], by_score: list[str]) -> pd.DataFrame:
    # All rows are in the same order; only these columns depend on the score.
    parts = [table[by_score].add_suffix(f"_{score}") for score, table in tables.items()]
    return pd.concat([next(iter(tables.values())).drop(columns=by_score), *parts], axis=1)
