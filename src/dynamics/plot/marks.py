"""Small marks that several panels use: tooltips, labels beside a panel, marks laid out by pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from dynamics.plot.palette import LABEL_GAP, MUTED, WIDTH, layer_colours

FEW = 24
"""So many components can all be named in a panel; of more, only some."""
KINDS = ("head", "mlp")
KIND_NAMES = "datum.label === 'mlp' ? 'MLP' : 'head'"
"""The expression of the kinds' names in a legend."""
_LEGEND_LAYERS = 8


def number(field: str, pattern: str = ".3~g") -> str:
    """Return the expression that writes a field's number, or says that it is undefined instead of showing a 0."""
    return f"isValid(datum.{field}) ? format(datum.{field}, '{pattern}') : 'undefined'"


def interval(low: str, high: str, pattern: str = "+.2~f") -> str:
    """Return the expression that writes an interval between two fields, or says that it is undefined."""
    ends = " + ' to ' + ".join(f"format(datum.{field}, '{pattern}')" for field in (low, high))
    return f"isValid(datum.{low}) ? {ends} : 'undefined'"


def bands(
    base: alt.Chart, low: str, high: str, y: alt.Y, opacity: float = 1, alone: float = 5
) -> tuple[alt.Chart, alt.Chart]:
    """Return a band between two fields along the steps, with gaps where they are missing.

    A row between two gaps, which `lonely` marks, has no width: it is a line of its own.

    Args:
        base: A chart with its x and colour.
        low: The lower field.
        high: The upper one.
        y: The vertical axis that the band shares.
        opacity: Of the band.
        alone: Width of that line, in pixels.
    """
    y = y.copy()
    y["shorthand"] = f"{low}:Q"
    base = base.encode(y=y, y2=f"{high}:Q")
    single = base.transform_filter(f"datum.lonely && isValid(datum.{low})")
    return base.mark_area(opacity=opacity), single.mark_rule(strokeWidth=alone, opacity=opacity)


def lonely(table: pd.DataFrame, field: str, groups: str | list[str]) -> pd.Series:
    """Return which rows have a value while the rows before and after in their group have none."""
    known = table[field].notna()
    keys = [table[name] for name in ([groups] if isinstance(groups, str) else groups)]
    before, after = (known.groupby(keys).shift(by, fill_value=False) for by in (1, -1))
    return known & ~before & ~after


def tooltip(title: str, lines: Mapping[str, str]) -> alt.ExprRef:
    """Return a tooltip from expressions: a title, and a line for each name."""
    body = ", ".join(f"'{name}': {expression}" for name, expression in lines.items())
    return alt.ExprRef(f"{{'title': {title}, {body}}}")


def labels(texts: Sequence[Mapping[str, Any]], side: str = "right", **style: Any) -> alt.Chart:
    """Return labels beside a panel.

    Args:
        texts: The labels: ``text``, ``y`` in pixels from the panel's top, and ``colour``.
        side: ``"right"`` or ``"left"`` of the panel.
        style: Further properties of the text.
    """
    right = side == "right"
    return (
        alt.Chart(alt.Data(values=[dict(text) for text in texts]))
        .mark_text(
            x=WIDTH + LABEL_GAP if right else -LABEL_GAP,
            y=alt.ExprRef("datum.y"),
            align="left" if right else "right",
            baseline="middle",
            **{"limit": 150, **style},
        )
        .encode(text="text:N", color=alt.Color("colour:N", scale=None))
    )


def spread(wanted: Sequence[float], least: float, high: float) -> list[float]:
    """Return positions near the wanted ones, in the same order from top to bottom, at least so far apart.

    Args:
        wanted: Positions, in pixels from the top.
        least: Smallest distance between two of them.
        high: Lowest place on the panel.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = dict.fromkeys(order, 0.0)
    floor = float("-inf")
    for index in order:
        placed[index] = floor = max(wanted[index], floor + least)
    ceiling = max(high, least * (len(wanted) - 1))
    for index in reversed(order):
        placed[index] = ceiling = min(placed[index], ceiling)
        ceiling -= least
    return [placed[index] for index in range(len(wanted))]


def pixels(field: str, height: float) -> alt.Y:
    """Return the encoding of a field that counts pixels from the panel's top."""
    return alt.Y(field, type="quantitative", scale=alt.Scale(domain=[0, height], range=[0, height]), axis=None)


def rules(height: float, at: Sequence[float], **style: Any) -> alt.Chart:
    """Return horizontal lines across a panel, at pixels from its top."""
    return (
        alt.Chart(alt.Data(values=[{"y": y} for y in at]))
        .mark_rule(**{"color": MUTED, "strokeWidth": 1, **style})
        .encode(y=pixels("y", height))
    )


def point_size(count: int, size: float) -> float:
    """Return the area of a line's points: as given while each has room, and smaller for many.

    Points cannot be left out: one between two gaps has no line to show it.
    """
    return size * min(1.0, max(0.12, (60 / max(count, 1)) ** 2))


def layer_colour(cells: pd.DataFrame, legend: str | None) -> alt.Color:
    """Return the encoding of a component's own colour, that of its layer, the same in all panels.

    Args:
        cells: A table with the ``layer`` of all components.
        legend: Show what the colours mean, by symbols of this shape; of many layers, only some. ``None``: do not.
    """
    layers = sorted(set(cells["layer"]))
    stride = -(-len(layers) // _LEGEND_LAYERS)
    shown = alt.Legend(title="layer", values=layers[::stride], symbolType=legend or "", titleFontWeight="normal")
    return alt.Color(
        "layer:N",
        scale=alt.Scale(domain=layers, range=layer_colours(len(layers))),
        legend=shown if legend else None,
    )


def rank_ticks(count: int) -> list[int]:
    """Return the ranks that an axis names: the first, the last, and round ones between that leave room for it."""
    every = 5 * max(1, round(count / 25)) if count > 9 else 1
    return sorted({1, count, *(rank for rank in range(every, count, every) if count - rank >= every / 2 and rank > 1)})
