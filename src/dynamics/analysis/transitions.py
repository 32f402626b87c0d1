"""When an accuracy rises: by threshold, and by a fitted sigmoid with an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares
from scipy.special import expit
from scipy.stats import t as student

from dynamics.analysis.emergence import equal_runs
from dynamics.errors import AnalysisError

LEAST_RISE = 0.2
"""A sigmoid that rises by less is no transition."""
LEAST_EXPLAINED = 0.5
"""A sigmoid that explains a smaller share of the variance does not describe the series."""
SCALES = ("log", "linear")
_PARAMETERS = 4
_MIDPOINTS, _WIDTHS = 60, 14


@dataclass(frozen=True)
class Crossing:
    """When a series reached a threshold.

    Attributes:
        step: Step of the first row from which it stays at or above the threshold; NaN if there is none.
        low: Step of the row before: it was crossed in (low, step]. 0 if the first row is above already.
        high: The same as ``step``.
        threshold: The threshold, a share.
        confirmed: Whether ``persistence`` rows are above it, rather than fewer at the end of the series.
        kept: Share of the rows from ``step`` on that are at or above the threshold; NaN if there is no step.
        best: The highest accuracy that ``persistence`` rows in a row all reach (all rows, if there are fewer).
        reason: Why there is no step, in words; ``None`` if there is one.
    """

    step: float
    low: float
    high: float
    threshold: float
    confirmed: bool
    kept: float
    best: float
    reason: str | None


@dataclass(frozen=True)
class SigmoidFit:
    """When a series rose, by the sigmoid that fits it best.

    Attributes:
        step: Midpoint m, a step; NaN if the series has no such transition.
        low: Lower end of its confidence interval, a step.
        high: Upper end.
        start: Level before the rise, a share.
        end: Level after it.
        width: Step at 90 % of the rise over step at 10 % (scale ``"log"``), or their difference (``"linear"``).
        explained: Share of the variance that the fit explains, R^2.
        reason: Why there is no midpoint, in words; ``None`` if there is one.
    """

    step: float
    low: float
    high: float
    start: float
    end: float
    width: float
    explained: float
    reason: str | None


def running_mean(values: ArrayLike, window: int) -> np.ndarray:
    """Return the mean of ``window // 2`` rows to either side and the row itself; fewer at the ends of the series."""
    series = np.asarray(values, dtype=float)
    sums = np.concatenate([[0.0], np.cumsum(series)])
    rows = np.arange(len(series))
    first, stop = np.maximum(rows - window // 2, 0), np.minimum(rows + window // 2 + 1, len(series))
    return (sums[stop] - sums[first]) / (stop - first)


def threshold_crossing(steps: ArrayLike, accuracy: ArrayLike, threshold: float, persistence: int = 3) -> Crossing:
    """Return the first step from which an accuracy stays at or above a threshold, for some rows or to the end.

    The interval (low, step] knows only how far apart the rows lie; it knows nothing of noise.

    Args:
        steps: Ascending, ``(row,)``.
        accuracy: Shares, ``(row,)``; rows of NaN are left out.
        threshold: A share.
        persistence: Rows for which it must stay there, so that one lucky row does not count. At least 1.

    Raises:
        AnalysisError: If the arrays do not fit each other, the steps do not ascend, or persistence is less than 1.
    """
    if persistence < 1:
        raise AnalysisError(f"persistence must be at least 1 row; got {persistence}.")
    x, y = _checked(steps, accuracy)
    if not len(x):
        return Crossing(np.nan, np.nan, np.nan, threshold, False, np.nan, np.nan, "the series has no rows")
    rows = min(persistence, len(y))
    best = float(np.lib.stride_tricks.sliding_window_view(y, rows).min(1).max())
    above = y >= threshold
    for first, stop in equal_runs(above):
        if above[first] and (stop - first >= persistence or stop == len(y)):
            low = float(x[first - 1]) if first else 0.0
            step, kept = float(x[first]), float(above[first:].mean())
            return Crossing(step, low, step, threshold, stop - first >= persistence, kept, best, None)
    reason = f"it does not reach {threshold:.0%} for {persistence} rows in a row; at best {best:.0%}"
    return Crossing(np.nan, np.nan, np.nan, threshold, False, np.nan, best, reason)


def sigmoid_midpoint(steps: ArrayLike, accuracy: ArrayLike, scale: str = "log", confidence: float = 0.95) -> SigmoidFit:
    """Return the midpoint m of the sigmoid that fits an accuracy best, by least squares.

        accuracy(x) = start + (end - start) / (1 + exp(-(x - m) / s)),       x = ln(step), or the step itself

    with both levels in [0, 1] and s > 0. A grid of (m, s), on which the levels have a closed form,
    starts the fit, so it does not stop in a local minimum.

    The interval is m +- t times the standard error, from the covariance ``B J' V J B``, ``B = (J'J)^-1``, J the
    derivatives of the fit. A share is noisy on the slope and quiet at levels near 0 and 1, so V is phi a (1 - a), a
    the fit, with phi from the residuals. Neighbouring rows of a training are alike: with r the lag-one autocorrelation
    of the residuals, V is times (1 + r) / (1 - r). Where the rise from 10 to 90 % is shorter than the distance of the
    rows around it, the interval reaches from the last row before that rise to the first one after. It covers the truth
    about as often as it says for independent noise; where the accuracy itself wanders slowly, with r near 0.6, some
    80 % instead of 95 %.

    Args:
        steps: Ascending, ``(row,)``. In the log scale rows at step 0 are left out.
        accuracy: Shares, ``(row,)``; rows of NaN are left out.
        scale: ``"log"`` or ``"linear"``.
        confidence: Of the interval.

    Returns:
        The fit. There is no midpoint, and a reason, with fewer than 6 rows; if the accuracy rises by less than
        `LEAST_RISE` (never, or before the first row); if the sigmoid explains less than `LEAST_EXPLAINED` of the
        variance (it rises and falls); or if the midpoint lies outside the rows.

    Raises:
        AnalysisError: If the arrays do not fit each other, the steps do not ascend, or an argument is out of range.
    """
    if scale not in SCALES:
        raise AnalysisError(f"the scale must be one of {', '.join(SCALES)}; got {scale!r}.")
    if not 0 < confidence < 1:
        raise AnalysisError(f"the confidence must lie between 0 and 1; got {confidence}.")
    steps_kept, y = _checked(steps, accuracy)
    if scale == "log":
        steps_kept, y = steps_kept[steps_kept > 0], y[steps_kept > 0]
    x = np.log(steps_kept) if scale == "log" else steps_kept
    if len(np.unique(x)) < _PARAMETERS + 2:
        return _no_midpoint(f"a sigmoid needs at least {_PARAMETERS + 2} rows at different steps; there are {len(x)}")
    rise = y.max() - y.min()
    if rise < LEAST_RISE:
        return _no_midpoint(f"it stays between {y.min():.0%} and {y.max():.0%}")
    gaps = np.diff(np.unique(x))
    found = _fit(x, y, gaps.min() / 10)
    residuals = y - _sigmoid(found, x)
    middle, start, end = found[0], found[2], found[3]
    explained = 1 - float(residuals @ residuals / ((y - y.mean()) @ (y - y.mean())))
    s = float(np.exp(found[1]))
    width = float(np.exp(2 * np.log(9) * s) if scale == "log" else 2 * np.log(9) * s)
    described = {"start": float(start), "end": float(end), "width": width, "explained": explained}
    if end < start:
        return _no_midpoint(f"it falls, from {start:.0%} to {end:.0%}", **described)
    if end - start < LEAST_RISE:
        return _no_midpoint(f"the fitted rise is from {start:.0%} to {end:.0%} only", **described)
    if explained < LEAST_EXPLAINED:
        return _no_midpoint(f"a sigmoid explains {max(explained, 0):.0%} of the variance only", **described)
    if not x[0] < middle < x[-1]:
        return _no_midpoint("the midpoint of the rise lies outside the recorded steps", **described)
    after = int(np.searchsorted(x, middle))
    if 2 * np.log(9) * s < x[after] - x[after - 1]:
        # Any midpoint between the levels fits as well: derivatives at one of them say nothing.
        done = expit((x - middle) / s)
        low, high = x[done < 0.1].max(initial=x[0]), x[done > 0.9].min(initial=x[-1])
    else:
        half = student.ppf((1 + confidence) / 2, len(x) - _PARAMETERS) * _standard_error(found, x, residuals)
        low, high = middle - half, middle + half
    ends = np.clip([low, high], x[0], x[-1])
    step, low, high = (float(value) for value in (np.exp if scale == "log" else np.asarray)([middle, *ends]))
    return SigmoidFit(step, low, high, **described, reason=None)


def _checked(steps: ArrayLike, accuracy: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(steps, dtype=float), np.asarray(accuracy, dtype=float)
    if x.ndim != 1 or x.shape != y.shape:
        raise AnalysisError(f"steps and accuracy must both be (row,), of the same length; got {x.shape} and {y.shape}.")
    if (np.diff(x) < 0).any():
        raise AnalysisError("steps must ascend; sort the series by step.")
    known = np.isfinite(y)
    return x[known], y[known]


def _no_midpoint(reason: str, **described: float) -> SigmoidFit:
    blank = dict.fromkeys(["start", "end", "width", "explained"], np.nan)
    return SigmoidFit(np.nan, np.nan, np.nan, **{**blank, **described}, reason=reason)


def _sigmoid(parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
    middle, log_s, start, end = parameters
    return start + (end - start) * expit((x - middle) / np.exp(log_s))


def _jacobian(parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
    middle, log_s, start, end = parameters
    z = (x - middle) / np.exp(log_s)
    p = expit(z)
    slope = (end - start) * p * (1 - p)
    return np.stack([-slope / np.exp(log_s), -slope * z, 1 - p, p], axis=1)


def _fit(x: np.ndarray, y: np.ndarray, narrowest: float) -> np.ndarray:
    """Return midpoint, ln s, start and end level of the best sigmoid."""
    reach = x[-1] - x[0]
    middles = np.linspace(x[0], x[-1], _MIDPOINTS)
    best, least = np.array([x.mean(), np.log(reach / 8), y.min(), y.max()]), np.inf
    for s in np.geomspace(narrowest, reach / 2, _WIDTHS):
        p = expit((x - middles[:, None]) / s)
        centred, above = p - p.mean(1, keepdims=True), y - y.mean()
        spread = (centred**2).sum(1)
        rises = np.clip(centred @ above / np.where(spread > 0, spread, np.inf), 0, 1)
        errors = ((above - rises[:, None] * centred) ** 2).sum(1)
        index = int(errors.argmin())
        if errors[index] < least:
            start = y.mean() - rises[index] * p[index].mean()
            best, least = np.array([middles[index], np.log(s), start, start + rises[index]]), errors[index]
    bounds = ([x[0] - reach, np.log(narrowest) - 1, 0, 0], [x[-1] + reach, np.log(reach), 1, 1])

    def misfit(parameters: np.ndarray) -> np.ndarray:
        return _sigmoid(parameters, x) - y

    def derivatives(parameters: np.ndarray) -> np.ndarray:
        return _jacobian(parameters, x)

    inside = np.clip(best, np.add(bounds[0], 1e-9), np.subtract(bounds[1], 1e-9))
    solution = least_squares(
        misfit, inside, jac=derivatives, bounds=bounds, x_scale=np.array([reach, 1, 1, 1]), max_nfev=200
    )
    return solution.x


def _standard_error(parameters: np.ndarray, x: np.ndarray, residuals: np.ndarray) -> float:
    """Return the standard error of the midpoint, for the noise of shares, whose neighbours are alike."""
    jacobian = _jacobian(parameters, x)
    bread = np.linalg.pinv(jacobian.T @ jacobian)
    fitted = _sigmoid(parameters, x)
    shape = fitted * (1 - fitted)
    # A hundredth of the largest: levels at 0 and 1 are quiet, not free of noise.
    shape += 0.01 * shape.max() + 1e-12
    phi = residuals @ residuals / shape.sum() * len(x) / (len(x) - _PARAMETERS)
    standard = residuals / np.sqrt(shape)
    # Residuals of a fit are a little less alike than the noise is: 2 / rows makes up for that.
    alike = standard[1:] @ standard[:-1] / max(standard @ standard, 1e-300) + 2 / len(x)
    alike = np.clip(alike, 0, 0.9)
    meat = (jacobian.T * shape) @ jacobian * phi * (1 + alike) / (1 - alike)
    return float(np.sqrt(max((bread @ meat @ bread)[0, 0], 0)))
