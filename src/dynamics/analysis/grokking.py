"""Grokking: when a model fits its training data, when it generalises, and what comes before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dynamics.analysis.accuracy import PROBE, accuracy_table
from dynamics.analysis.delays import GrokkingRule, delay_tables
from dynamics.analysis.emergence import PERSISTENCE, role_episodes
from dynamics.analysis.grokking_text import render
from dynamics.analysis.lead_lag import events_table, lead_lag_table
from dynamics.analysis.timeline import Timeline, read_timeline
from dynamics.errors import AnalysisError
from dynamics.store import Run

TRAIN = "train/exact_match"
"""Training accuracy, as our own module logs it."""
_TRAINING = re.compile("train", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class GrokkingReport:
    """What `grokking_report` found.

    Attributes:
        rule: What counts as what.
        train: The training series; ``None`` if none was logged.
        held_out: The held-out series.
        reference: The held-out series that the text compares events with.
        steps: Steps of the snapshots, ``(step,)``.
        score: What the importance behind roles and rho is measured in.
        times: One row per series and method (``"threshold"``, ``"sigmoid"``): ``series``, ``part`` (``"train"``: t_mem,
            ``"held out"``: t_gen), ``method``, ``step``, ``low``, ``high``, ``reason``; by threshold ``threshold``,
            ``confirmed``, ``kept``, ``best``; by sigmoid ``start``, ``end``, ``width``, ``explained``. See `Crossing`
            and `SigmoidFit`.
        delays: One row per held-out series and method: ``series``, ``method``, ``t_mem``, ``t_gen``, ``ratio``,
            ``ratio_low``, ``ratio_high``, ``accuracy_at_t_mem``, ``verdict`` and ``reason``.
        events: What `events_table` returns.
        lags: What `lead_lag_table` returns.
        fresh: Whether every training batch was drawn anew, so that nothing is memorised; ``None`` if unknown.
    """

    rule: GrokkingRule
    train: str | None
    held_out: tuple[str, ...]
    reference: str
    steps: np.ndarray
    score: str
    times: pd.DataFrame
    delays: pd.DataFrame
    events: pd.DataFrame
    lags: pd.DataFrame
    fresh: bool | None

    def text(self) -> str:
        """Return the report in plain words, a paragraph for each question."""
        return render(self)


def grokking_report(
    run: Run,
    train: str | None = None,
    held_out: Sequence[str] | None = None,
    reference: str | None = None,
    rule: GrokkingRule | None = None,
    timeline: Timeline | None = None,
    persistence: int = PERSISTENCE,
    rho_samples: ArrayLike | None = None,
) -> GrokkingReport:
    """Return when a run fits its training data (t_mem) and generalises (t_gen), and what comes before and after.

    By threshold: the first row from which the accuracy stays at or above it (`threshold_crossing`). By change point:
    the midpoint of a sigmoid (`sigmoid_midpoint`). A run deserves the name **grokking** for a held-out series if

    - the delay ratio t_gen / t_mem is at least ``rule.factor``, with the whole range that the two intervals allow;
    - the held-out accuracy was at most ``rule.chance + rule.near`` at t_mem;
    - it rises to ``rule.level`` at least (the threshold, or the sigmoid's end), and the threshold holds in at least
      ``rule.kept`` of the rows from t_gen on.

    It does not if t_gen is missing by threshold, or one of the first three clearly fails. Else it is undecided.

    Args:
        run: An open run.
        train: Name of the training accuracy among the series of `accuracy_table`. Default: ``train/exact_match``, or
            the one series whose name begins with "train"; without any there is no t_mem.
        held_out: Names of the held-out accuracies. Default: all others, the probe last.
        reference: The one that the text compares events with; default: the probe if it is among them, or the last.
        rule: What counts as what; default: `GrokkingRule`'s defaults.
        timeline: Where roles and rho come from; default: by loss, ``read_timeline(run, score="loss")``. By exact match
            they are undefined while accuracy is 0, so nothing could ever come before generalisation begins.
        persistence: Snapshots for which a role must be kept; see `role_episodes`.
        rho_samples: Rho of bootstrap resamples of that timeline, ``(resample, step)``; see `events_table`.

    Raises:
        AnalysisError: If a series is not there, or more than one could be the training's; or for what `read_timeline`
            raises.
    """
    rule = GrokkingRule() if rule is None else rule
    timeline = read_timeline(run, score="loss") if timeline is None else timeline
    accuracy = accuracy_table(run)
    series = list(dict.fromkeys(accuracy["series"]))
    where = str(run.path)
    train = _training_series(where, series) if train is None else _known(where, train, series)
    if held_out is None:
        others = [name for name in series if name != train and not _TRAINING.match(name)]
        held_out = sorted(others, key=lambda name: name == PROBE)
    held_out = tuple(_known(where, name, series) for name in held_out)
    if train in held_out:
        raise AnalysisError(f"{train!r} is the training accuracy; it cannot be held out as well.")
    if not held_out:
        raise AnalysisError(f"no held-out series is named; {where} has {', '.join(series)}.")
    default = PROBE if PROBE in held_out else held_out[-1]
    reference = default if reference is None else _known(where, reference, list(held_out))

    times, delays = delay_tables(accuracy, train, held_out, rule)
    # The timeline may hold chosen snapshots alone.
    norm = run["weight_norm"][np.isin(run.steps, timeline.steps)] if "weight_norm" in set(run) else None
    events = events_table(timeline, role_episodes(timeline, persistence), norm, rho_samples)
    lags = lead_lag_table(events, times[times["part"] == "held out"])
    return GrokkingReport(
        rule, train, held_out, reference, timeline.steps, timeline.score, times, delays, events, lags, _fresh(run)
    )


def _fresh(run: Run) -> bool | None:
    """Return whether our data module drew every batch anew; other data modules do not say."""
    described = run.metadata.get("datamodule")
    if not isinstance(described, dict) or described.get("class") != "SequenceDataModule":
        return None
    options = described.get("hyperparameters")
    if not isinstance(options, dict) or "train_examples" not in options:
        return None
    return options["train_examples"] is None


def _known(where: str, name: str, names: list[str]) -> str:
    if name not in names:
        raise AnalysisError(f"{where} has no accuracy series {name!r}; choose among {', '.join(names)}.")
    return name


def _training_series(where: str, names: list[str]) -> str | None:
    candidates = [name for name in names if _TRAINING.match(name)]
    if TRAIN in candidates:
        return TRAIN
    if len(candidates) > 1:
        raise AnalysisError(
            f"{where} has several training accuracies: {', '.join(candidates)}; name one of them with train=."
        )
    return candidates[0] if candidates else None
