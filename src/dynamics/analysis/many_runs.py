"""Many runs: rho over the seeds of an experiment, by step or by accuracy, with intervals in which a run counts once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t

from dynamics.analysis.timeline import Timeline, read_timeline
from dynamics.analysis.windows import Window, probe_accuracy, snapshots_in_window, window_bounds
from dynamics.errors import AnalysisError
from dynamics.store import Run

BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Edges of accuracy bins."""

Windows = list[tuple[Run, Timeline, np.ndarray]]
"""Runs that have snapshots in a window of accuracy, their timelines, and which snapshots these are."""

INTERVAL = ["runs", "mean", "sd", "low", "high", "least", "most", "reason"]
"""Columns of a `SeedInterval` in a table."""


@dataclass(frozen=True)
class SeedInterval:
    """A number over runs, each of which counts once.

    Attributes:
        runs: Runs in which it is defined.
        mean: Mean over these runs.
        sd: Standard deviation over them, with runs - 1 degrees of freedom; NaN for less than 2.
        low: Lower end of the t interval of the mean; NaN for less than 2 runs.
        high: Its upper end.
        least: Smallest value of a run.
        most: Largest value of a run.
        reason: Why there is no interval, in words; ``None`` if there is one.
    """

    runs: int
    mean: float
    sd: float
    low: float
    high: float
    least: float
    most: float
    reason: str | None


def seed_interval(values: ArrayLike, confidence: float = 0.95) -> SeedInterval:
    """Return the mean over runs with ``mean +- t_{n - 1} sd / sqrt(n)``, Student's interval, and the range.

    The interval is that of runs drawn independently from one normal distribution: of the seeds of an experiment, not of
    the snapshots of one run. With few runs it is wide, and it may reach beyond what a rho can be.

    Args:
        values: One number for each run, ``(run,)``; NaN where it is undefined, which leaves the run out.
        confidence: Share of such intervals that hold the true mean.

    Raises:
        AnalysisError: If the confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise AnalysisError(f"the confidence must lie between 0 and 1; got {confidence}.")
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    n, nan = len(known), float("nan")
    if n == 0:
        return SeedInterval(0, nan, nan, nan, nan, nan, nan, "it is defined in none of the runs")
    mean, least, most = float(known.mean()), float(known.min()), float(known.max())
    if n == 1:
        return SeedInterval(1, mean, nan, nan, nan, least, most, "it is defined in 1 run; an interval needs 2")
    sd = float(known.std(ddof=1))
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * sd / np.sqrt(n)
    return SeedInterval(n, mean, sd, mean - half, mean + half, least, most, None)


def rho_by_step(
    runs: Sequence[Run], baseline: str = "mean", score: str = "exact_match", confidence: float = 0.95
) -> pd.DataFrame:
    """Return ``rho = Spearman(G, C)`` over runs, step by step.

    Args:
        runs: Open runs, such as `open_runs` returns.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.
        confidence: Confidence of the interval.

    Returns:
        One row per step of any run: ``step, score`` and the fields of `SeedInterval`; ``runs`` counts those that have
        a snapshot at that step and a rho in it.

    Raises:
        AnalysisError: If there is no run, or one lacks what is needed.
    """
    return steps_of(list(read_timelines(runs, baseline, score)), confidence)


def steps_of(timelines: Sequence[Timeline], confidence: float = 0.95) -> pd.DataFrame:
    """Return the table of `rho_by_step` for timelines that have been read already."""
    tables = [
        pd.DataFrame({"step": timeline.steps, "rho": [gap.rho for gap in timeline.gaps]}) for timeline in timelines
    ]
    # A run that was begun anew may hold a step twice; the later one counts.
    values = pd.concat([table.drop_duplicates("step", keep="last") for table in tables])
    score = timelines[0].score
    rows = [(step, score, *interval_row(seed_interval(rho, confidence))) for step, rho in values.groupby("step")["rho"]]
    return interval_table(rows, {"step": "int64", "score": "str"})


def rho_by_run(runs: Sequence[Run], baseline: str = "mean", score: str = "exact_match") -> pd.DataFrame:
    """Return ``rho = Spearman(G, C)`` of every snapshot of every run: what `rho_by_step` and `rho_by_accuracy` average.

    Args:
        runs: Open runs.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.

    Returns:
        One row per run and snapshot: ``run`` (the path), ``step, accuracy`` (on the probe), ``score, rho, reason`` (why
        rho is undefined, or ``None``).

    Raises:
        AnalysisError: If there is no run, or one lacks what is needed.
    """
    return snapshots_of(runs, list(read_timelines(runs, baseline, score)))


def snapshots_of(runs: Sequence[Run], timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return the table of `rho_by_run` for timelines that have been read already."""
    tables = [
        pd.DataFrame(
            {
                "run": str(run.path),
                "step": timeline.steps,
                "accuracy": probe_accuracy(run),
                "score": timeline.score,
                "rho": np.array([gap.rho for gap in timeline.gaps], dtype=float),
                "reason": pd.Series([gap.reason for gap in timeline.gaps], dtype=object),
            }
        )
        for run, timeline in zip(runs, timelines, strict=True)
    ]
    return pd.concat(tables, ignore_index=True).astype({"run": "str", "score": "str"})


def rho_by_accuracy(
    runs: Sequence[Run],
    bins: Sequence[float] = BINS,
    baseline: str = "mean",
    score: str = "exact_match",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return rho over runs, by bins of the probe's accuracy: seeds learn at different steps.

    A run's rho in a bin is the mean over its snapshots there; then every run counts once.

    Args:
        runs: Open runs.
        bins: Edges of the bins, rising, from 0 to 1. A bin holds its lower edge, the last one its upper edge too.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``: what rho is taken by. The bins are always of accuracy.
        confidence: Confidence of the interval.

    Returns:
        One row per bin: ``accuracy_low, accuracy_high, score, snapshots`` (with a rho, of all runs) and the fields of
        `SeedInterval`.

    Raises:
        AnalysisError: If there is no run, one lacks what is needed, or the edges do not rise.
    """
    return accuracies_of(runs, list(read_timelines(runs, baseline, score)), bins, confidence)


def accuracies_of(
    runs: Sequence[Run], timelines: Sequence[Timeline], bins: Sequence[float] = BINS, confidence: float = 0.95
) -> pd.DataFrame:
    """Return the table of `rho_by_accuracy` for timelines that have been read already."""
    edges = np.asarray(bins, dtype=float)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise AnalysisError(f"bins must be two or more rising edges; got {list(bins)}.")
    series, score = [], timelines[0].score
    for run, timeline in zip(runs, timelines, strict=True):
        accuracy, rho = probe_accuracy(run), np.array([gap.rho for gap in timeline.gaps])
        place = np.searchsorted(edges, accuracy, side="right") - 1
        place[accuracy == edges[-1]] = len(edges) - 2
        series.append((place, rho))
    rows = []
    for index, (low, high) in enumerate(pairwise(edges)):
        inside = [rho[(place == index) & ~np.isnan(rho)] for place, rho in series]
        means = [rho.mean() if len(rho) else np.nan for rho in inside]
        rows.append((low, high, score, sum(map(len, inside)), *interval_row(seed_interval(means, confidence))))
    types = {"accuracy_low": "float64", "accuracy_high": "float64", "score": "str", "snapshots": "int64"}
    return interval_table(rows, types)


def read_timelines(
    runs: Sequence[Run], baseline: str = "mean", score: str = "exact_match", threshold: float | None = None
) -> Iterator[Timeline]:
    """Yield the timeline of each run; the arguments are those of `read_timeline`.

    Raises:
        AnalysisError: If there is no run, one lacks what is needed, or their components differ.
    """
    if not len(runs):
        raise AnalysisError("an analysis of many runs needs at least one run; got none.")
    for run in runs:
        if run.components != runs[0].components:
            raise AnalysisError(
                f"{run.path} has other components than {runs[0].path}; compare runs of the same components."
            )
        yield read_timeline(run, baseline, score, threshold)


def read_windows(
    runs: Sequence[Run],
    window: Window = "paper",
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
) -> Windows:
    """Return each run that has snapshots in the window, with its timeline and which snapshots these are.

    Args:
        runs: Open runs of the same components.
        window: A name among `WINDOWS`, or the least and the largest accuracy.
        baseline: What ablated outputs were replaced by.
        score: What C is measured in.
        threshold: Tau, in ranks.

    Raises:
        AnalysisError: If no run has one, there is no run, one lacks what is needed, or their components differ.
    """
    return windows_of(runs, list(read_timelines(runs, baseline, score, threshold)), window)


def windows_of(runs: Sequence[Run], timelines: Sequence[Timeline], window: Window = "paper") -> Windows:
    """Return what `read_windows` does, for timelines that have been read already."""
    low, high = window_bounds(window)
    read = [
        (run, timeline, snapshots_in_window(run, window) & np.array([gap.reason is None for gap in timeline.gaps]))
        for run, timeline in zip(runs, timelines, strict=True)
    ]
    found = [(run, timeline, inside) for run, timeline, inside in read if inside.any()]
    if not found:
        raise AnalysisError(
            f"none of {len(runs)} runs has a snapshot with a rho by {timelines[0].score} and an accuracy from {low:g} "
            f"to {high:g}; choose a wider window."
        )
    return found


def interval_row(interval: SeedInterval) -> tuple[object, ...]:
    """Return the fields of an interval, in the order of `INTERVAL`."""
    return tuple(getattr(interval, name) for name in INTERVAL)


def interval_table(rows: Iterable[tuple[object, ...]], first: dict[str, str]) -> pd.DataFrame:
    """Return rows that end in `interval_row` as a table; ``first`` holds names and types of the columns before."""
    types = first | {"runs": "int64"} | dict.fromkeys(INTERVAL[1:-1], "float64") | {"reason": "object"}
    # As objects first: pandas would make NaN of the None of a reason.
    return pd.DataFrame(list(rows), columns=list(types), dtype=object).astype(types)
