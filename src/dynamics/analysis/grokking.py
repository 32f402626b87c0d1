"""Grokking: when a model fits its training data, when it generalises, and what comes before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dynamics.analysis.accuracy import PROBE, accuracy_table
from dynamics.analysis.emergence import PERSISTENCE, role_episodes
from dynamics.analysis.grokking_text import render
from dynamics.analysis.lead_lag import events_table, lead_lag_table, ratio
from dynamics.analysis.timeline import Timeline, read_timeline
from dynamics.analysis.transitions import Crossing, SigmoidFit, running_mean, sigmoid_midpoint, threshold_crossing
from dynamics.errors import AnalysisError
from dynamics.store import Run

GROKKING, NO_GROKKING, UNDECIDED = VERDICTS = ("grokking", "no grokking", "undecided")
TRAIN = "train/exact_match"
"""Training accuracy, as our own module logs it."""
_TRAINING = re.compile("train", re.IGNORECASE)
LEAST_BEST = 0.2
"""A share of the best accuracy is no threshold where the best is lower than this."""


@dataclass(frozen=True)
class GrokkingRule:
    """What counts as fitted, as generalised, and as grokking.

    Attributes:
        train_threshold: Training accuracy at t_mem.
        held_out_threshold: Held-out accuracy at t_gen.
        of_best: Take ``held_out_threshold`` as a share of the best accuracy that ``persistence`` rows in a row reach.
        persistence: Rows for which a threshold must hold.
        train_window: Rows of the training series, which are single batches, that a running mean takes together for its
            threshold; this must then hold for ``persistence * train_window`` rows.
        scale: In which the sigmoid is fitted: ``"log"`` or ``"linear"`` step.
        confidence: Of the sigmoid's interval.
        factor: Least delay ratio t_gen / t_mem of grokking.
        chance: Accuracy of guessing; an exact match of whole sequences has none to speak of.
        near: How far above chance the held-out accuracy may be at t_mem.
        level: Accuracy to which generalisation must lead.
        kept: Share of the rows from t_gen on that must reach the threshold.
    """

    train_threshold: float = 0.95
    held_out_threshold: float = 0.9
    of_best: bool = False
    persistence: int = 3
    train_window: int = 5
    scale: str = "log"
    confidence: float = 0.95
    factor: float = 3.0
    chance: float = 0.0
    near: float = 0.1
    level: float = 0.5
    kept: float = 0.8

    def __post_init__(self) -> None:
        for name in ("train_threshold", "held_out_threshold"):
            if not 0 < getattr(self, name) <= 1:
                raise AnalysisError(f"{name} must lie above 0 and be at most 1; got {getattr(self, name)}.")
        if self.factor < 1:
            raise AnalysisError(f"factor must be at least 1; got {self.factor}.")
        if self.train_window < 1:
            raise AnalysisError(f"train_window must be at least 1 row; got {self.train_window}.")


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
    series = {str(name): rows for name, rows in accuracy_table(run).groupby("series", sort=False)}
    where = str(run.path)
    train = _training_series(where, list(series)) if train is None else _known(where, train, list(series))
    if held_out is None:
        others = [name for name in series if name != train and not _TRAINING.match(name)]
        held_out = sorted(others, key=lambda name: name == PROBE)
    held_out = tuple(_known(where, name, list(series)) for name in held_out)
    if not held_out:
        raise AnalysisError(f"no held-out series is named; {where} has {', '.join(series)}.")
    default = PROBE if PROBE in held_out else held_out[-1]
    reference = default if reference is None else _known(where, reference, list(held_out))

    curves = {name: (rows["step"].to_numpy(), rows["accuracy"].to_numpy()) for name, rows in series.items()}
    found: dict[str, dict[str, Crossing | SigmoidFit]] = {
        name: {"threshold": _crossing(*curves[name], rule, name == train),
               "sigmoid": sigmoid_midpoint(*curves[name], rule.scale, rule.confidence)}
        for name in ([] if train is None else [train]) + list(held_out)
    }  # fmt: skip
    times = _times_table(found, train)
    rows = [
        _delay(rule, name, method, None if train is None else found[train][method], found[name][method], curves[name])
        for name in held_out
        for method in ("threshold", "sigmoid")
    ]
    delays = pd.DataFrame(rows).astype({"series": "str", "method": "str", "verdict": "str", "reason": "str"})
    norm = run["weight_norm"] if "weight_norm" in set(run) and len(run.steps) == len(timeline.steps) else None
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


def _crossing(steps: np.ndarray, accuracy: np.ndarray, rule: GrokkingRule, training: bool) -> Crossing:
    threshold = rule.train_threshold if training else rule.held_out_threshold
    if training:
        # Means that overlap confirm nothing: as many rows as persistence takes without overlap.
        means = running_mean(accuracy, rule.train_window)
        return threshold_crossing(steps, means, threshold, rule.persistence * rule.train_window)
    crossing = threshold_crossing(steps, accuracy, threshold, rule.persistence)
    if not rule.of_best or np.isnan(crossing.best):
        return crossing
    if crossing.best < LEAST_BEST:
        reason = f"at best it is {crossing.best:.0%}, too little for a share of it to mean anything"
        return Crossing(np.nan, np.nan, np.nan, np.nan, False, np.nan, crossing.best, reason)
    return threshold_crossing(steps, accuracy, threshold * crossing.best, rule.persistence)


def _times_table(found: dict[str, dict[str, Crossing | SigmoidFit]], train: str | None) -> pd.DataFrame:
    rows = [
        {"series": name, "part": "train" if name == train else "held out", "method": method, **vars(time)}
        for name, methods in found.items()
        for method, time in methods.items()
    ]
    columns = ["series", "part", "method", "step", "low", "high", "reason", "threshold", "confirmed", "kept", "best",
               "start", "end", "width", "explained"]  # fmt: skip
    table = pd.DataFrame(rows, columns=columns)
    # As objects from the start, or pandas turns a missing reason into NaN.
    table["reason"] = pd.Series([row["reason"] for row in rows], dtype=object)
    text = dict.fromkeys(["series", "part", "method"], "str")
    return table.astype({**text, "reason": "object", "confirmed": "boolean"})


def _delay(
    rule: GrokkingRule,
    series: str,
    method: str,
    mem: Crossing | SigmoidFit | None,
    gen: Crossing | SigmoidFit,
    curve: tuple[np.ndarray, np.ndarray],
) -> dict[str, object]:
    """Return a row of delays."""
    row: dict[str, object] = {"series": series, "method": method, "t_mem": np.nan, "t_gen": gen.step,
                              "ratio": np.nan, "ratio_low": np.nan, "ratio_high": np.nan,
                              "accuracy_at_t_mem": np.nan}  # fmt: skip
    if mem is None:
        return {**row, "verdict": UNDECIDED, "reason": "no training accuracy was logged"}
    row["t_mem"] = mem.step
    if mem.reason is not None:
        return {**row, "verdict": UNDECIDED, "reason": f"t_mem is open: {mem.reason}"}
    at_mem = float(np.interp(mem.step, *curve)) if len(curve[0]) else np.nan
    row["accuracy_at_t_mem"] = at_mem
    if gen.reason is not None:
        # That a threshold is not reached is an answer; that no sigmoid fits is none.
        verdict = NO_GROKKING if method == "threshold" and len(curve[0]) else UNDECIDED
        return {**row, "verdict": verdict, "reason": f"t_gen is open: {gen.reason}"}
    pair = (("t_mem", mem), ("t_gen", gen))
    weak = [name for name, time in pair if isinstance(time, Crossing) and not time.confirmed]
    pairs = [(gen.step, mem.step), (gen.low, mem.high), (gen.high, mem.low)]
    middle, low, high = (float(ratio(*pair)) for pair in pairs)
    row |= {"ratio": middle, "ratio_low": low, "ratio_high": high}
    most = rule.chance + rule.near
    level = gen.threshold if isinstance(gen, Crossing) else gen.end
    kept = gen.kept if isinstance(gen, Crossing) else 1.0
    if at_mem > most:
        verdict, reason = NO_GROKKING, f"the accuracy at t_mem was {at_mem:.0%} already, more than {most:.0%}"
    elif high < rule.factor:
        verdict, reason = NO_GROKKING, f"the delay ratio is below {rule.factor:g}"
    elif level < rule.level:
        verdict, reason = NO_GROKKING, f"it generalises to {level:.0%} only, less than {rule.level:.0%}"
    elif kept < rule.kept:
        verdict, reason = UNDECIDED, f"the accuracy falls again: {kept:.0%} of the rows from t_gen on reach {level:.0%}"
    elif weak:
        verdict, reason = UNDECIDED, f"too few rows follow {' and '.join(weak)} to confirm it"
    elif low >= rule.factor:
        verdict = GROKKING
        reason = f"the delay ratio is {rule.factor:g} or more, and the accuracy at t_mem was {at_mem:.0%}"
    else:
        verdict, reason = UNDECIDED, f"the range of the delay ratio does not lie on one side of {rule.factor:g}"
    return {**row, "verdict": verdict, "reason": reason}
