"""How long a model takes to generalise after it fits its training data, and whether that deserves the name grokking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.lead_lag import ratio
from dynamics.analysis.transitions import Crossing, SigmoidFit, running_mean, sigmoid_midpoint, threshold_crossing
from dynamics.errors import AnalysisError

GROKKING, NO_GROKKING, UNDECIDED = VERDICTS = ("grokking", "no grokking", "undecided")
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


def delay_tables(
    accuracy: pd.DataFrame, train: str | None, held_out: Sequence[str], rule: GrokkingRule
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return when each accuracy rises, and how long after the training's each held-out one does.

    Args:
        accuracy: What `accuracy_table` returns.
        train: The training series; ``None`` if there is none.
        held_out: The held-out series.
        rule: What counts as what.

    Returns:
        The tables ``times`` and ``delays`` of `GrokkingReport`.
    """
    curves = {
        str(name): (rows["step"].to_numpy(), rows["accuracy"].to_numpy()) for name, rows in accuracy.groupby("series")
    }
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
    return times, delays


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
