"""What a report of one run is asked for, and which of its snapshots it speaks of."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from dynamics.analysis import Findings, ScoreFindings, in_window, window_bounds
from dynamics.analysis.accuracy import PROBE
from dynamics.analysis.windows import Window
from dynamics.errors import AnalysisError
from dynamics.report.words import BY, percent, several, whole


class Given:
    """A run's findings, the score and the window that are asked for.

    Args:
        findings: The findings.
        score: What C is measured in where one score must lead.
        window: Accuracies on the probe of the snapshots that are taken together.

    Attributes:
        low: Least accuracy of the window.
        high: Largest.
    """

    def __init__(self, findings: Findings, score: str = "exact_match", window: Window = "paper") -> None:
        self.findings, self.score, self.window = findings, score, window
        self.low, self.high = window_bounds(window)

    @property
    def found(self) -> ScoreFindings:
        """Return the findings by the leading score."""
        return self.findings.by[self.score]

    @property
    def level(self) -> float:
        """Return the p-value below which a number is called beyond chance."""
        return 1 - self.findings.resampling.level

    @cached_property
    def accuracy(self) -> pd.Series:
        """Return the accuracy on the probe by step; without a row if none was recorded."""
        if "exact_match" not in set(self.findings.run):
            return pd.Series(dtype=float)
        table = self.findings.accuracy
        return table[table["series"] == PROBE].set_index("step")["accuracy"]

    def defined(self, score: str) -> pd.DataFrame:
        """Return the rows of `ScoreFindings.rho` that have a rho."""
        return self.findings.by[score].rho.dropna(subset="rho")

    def inside(self, score: str) -> np.ndarray:
        """Return the steps in the window at which rho is defined."""
        steps = self.defined(score)["step"].to_numpy()
        return steps[in_window(self.accuracy.reindex(steps), (self.low, self.high))]

    def chosen(self, score: str | None = None) -> tuple[np.ndarray, str]:
        """Return the steps that a section speaks of, in words too: those in the window, or else the last with a rho.

        Raises:
            AnalysisError: If no snapshot has a rho by this score.
        """
        score = self.score if score is None else score
        steps = self.inside(score)
        if len(steps) == 1:
            return steps, f"in the window (1 snapshot, step {whole(steps[0])})"
        if len(steps):
            return steps, f"in the window ({len(steps)} snapshots)"
        known = self.defined(score)["step"].to_numpy()
        if not len(known):
            raise AnalysisError(self.no_rho(score))
        return known[-1:], f"at the last snapshot with a rho (step {whole(known[-1])}), since none lies in the window"

    def no_rho(self, score: str) -> str:
        """Return why no snapshot has a rho by this score."""
        reasons = self.findings.by[score].rho["reason"].value_counts()
        more = f", and {several(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
        return f"no snapshot has a rho by {BY[score]}: {reasons.index[0]}{more}"

    @property
    def range(self) -> str:
        """Return the window's accuracies in words."""
        return f"{percent(self.low)} to {percent(self.high)}"
