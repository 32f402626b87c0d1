"""The findings of many runs: each table is made when it is first asked for, and every run is read once a score."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pandas as pd

from dynamics.analysis.importance import SCORES, check_score
from dynamics.analysis.many_runs import Windows, accuracies_of, read_timelines, snapshots_of, steps_of, windows_of
from dynamics.analysis.pruning import pruned_by_run, pruned_over_runs
from dynamics.analysis.role_frequency import frequency_rows, layer_rows
from dynamics.analysis.timeline import Timeline
from dynamics.analysis.windows import Window, window_bounds
from dynamics.errors import AnalysisError
from dynamics.store import Run

CONFIDENCE = 0.95
"""Confidence of the intervals over runs."""


class ScoreSeedFindings:
    """The findings of many runs with C measured in one score; see the functions that the tables are named after.

    Tables of a window raise `AnalysisError` where no run has a snapshot in it; `missing` says so beforehand.

    Attributes:
        runs: The runs.
        window: Accuracies on the probe of the snapshots that count.
        baseline: What ablated outputs were replaced by.
        score: What causal importance is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks; ``None``: ``round(0.3 n)``.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        window: Window = "paper",
        baseline: str = "mean",
        score: str = "exact_match",
        threshold: float | None = None,
    ) -> None:
        check_score(score)
        window_bounds(window)
        self.runs, self.window, self.baseline, self.score, self.threshold = runs, window, baseline, score, threshold

    @cached_property
    def timelines(self) -> list[Timeline]:
        """Return ranks, gaps, rho and roles of each run."""
        return list(read_timelines(self.runs, self.baseline, self.score, self.threshold))

    @cached_property
    def missing(self) -> str | None:
        """Return why nothing can be said of the window, in words; ``None`` if a run has a snapshot in it."""
        timelines = self.timelines
        try:
            windows_of(self.runs, timelines, self.window)
        except AnalysisError as error:
            return str(error)
        return None

    @cached_property
    def windows(self) -> Windows:
        """Return the runs that have snapshots in the window, their timelines, and which snapshots these are."""
        return windows_of(self.runs, self.timelines, self.window)

    @cached_property
    def rho_by_run(self) -> pd.DataFrame:
        """Return the table of `rho_by_run`."""
        return snapshots_of(self.runs, self.timelines)

    @cached_property
    def rho_by_step(self) -> pd.DataFrame:
        """Return the table of `rho_by_step`."""
        return steps_of(self.timelines, CONFIDENCE)

    @cached_property
    def rho_by_accuracy(self) -> pd.DataFrame:
        """Return the table of `rho_by_accuracy`."""
        return accuracies_of(self.runs, self.timelines, confidence=CONFIDENCE)

    @cached_property
    def role_frequency(self) -> pd.DataFrame:
        """Return the table of `role_frequency`."""
        return frequency_rows(self.windows, self.score)

    @cached_property
    def roles_by_layer(self) -> pd.DataFrame:
        """Return the table of `roles_by_layer`."""
        return layer_rows(self.windows, self.score, CONFIDENCE)

    @cached_property
    def pruning_by_run(self) -> pd.DataFrame:
        """Return the table of `pruning_by_run`, whatever the baseline: under mean ablation."""
        return pruned_by_run(self._mean_windows, self.score)

    @cached_property
    def pruning(self) -> pd.DataFrame:
        """Return the table of `pruning_table`, whatever the baseline: under mean ablation."""
        return pruned_over_runs(self.pruning_by_run, self.score, CONFIDENCE)

    @cached_property
    def _mean_windows(self) -> Windows:
        if self.baseline == "mean":
            return self.windows
        timelines = list(read_timelines(self.runs, "mean", self.score, self.threshold))
        return windows_of(self.runs, timelines, self.window)


class SeedFindings:
    """The findings of many runs, for pictures and reports.

    Args:
        runs: Open runs of the same components; they must stay open while tables are asked for.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Attributes:
        by: `ScoreSeedFindings` for each score: ``findings.by["loss"].role_frequency``.

    Raises:
        AnalysisError: If the window is unknown; from a table, if a run lacks what that needs.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        window: Window = "paper",
        baseline: str = "mean",
        threshold: float | None = None,
    ) -> None:
        self.runs, self.window, self.baseline, self.threshold = runs, window, baseline, threshold
        self.by = {score: ScoreSeedFindings(runs, window, baseline, score, threshold) for score in SCORES}
