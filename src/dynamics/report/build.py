"""The report of a run, or of several: each section by itself, so that what one lacks takes nothing from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dynamics.analysis import Findings, Resampling, SeedFindings, window_bounds
from dynamics.analysis.findings import RESAMPLES
from dynamics.analysis.importance import check_score
from dynamics.analysis.roles import chosen_threshold
from dynamics.analysis.windows import Window
from dynamics.errors import AnalysisError
from dynamics.report.given import Given
from dynamics.report.later_sections import (
    faithfulness_section,
    grokking_section,
    self_repair_section,
    synergy_section,
)
from dynamics.report.rho_sections import agreement_section, depth_section, rho_section
from dynamics.report.role_section import role_section
from dynamics.report.run_section import run_section
from dynamics.report.section import Report, Section
from dynamics.report.seed_sections import (
    Seeds,
    experiment_section,
    frequency_section,
    layers_section,
    runs_section,
    seed_rho_section,
)
from dynamics.report.words import sentence
from dynamics.store import Run

_Asked = TypeVar("_Asked")

MOST_RESAMPLES = 1000
"""A p-value near 0.05 is then known to about 0.01."""
CELLS = 6_400_000
"""Resamples times snapshots times components that a report has time for."""

OF_A_RUN: dict[str, tuple[str, Callable[[Given], Section]]] = {
    "run": ("The run", run_section),
    "rho": ("Does the gradient rank components as ablation does?", rho_section),
    "depth": ("How much of that is depth and kind?", depth_section),
    "agreement": ("Which score ranks components as ablation does?", agreement_section),
    "roles": ("Which components are heroes and bloats?", role_section),
    "grokking": ("Grokking: when is it learned, what comes before and after?", grokking_section),
    "synergy": ("Do components stand in for each other?", synergy_section),
    "self_repair": ("Does attention repair itself?", self_repair_section),
    "faithfulness": ("Do the components that a score ranks highest carry the model?", faithfulness_section),
}
"""Heading and maker of each section of one run, by its key, in reading order."""

OF_RUNS: dict[str, tuple[str, Callable[[Seeds], Section]]] = {
    "runs": ("The runs", runs_section),
    "experiments": ("Over runs: rho, roles, and what pruning costs", experiment_section),
    "rho_over_runs": ("rho over runs", seed_rho_section),
    "role_frequency": ("Which components have their role again and again?", frequency_section),
    "roles_by_layer": ("In which layers are they?", layers_section),
}
"""The same of several runs."""


def run_report(
    run: Run,
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    window: Window = "paper",
    resampling: Resampling | None = None,
) -> Report:
    """Return the report of a run.

    Args:
        run: An open run, finished or not.
        score: What C is measured in where one score must lead: ``"exact_match"`` or ``"loss"``.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        window: Accuracies on the probe of the snapshots that are taken together: a name among `WINDOWS`, or least and
            largest.
        resampling: How intervals and nulls are drawn; default: as many times as `resamples_for` allows.

    Raises:
        AnalysisError: If an argument is out of range. What the run lacks is said in its section.
    """
    _check(run, score, threshold)
    if resampling is None:
        resampling = Resampling(resamples=resamples_for(run))
    given = Given(Findings(run, baseline, threshold, resampling), score, window)
    return Report(str(run.path), _options(score, baseline, threshold, window), _sections(given, OF_A_RUN))


def resamples_for(run: Run) -> int:
    """Return how often to resample and permute: 1,000 times, or fewer if the run is long and has many components."""
    cells = max(1, len(run.steps) * len(run.components))
    return min(MOST_RESAMPLES, max(RESAMPLES, CELLS // cells // 100 * 100))


def seeds_report(
    runs: Sequence[Run],
    names: Sequence[str],
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    window: Window = "paper",
) -> Report:
    """Return the report of several runs of the same components; arguments as for `run_report`.

    Args:
        runs: Open runs.
        names: What tells them apart.
        score: What C is measured in where one score must lead.
        baseline: What ablated outputs were replaced by.
        threshold: Smallest gap of a hero or bloat, in ranks.
        window: Accuracies on the probe of the snapshots that are taken together.

    Raises:
        AnalysisError: If an argument is out of range. What the runs lack is said in its section.
    """
    _check(runs[0], score, threshold)
    given = Seeds(SeedFindings(runs, window, baseline, threshold), names, score)
    title = f"{len(runs)} runs: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
    return Report(title, _options(score, baseline, threshold, window), _sections(given, OF_RUNS))


def _check(run: Run, score: str, threshold: float | None) -> None:
    # What was asked for wrongly is refused as a whole; what a run lacks is said in its section.
    check_score(score)
    chosen_threshold(threshold, len(run.components))


def _options(score: str, baseline: str, threshold: float | None, window: Window) -> dict[str, object]:
    low, high = window_bounds(window)
    return {"score": score, "baseline": baseline, "threshold": threshold, "window": [low, high]}


def _sections(given: _Asked, makers: dict[str, tuple[str, Callable[[_Asked], Section]]]) -> tuple[Section, ...]:
    said: dict[str, str] = {}
    found = []
    for name, (heading, make) in makers.items():
        try:
            found.append(make(given))
        except AnalysisError as error:
            reason = str(error)
            # One lack may be that of many sections: in full it is said once.
            missing = f"For the same reason as under “{said[reason]}”." if reason in said else sentence(reason)
            said.setdefault(reason, heading)
            found.append(Section(name, heading, missing=missing))
    return tuple(found)
