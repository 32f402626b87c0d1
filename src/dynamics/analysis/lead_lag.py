"""What comes before generalisation and what after: role onsets, the turn of rho, the turn of the weight norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.timeline import Timeline
from dynamics.errors import AnalysisError

ROLE_ONSET, RHO_CHANGE, NORM_TURN = "role onset", "rho change", "weight-norm turn"
LEAST_DECLINE = 0.01
"""A weight norm that declines by a smaller share after its maximum has not turned."""


@dataclass(frozen=True)
class Turn:
    """When a series turned.

    Attributes:
        step: When; NaN if it did not.
        low: It happened after this step,
        high: and not after this one.
        size: How far the series went.
        reason: Why there is no turn, in words; ``None`` if there is one.
    """

    step: float
    low: float
    high: float
    size: float
    reason: str | None


def largest_change(
    steps: ArrayLike, values: ArrayLike, samples: ArrayLike | None = None, confidence: float = 0.95
) -> Turn:
    """Return the change of level that explains most of a series: the best fit by two constants.

    It maximises ``n1 n2 / (n1 + n2) (mean2 - mean1)^2`` over the places to cut, with at least two rows on either side,
    so that one stray row is no change of level.

    Args:
        steps: Ascending, ``(step,)``.
        values: Such as rho, ``(step,)``; rows of NaN are left out.
        samples: The same from bootstrap resamples, ``(resample, step)``, NaN in the same rows or in more; their cuts
            widen the interval.
        confidence: Of the interval over resamples.

    Returns:
        ``step``: of the first row on the new level; ``low``, ``high``: of the row before, and of that row, or the
        quantiles over resamples where these lie further out; ``size``: mean after minus mean before.

    Raises:
        AnalysisError: If shapes do not fit.
    """
    x, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    if x.ndim != 1 or x.shape != y.shape:
        raise AnalysisError(f"steps and values must both be (step,), of the same length; got {x.shape} and {y.shape}.")
    known = np.isfinite(y)
    if known.sum() < 4:
        return Turn(np.nan, np.nan, np.nan, np.nan, f"a change of level needs 4 snapshots; {known.sum()} have a value")
    if np.ptp(y[known]) == 0:
        return Turn(np.nan, np.nan, np.nan, np.nan, f"it is {y[known][0]:.2f} at every snapshot")
    cut, size = _best_cut(y[known])
    low, step = x[known][cut - 1], x[known][cut]
    high = step
    if samples is not None:
        drawn = np.asarray(samples, dtype=float)
        if drawn.ndim != 2 or drawn.shape[1:] != x.shape:
            raise AnalysisError(f"samples must be (resample, step) with {len(x)} steps; got {drawn.shape}.")
        cuts = [
            x[finite][_best_cut(row[finite])[0]]
            for row, finite in zip(drawn, np.isfinite(drawn), strict=True)
            if finite.sum() >= 4
        ]
        if cuts:
            ends = np.quantile(cuts, [(1 - confidence) / 2, (1 + confidence) / 2])
            low, high = min(low, ends[0]), max(high, ends[1])
    return Turn(float(step), float(low), float(high), size, None)


def _best_cut(values: np.ndarray) -> tuple[int, float]:
    """Return the index of the first value on the new level, and the size of the change."""
    n = len(values)
    cuts = np.arange(2, n - 1)
    sums = np.cumsum(values)[cuts - 1]
    change = (values.sum() - sums) / (n - cuts) - sums / cuts
    best = int(np.argmax(cuts * (n - cuts) * change**2))
    return int(cuts[best]), float(change[best])


def weight_norm_turn(steps: ArrayLike, weight_norm: ArrayLike) -> Turn:
    """Return when the weights stopped growing: the maximum of their norm, if it declines by 1 % or more afterwards.

    Args:
        steps: Ascending, ``(step,)``.
        weight_norm: Frobenius norm of each component's weights, ``(step, component)``; the norm over all of them is the
            root of the sum of squares.

    Returns:
        ``step``: of the maximum; ``low``, ``high``: of its neighbours, between which the true maximum lies; ``size``:
        the decline from the maximum to the least norm after it, a share, negative.

    Raises:
        AnalysisError: If shapes do not fit.
    """
    x, norms = np.asarray(steps, dtype=float), np.asarray(weight_norm, dtype=float)
    if norms.ndim != 2 or x.shape != norms.shape[:1]:
        raise AnalysisError(f"weight_norm must be (step, component) with {len(x)} steps; got {norms.shape}.")
    total = np.sqrt((norms**2).sum(1))
    known = np.isfinite(total)
    x, total = x[known], total[known]
    if not len(x):
        return Turn(np.nan, np.nan, np.nan, np.nan, "no snapshot has a finite norm")
    top = int(total.argmax())
    if top == len(x) - 1:
        return Turn(np.nan, np.nan, np.nan, np.nan, "the norm is largest at the last snapshot")
    size = float(total[top:].min() / total[top] - 1) if total[top] else 0.0
    if size > -LEAST_DECLINE:
        return Turn(np.nan, np.nan, np.nan, size, f"the norm declines by {abs(size):.1%} only after its maximum")
    return Turn(float(x[top]), float(x[max(top - 1, 0)]), float(x[top + 1]), size, None)


def events_table(
    timeline: Timeline,
    episodes: pd.DataFrame,
    weight_norm: ArrayLike | None = None,
    rho_samples: ArrayLike | None = None,
) -> pd.DataFrame:
    """Return when things happened in a run: the first onset of every hero and bloat, and the turns of rho and norm.

    Args:
        timeline: What `read_timeline` returns.
        episodes: What `role_episodes` returns for it.
        weight_norm: ``(step, component)``; ``None`` if it was not recorded.
        rho_samples: Rho of bootstrap resamples, ``(resample, step)``, for the interval of its change.

    Returns:
        One row per event: ``event``, ``component`` and ``role`` (empty where it has none), ``step``, ``low``, ``high``,
        ``size`` and ``reason``. A turn that did not happen has a row with its reason. An onset lies after the defined
        snapshot before it; where there is none, ``low`` is the first step.
    """
    first = timeline.steps[0]
    rows: list[tuple[str, str, str, float, float, float, float, str | None]] = []
    emerged = episodes[episodes["role"].isin([HERO, BLOAT])].sort_values("onset", kind="stable")
    for row in emerged.drop_duplicates(["component", "role"]).to_dict("records"):
        low = first if pd.isna(row["after"]) else row["after"]
        rows.append((ROLE_ONSET, row["component"], row["role"], row["onset"], low, row["onset"], np.nan, None))
    turns = {
        RHO_CHANGE: largest_change(timeline.steps, [gap.rho for gap in timeline.gaps], rho_samples),
        NORM_TURN: Turn(np.nan, np.nan, np.nan, np.nan, "no weight norm was recorded")
        if weight_norm is None
        else weight_norm_turn(timeline.steps, weight_norm),
    }
    rows += [(name, "", "", turn.step, turn.low, turn.high, turn.size, turn.reason) for name, turn in turns.items()]
    numbers = dict.fromkeys(["step", "low", "high", "size"], "float64")
    types = {"event": "str", "component": "str", "role": "str", **numbers, "reason": "object"}
    table = pd.DataFrame(rows, columns=list(types))
    # As objects from the start, or pandas turns a missing reason into NaN.
    table["reason"] = pd.Series([row[-1] for row in rows], dtype=object)
    return table.astype(types)


def lead_lag_table(events: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """Return how each event lies to each time of generalisation.

        lag = step - t_gen          ratio = step / t_gen

    Both with the widest range that the two intervals allow. What comes before is not thereby a cause.

    Args:
        events: What `events_table` returns; events without a step are left out.
        times: One row per t_gen: ``series``, ``method``, ``step``, ``low``, ``high``; rows without a step are left out.

    Returns:
        One row per event and t_gen: ``series``, ``method``, ``t_gen``, ``event``, ``component``, ``role``, ``step``,
        ``lag``, ``lag_low``, ``lag_high`` (negative: before), ``ratio``, ``ratio_low``, ``ratio_high`` (NaN if t_gen is
        0) and ``order``: ``"before"``, ``"after"``, or ``"open"`` where the intervals leave both possible.
    """
    columns = ["series", "method", "t_gen", "event", "component", "role", "step", "lag", "lag_low", "lag_high",
               "ratio", "ratio_low", "ratio_high", "order"]  # fmt: skip
    gen = times.loc[times["step"].notna(), ["series", "method", "step", "low", "high"]]
    gen = gen.rename(columns={"step": "t_gen", "low": "gen_low", "high": "gen_high"})
    table = gen.merge(events[events["step"].notna()], how="cross")
    table["lag"] = table["step"] - table["t_gen"]
    table["lag_low"], table["lag_high"] = table["low"] - table["gen_high"], table["high"] - table["gen_low"]
    for name, above, below in [
        ("ratio", "step", "t_gen"),
        ("ratio_low", "low", "gen_high"),
        ("ratio_high", "high", "gen_low"),
    ]:
        table[name] = ratio(table[above].to_numpy(float), table[below].to_numpy(float))
    conditions = [(table["lag_high"] <= 0) & (table["lag"] < 0), (table["lag_low"] >= 0) & (table["lag"] > 0)]
    table["order"] = np.select(conditions, ["before", "after"], "open")
    return table[columns].astype({"order": "str"})


def ratio(above: ArrayLike, below: ArrayLike) -> np.ndarray:
    """Return ``above / below``: infinite where only ``below`` is 0, NaN where both are."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above, dtype=float) / np.asarray(below, dtype=float)
