"""Panel: accuracy on the probe and in training."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from dynamics.analysis.accuracy import PROBE
from dynamics.analysis.windows import WINDOWS
from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.grokking_marks import grokking_marks, grokking_words, marked
from dynamics.plot.marks import labels, number, point_size, spread, tooltip
from dynamics.plot.palette import FAINT, GREEN, INK, MUTED, PURPLE, SERIES_COLOURS, SHADE, WIDTH

if TYPE_CHECKING:
    from dynamics.plot.tables import Grokking

HEIGHT = 150
# What our own module logs, in words. Metrics of other modules keep their names.
_KNOWN = {
    PROBE: ("probe", INK),
    "train/exact_match": ("training batches", FAINT),
    "id/exact_match": ("in distribution", GREEN),
    "ood/exact_match": ("OOD validation", PURPLE),
}
# Single training batches are few examples: their accuracy jumps.
_NOISY = re.compile("train", re.IGNORECASE)


def accuracy_panel(accuracy: pd.DataFrame, grokking: Grokking, axis: StepAxis) -> Panel:
    """Draw the accuracy table: the probe bold, single training batches thin, every line labelled at its end.

    Below it, when each series rises.
    """
    names = list(dict.fromkeys(accuracy["series"]))
    others = iter(SERIES_COLOURS * len(names))
    style = {}
    for name in names:
        style[name] = _KNOWN.get(name, (name, FAINT if _NOISY.match(name) else next(others)))
    colour = alt.Color("series:N", legend=None, scale=alt.Scale(domain=names, range=[style[name][1] for name in names]))
    base = named("accuracy").encode(x=axis.x(), y=_share("accuracy"), color=colour)
    noisy_rows = accuracy["series"].str.match(_NOISY)
    longest = int(accuracy["series"][~noisy_rows].value_counts().max())
    hint = tooltip(
        "datum.series",
        {"step": "format(datum.step, ',d')", "exact match": number("accuracy"), "averaged over": "datum.averaged"},
    )
    is_probe, is_noisy = f"datum.series === '{PROBE}'", f"test(/^{_NOISY.pattern}/i, datum.series)"
    layers = [
        base.transform_filter(is_noisy).mark_line(strokeWidth=1),
        base.transform_filter(f"!({is_noisy}) && !({is_probe})").mark_line(strokeWidth=1.5),
        base.transform_filter(f"!({is_noisy}) && !({is_probe})").mark_point(
            filled=True, size=point_size(longest, 12), opacity=1, tooltip=hint
        ),
        base.transform_filter(is_probe).mark_line(strokeWidth=2.4),
        base.transform_filter(is_probe).mark_point(filled=True, size=point_size(longest, 26), opacity=1, tooltip=hint),
    ]
    last = accuracy.dropna(subset="accuracy").groupby("series", sort=False).tail(1)
    places = spread([HEIGHT * (1 - min(max(value, 0), 1)) for value in last["accuracy"]], 14, HEIGHT)
    ends = [
        {"text": style[name][0], "y": y, "colour": MUTED if style[name][1] == FAINT else style[name][1]}
        for name, y in zip(last["series"], places, strict=True)
    ]
    low, high = WINDOWS["paper"]
    window = named("window").mark_rect(color=SHADE, opacity=1).encode(y=_share("low"), y2="high:Q")
    marks, height = grokking_marks(grokking, style, axis, HEIGHT)
    # Of what the marks are drawn in, the colours are not those of lines.
    drawn = alt.layer(window, *layers, labels(ends, fontSize=11.5), *marks).resolve_scale(color="independent")
    chart = drawn.properties(
        width=WIDTH,
        height=height,
        title=alt.Title(
            "Accuracy, and when it rises" if marks else "Accuracy",
            subtitle=[
                "An example counts when every one of its target tokens is right. Shaded: 20 to 75 %, where "
                "the paper compares G with C; near 0 and 100 % C is mostly ties.",
                *grokking_words(grokking, style),
            ],
        ),
    )
    data = {"accuracy": rows(accuracy), "window": [{"low": low, "high": high}]}
    return chart, data | ({"times": rows(marked(grokking))} if marks else {})


def _share(field: str) -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        # In pixels, since there may be more below.
        scale=alt.Scale(domain=[0, 1], range=[HEIGHT, 0]),
        axis=alt.Axis(title="exact match (share of examples)", format="%", values=[0, 0.25, 0.5, 0.75, 1]),
    )
