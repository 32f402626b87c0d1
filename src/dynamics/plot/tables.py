"""Everything that a picture shows, as tables: the last place before drawing, and the only one that reads the run."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
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
from dynamics.analysis.delays import GrokkingRule
from dynamics.analysis.importance import SCORES, require_snapshots
from dynamics.analysis.ranks import ranks
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.windows import in_window, probe_accuracy
from dynamics.errors import AnalysisError
from dynamics.plot.facts import Fact, facts
from dynamics.store import Run

_PLURAL = {HERO: "heroes", BLOAT: "bloats"}


class Grokking(NamedTuple):
    """When accuracies rise, and whether the delay between them is grokking.

    Attributes:
        times: The table ``times`` of `GrokkingReport`; empty if that can't be made.
        delays: Its table ``delays``; empty likewise.
        rule: What counts as what.
        note: What else is to be known, a sentence: why there are no tables, or that nothing is memorised.
    """

    times: pd.DataFrame
    delays: pd.DataFrame
    rule: GrokkingRule
    note: str = ""


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
        found = self.findings.by[SCORES[0]]
        return facts(self.run, found.timeline, found.sums.sizes)

    @property
    def level(self) -> float:
        """Return the level of all intervals and bands."""
        return self.findings.resampling.level

    @cached_property
    def components(self) -> pd.DataFrame:
        """Return the components, in order: ``component, layer, kind, head``."""
        columns = {"component": "label", "layer": "layer", "kind": "kind", "head": "head"}
        listed = self.run.components
        return pd.DataFrame({name: [getattr(c, key) for c in listed] for name, key in columns.items()})

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Return ``step, series, accuracy, averaged``."""
        return thin(self.findings.accuracy)

    @cached_property
    def grokking(self) -> Grokking:
        """Return `GrokkingReport.times` and `GrokkingReport.delays`."""
        try:
            report = self.findings.grokking
        except AnalysisError as error:
            # Two training accuracies, say: the rest of the picture does not depend on this.
            return Grokking(pd.DataFrame(), pd.DataFrame(), GrokkingRule(), str(error))
        note = "Every batch is new: nothing is memorised." if report.fresh else ""
        return Grokking(report.times, report.delays, report.rule, note)

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
    def snapshots(self) -> pd.DataFrame:
        """Return a row for each score and snapshot: ``snapshot`` (its row in the file), `rho`, and ``accuracy``."""
        accuracy = probe_accuracy(self.run)
        parts = [
            found.rho.assign(snapshot=range(len(accuracy)), accuracy=accuracy) for found in self.findings.by.values()
        ]
        return pd.concat(parts, ignore_index=True)

    def shown_snapshot(self, step: int | None = None, score: str = SCORES[0]) -> int:
        """Return the row of the snapshot that a picture of a single one shows.

        Args:
            step: Its optimizer step; default: the last snapshot whose accuracy on the probe lies in the paper's window,
                else the last with a rho, else the last.
            score: What C is measured in.

        Raises:
            AnalysisError: If there is no snapshot at the step.
        """
        steps = self.run.steps
        if step is not None:
            found = np.flatnonzero(steps == step)
            if not len(found):
                near = [
                    int(part[place])
                    for part, place in ((steps[steps < step], -1), (steps[steps > step], 0))
                    if len(part)
                ]
                where = " and ".join(f"{one:,}" for one in near)
                raise AnalysisError(
                    f"there is no snapshot at step {step:,}; the nearest {'are' if len(near) > 1 else 'is'} at {where}."
                )
            return int(found[0])
        snapshots = self.snapshots[self.snapshots["score"] == score]
        defined = np.flatnonzero(snapshots["rho"].notna())
        for rows in (np.flatnonzero(in_window(snapshots["accuracy"])), defined):
            if len(rows):
                return int(rows[-1])
        return len(steps) - 1

    @cached_property
    def shares(self) -> pd.DataFrame:
        """Return a row for each snapshot and component: what C and every attribution method say of it.

        ``step, component, layer``; ``value_NAME`` in its own unit, ``share_NAME`` (`signed_share`) and ``rank_NAME``
        (ascending, ties averaged; missing at a snapshot with a value that is not finite), where NAME is a score of C
        (``exact_match``, ``loss``) or an attribution method; no row if the run has no attributions.
        """
        if "attribution" not in set(self.run):
            return pd.DataFrame(columns=["step", "component", "layer"])
        causal = {score: found.timeline.causal for score, found in self.findings.by.items()}
        cells = self.findings.by[SCORES[0]].timeline.gap_table()[["step", "component", "layer"]]
        for name, values in {**causal, **mean_attribution(self.run)}.items():
            cells[f"value_{name}"], cells[f"share_{name}"] = values.ravel(), signed_share(values).ravel()
            known = np.isfinite(values).all(-1, keepdims=True)
            cells[f"rank_{name}"] = np.where(known, ranks(np.where(known, values, 0)), np.nan).ravel()
        return cells

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Return a row for each snapshot and layer: ``step, layer, components, chance``, and counts for each score.

        ``heroes``, ``bloats``, and of each ``_low`` and ``_high``, the band of the count by luck, and ``_p``.
        """
        parts = {}
        for score, found in self.findings.by.items():
            table = found.timeline.layer_table()
            for role, counts in found.counts.dropna(subset="layer").groupby("role"):
                name = _PLURAL[str(role)]
                named = {"low": f"{name}_low", "high": f"{name}_high", "p_value": f"{name}_p"}
                of_role = counts[["step", "layer", *named]].rename(columns=named).astype({"layer": "int64"})
                table = table.merge(of_role, on=["step", "layer"], validate="one_to_one")
            parts[score] = table
        by_score = [f"{name}{end}" for name in _PLURAL.values() for end in ("", "_low", "_high", "_p")]
        return _side_by_side(parts, by_score)

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
