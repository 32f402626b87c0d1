"""The step axis that all panels share, and data in the form in which a chart carries it."""

from __future__ import annotations

import math
from copy import copy
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.plot.palette import WIDTH

_FEW = 8
"""About how many ticks a linear axis has."""
_DECADE = 10
"""An axis that ends before so many units is nearly linear all along."""
_DIGIT = 6.2
"""Width of a digit of the axis, in pixels."""
_WIDEST = 20
"""The last cell takes at most this part of the axis."""
DIGITS = 5
"""Significant digits that reach the picture."""

Data = dict[str, list[dict[str, Any]]]
"""Data sets by name, as a specification carries them."""
Panel = tuple[alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart, Data]
"""A panel, and the data sets that it needs."""


class StepAxis:
    """The horizontal axis: optimizer steps, from the first to the last that any panel shows.

    Args:
        snapshots: Step of each snapshot, ascending.
        logged: Steps of everything else that is shown.
        kind: ``"log"`` or ``"linear"``. A logarithmic axis is linear up to the first snapshot after step 0, so that it
            has a place for step 0, too.
    """

    def __init__(self, snapshots: np.ndarray, logged: np.ndarray, kind: str) -> None:
        self.kind, self.title = kind, ""
        # Where the axis turns from linear to logarithmic: at the first step that tells something new.
        self.unit = int(min(snapshots[snapshots > 0], default=1))
        self._ends = dict(zip(snapshots.tolist(), snapshots[1:].tolist(), strict=False))
        self._ends[int(snapshots[-1])] = last = self._last_end(snapshots)
        self.low, self.high = int(min([snapshots[0], *logged])), int(max([last, *logged]))

    def ends(self, steps: pd.Series) -> pd.Series:
        """Return where the cells of snapshots end: at the next snapshot."""
        return steps.map(self._ends)

    def upper(self) -> StepAxis:
        """Return the axis of a panel that has another below it: the steps are not named."""
        axis = copy(self)
        axis.title = ""
        return axis

    def lowest(self) -> StepAxis:
        """Return the axis as the lowest panel shows it: with its name."""
        named_axis = copy(self)
        named_axis.title = "optimizer step"
        return named_axis

    def x(self, field: str = "step") -> alt.X:
        """Return the encoding of a field along the axis."""
        scale: dict[str, Any] = {"domain": [self.low, self.high], "nice": False, "type": "linear"}
        axis: dict[str, Any] = {"title": self.title or None, "format": ",d", "labelOverlap": True, "labelFlush": False}
        if self.kind == "log":
            # Vega's logarithmic axis with a place for 0.
            scale |= {"type": "symlog", "constant": self.unit}
        if self.kind == "log" and self.high >= _DECADE * self.unit:
            axis["values"] = self._ticks()
        elif self.high - self.low <= _FEW:
            axis["values"] = list(range(self.low, self.high + 1))
        else:
            axis["tickCount"] = _FEW
        return alt.X(field, type="quantitative", scale=alt.Scale(**scale), axis=alt.Axis(**axis))

    def _last_end(self, snapshots: np.ndarray) -> int:
        # The last snapshot has no next one: its cell is as wide as the one before, but not so wide as to stand out.
        first, last = int(snapshots[0]), int(snapshots[-1])
        if len(snapshots) < 2:
            return last + 1
        if self.kind == "log":
            low, high = math.log1p(first / self.unit), math.log1p(last / self.unit)
            widest = self.unit * math.expm1(high + (high - low) / _WIDEST) - last
        else:
            widest = (last - first) / _WIDEST
        return last + max(1, round(min(last - int(snapshots[-2]), widest)))

    def _place(self, step: int) -> float:
        """Return where a step lies on the logarithmic axis, in pixels."""
        at = (math.log1p(x / self.unit) for x in (step, self.low, self.high))
        step_at, low_at, high_at = at
        return WIDTH * (step_at - low_at) / (high_at - low_at)

    def _ticks(self) -> list[int]:
        """Return 0, and as many round steps of each decade as have room for their labels."""
        decades = range(int(math.log10(self.unit)), int(math.log10(self.high)) + 1)
        for leading, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
            marks = [first * 10**decade for decade in decades[::every] for first in leading]
            ticks = [tick for tick in (0, *marks) if self.low <= tick <= self.high and (tick == 0 or tick >= self.unit)]
            places = [self._place(tick) for tick in ticks]
            widths = [_DIGIT * len(f"{tick:,}") for tick in ticks]
            pairs = zip(pairwise(places), pairwise(widths), strict=True)
            if all(b - a >= (left + right) / 2 + _DIGIT for (a, b), (left, right) in pairs):
                break
        return ticks


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table as rows that JSON can hold; what is missing or not finite is ``None``."""
    [lists] = columns(table)
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def columns(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a large table as one row of lists, a third of the size; `flattened` makes rows of it in the chart."""
    return [{str(name): _values(table[name]) for name in table}]


def merged(data: Data, more: Data) -> Data:
    """Return both groups of data sets; where both hold `columns` by one name, that gets the columns of both."""
    result = data | more
    for name in data.keys() & more.keys():
        pair = [data[name], more[name]]
        if all(len(table) == 1 and all(isinstance(value, list) for value in table[0].values()) for table in pair):
            result[name] = [data[name][0] | more[name][0]]
    return result


def flattened(name: str, table: pd.DataFrame) -> alt.Chart:
    """Return a chart over the data set ``name``, which holds `columns` of the table."""
    return alt.Chart(alt.NamedData(name=name)).transform_flatten([str(column) for column in table])


def named(name: str) -> alt.Chart:
    """Return a chart over the data set ``name``, which holds `rows`."""
    return alt.Chart(alt.NamedData(name=name))


def _values(column: pd.Series) -> list[Any]:
    if not pd.api.types.is_float_dtype(column.dtype):
        return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
    # JSON knows no NaN and no infinity.
    values = column.to_numpy(dtype=float, na_value=np.nan)
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values]


def vega_lite_version() -> str:
    """Return the version of Vega-Lite that Altair writes for, as vl-convert names it: ``6.4``."""
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
