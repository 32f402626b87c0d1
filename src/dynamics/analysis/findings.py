"""All findings of one run: each table is made when it is first asked for, and what it rests on is read once."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from dynamics.analysis.accuracy import accuracy_table
from dynamics.analysis.agreement_uncertainty import agreement_of, both_baselines_of
from dynamics.analysis.batch_sums import BatchSums, read_batch_sums_of
from dynamics.analysis.depth import depths_of
from dynamics.analysis.depth_share import depth_shares_of
from dynamics.analysis.emergence import emergence_by_layer, role_episodes
from dynamics.analysis.grokking import GrokkingReport, grokking_report
from dynamics.analysis.importance import SCORES, check_recorded, check_score
from dynamics.analysis.resampling import Resampling
from dynamics.analysis.role_counts import role_counts_of
from dynamics.analysis.role_stability import stable_role_table, threshold_table, turnover_table
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.synergy import synergy_table
from dynamics.analysis.timeline import Timeline, timeline_of
from dynamics.analysis.uncertainty import Uncertainty, uncertainty_of
from dynamics.store import Run

RESAMPLES = 200
"""Resamples behind the intervals of pictures and reports: ends move by a few hundredths of rho from seed to seed."""


class ScoreFindings:
    """The findings of a run with C measured in one score; see the functions that the tables are named after.

    Attributes:
        run: The run.
        baseline: What ablated outputs were replaced by.
        score: What causal importance is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks; ``None``: ``round(0.3 n)``.
        resampling: How intervals and nulls are drawn.
    """

    def __init__(
        self,
        run: Run,
        baseline: str = "mean",
        score: str = "exact_match",
        threshold: float | None = None,
        resampling: Resampling | None = None,
    ) -> None:
        check_score(score)
        self.run, self.baseline, self.score, self.threshold = run, baseline, score, threshold
        self.resampling = Resampling(resamples=RESAMPLES) if resampling is None else resampling

    @cached_property
    def sums(self) -> BatchSums:
        """Return G and C batch by batch: all that the rest needs of the file."""
        check_recorded(self.run, self.baseline, self.score)
        return self.by_baseline[self.baseline]

    @cached_property
    def by_baseline(self) -> dict[str, BatchSums]:
        """Return `sums` for every baseline of the run: they lie side by side in the file, and are read at once."""
        baselines = self.run.baselines
        return dict(zip(baselines, read_batch_sums_of(self.run, baselines, self.score), strict=True))

    @cached_property
    def timeline(self) -> Timeline:
        """Return ranks, gaps, rho and roles."""
        return timeline_of(self.sums, self.threshold)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Return the resamples of rho, gaps and roles."""
        return uncertainty_of(self.sums, self.resampling, self.threshold)

    @cached_property
    def rho(self) -> pd.DataFrame:
        """Return `Timeline.rho_table` with the columns of `Uncertainty.uncertainty_table` beside it.

        Why an interval is missing where rho is defined says ``reason_interval``.
        """
        intervals = self.uncertainty.uncertainty_table().rename(columns={"reason": "reason_interval"})
        return self.timeline.rho_table().merge(intervals.drop(columns=["rho", "score", "baseline"]), on="step")

    @cached_property
    def role_probability(self) -> pd.DataFrame:
        """Return `Uncertainty.role_probability_table`."""
        return self.uncertainty.role_probability_table()

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Return the table of `role_count_table`."""
        return role_counts_of(self.timeline, self.resampling)

    @cached_property
    def depth(self) -> pd.DataFrame:
        """Return the table of `depth_table`."""
        return depths_of(self.sums, self.resampling)

    @cached_property
    def depth_share(self) -> pd.DataFrame:
        """Return the table of `depth_share_table`."""
        return depth_shares_of(self.sums, self.resampling)

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """Return the table of `role_episodes`, with the mean probability of each role in it."""
        shape = self.timeline.roles.shape
        table = self.role_probability
        probability = {role: table[f"p_{role}"].to_numpy().reshape(shape) for role in (HERO, BLOAT)}
        probability["aligned"] = 1 - probability[HERO] - probability[BLOAT]
        return role_episodes(self.timeline, probability=probability)

    @cached_property
    def emergence(self) -> pd.DataFrame:
        """Return the table of `emergence_by_layer`."""
        return emergence_by_layer(self.timeline, self.episodes)

    @cached_property
    def turnover(self) -> pd.DataFrame:
        """Return the table of `turnover_table`."""
        return turnover_table(self.timeline)

    @cached_property
    def stability(self) -> pd.DataFrame:
        """Return the table of `stable_role_table`."""
        return stable_role_table(self.timeline)

    @cached_property
    def thresholds(self) -> pd.DataFrame:
        """Return the table of `threshold_table`."""
        return threshold_table(self.timeline)


class Findings:
    """The findings of a run, for pictures and reports.

    Args:
        run: An open run; it must stay open while tables are asked for.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        resampling: How intervals and nulls are drawn; default: `RESAMPLES` resamples at 95 %.

    Attributes:
        by: `ScoreFindings` for each score: ``findings.by["loss"].rho``.

    Raises:
        AnalysisError: From a table whose arrays the run lacks, or if it has no snapshot yet.
    """

    def __init__(
        self,
        run: Run,
        baseline: str = "mean",
        threshold: float | None = None,
        resampling: Resampling | None = None,
    ) -> None:
        self.run, self.baseline, self.threshold = run, baseline, threshold
        self.resampling = Resampling(resamples=RESAMPLES) if resampling is None else resampling
        self.by = {score: ScoreFindings(run, baseline, score, threshold, self.resampling) for score in SCORES}

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Return the table of `accuracy_table`."""
        return accuracy_table(self.run)

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Return the table of `agreement_uncertainty_table`, for both scores and this baseline."""
        return agreement_of(self.run, [found.sums for found in self.by.values()], self.resampling)

    @cached_property
    def ablation_agreement(self) -> pd.DataFrame | None:
        """Return the table of `ablation_agreement_table`; ``None`` if the run has but one baseline."""
        if not {"mean", "zero"} <= set(self.run.baselines):
            return None
        pairs = {score: (found.by_baseline["mean"], found.by_baseline["zero"]) for score, found in self.by.items()}
        return both_baselines_of(pairs, self.resampling)

    @cached_property
    def grokking(self) -> GrokkingReport:
        """Return the report of `grokking_report`, with C by loss, which is defined before anything is learned."""
        by_loss = self.by["loss"]
        samples = by_loss.uncertainty.rho_resamples.T
        return grokking_report(self.run, timeline=by_loss.timeline, rho_samples=samples)

    @cached_property
    def synergy(self) -> pd.DataFrame | None:
        """Return the table of `synergy_table`; ``None`` if the run has no synergy."""
        return None if self.run.synergy is None else synergy_table(self.run)
