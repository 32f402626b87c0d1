"""Marks below accuracy: when each series rises, and in words whether the delay between them is grokking."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from dynamics.analysis.delays import GROKKING, NO_GROKKING, UNDECIDED
from dynamics.plot.axes import StepAxis, named
from dynamics.plot.marks import interval, labels, number, tooltip
from dynamics.plot.palette import FAINT, MUTED

if TYPE_CHECKING:
    from dynamics.plot.tables import Grokking

LANE = 14.0
"""Height of a series' lane, in pixels."""
_LETTERS = 140
"""About as many fit in a line."""
_ANSWERS = {GROKKING: "yes", NO_GROKKING: "no", UNDECIDED: "undecided"}
Style = Mapping[str, tuple[str, str]]
"""Name and colour of every series."""


def marked(grokking: Grokking) -> pd.DataFrame:
    """Return the times that there are, with the lane of each series; a series without any has no lane."""
    if grokking.times.empty:
        return grokking.times
    found = grokking.times.dropna(subset="step")
    lanes = {name: lane for lane, name in enumerate(dict.fromkeys(found["series"]))}
    symbols = found["part"].map({"train": "t_mem", "held out": "t_gen"})
    return found.assign(symbol=symbols, lane=found["series"].map(lanes).astype("int64"))


def grokking_marks(grokking: Grokking, style: Style, axis: StepAxis, height: float) -> tuple[list[alt.Chart], float]:
    """Return marks for t_mem and t_gen, over the data set ``times``, and how high the panel is with them.

    A lane for each series, below the panel: a diamond where it reaches its threshold and stays for a while (hollow:
    too few rows confirm it), with a dotted line up to the curves; a disc at half of its fitted sigmoid's rise, on a
    line as long as the interval of that.

    Args:
        grokking: What was found.
        style: Name and colour of every series.
        axis: The step axis.
        height: Of the panel without lanes, in pixels.
    """
    found = marked(grokking)
    if found.empty:
        return [], height
    names = list(dict.fromkeys(found["series"]))
    top = height + 6
    colours = [_readable(style[name][1]) for name in names]
    y = alt.ExprRef(f"{top + LANE / 2:g} + {LANE:g} * datum.lane")
    scale = alt.Scale(domain=names, range=colours)
    base = named("times").encode(x=axis.x(), color=alt.Color("series:N", legend=None, scale=scale))
    crossings = base.transform_filter("datum.method === 'threshold'")
    rises = base.transform_filter("datum.method === 'sigmoid'")
    texts = {name: style[name][0] for name in names}
    title = f"datum.symbol + ' by ' + datum.method + ', ' + {texts!r}[datum.series]"
    step = {"step": "format(datum.step, ',.0f')"}
    crossed = tooltip(
        title,
        {
            **step,
            "reached": "format(datum.threshold, '.0%')",
            "not yet at step": "datum.low < datum.step ? format(datum.low, ',.0f') : 'first row'",
            "at or above it since": "format(datum.kept, '.0%') + ' of rows'",
            "confirmed": "datum.confirmed ? 'yes' : 'no, too few rows follow'",
        },
    )
    rose = tooltip(
        title,
        {
            **step,
            f"{grokking.rule.confidence:.0%} interval": interval("low", "high", ",.0f"),
            "rises": "format(datum.start, '.0%') + ' to ' + format(datum.end, '.0%')",
            "variance explained": number("explained", ".0%"),
        },
    )
    layers = [
        crossings.mark_rule(y=0, y2=height, strokeDash=[1, 3], strokeWidth=1.2, opacity=1, clip=True),
        rises.mark_rule(y=y, strokeWidth=3, opacity=0.4, clip=True, tooltip=rose).encode(x=axis.x("low"), x2="high:Q"),
        rises.mark_point(y=y, size=46, opacity=1, shape="circle", filled=True, clip=True, tooltip=rose),
        crossings.mark_point(
            y=y, size=46, opacity=1, shape="diamond", strokeWidth=1.4, clip=True, tooltip=crossed
        ).encode(
            fill=alt.condition("datum.confirmed", alt.Fill("series:N", legend=None, scale=scale), alt.value("white"))
        ),
        labels(
            [
                {
                    "text": f"{symbol} {style[name][0]}",
                    "y": top + LANE * (lane + 0.5),
                    "colour": _readable(style[name][1]),
                }
                for name, symbol, lane in found[["series", "symbol", "lane"]].drop_duplicates().values
            ],
            fontSize=10.5,
        ),
    ]
    return layers, top + LANE * len(names)


def grokking_words(grokking: Grokking, style: Style) -> list[str]:
    """Return the lines that say what the marks are, which are missing, and whether it is grokking."""
    times, delays, rule, note = grokking
    if times.empty:
        return textwrap.wrap(f"Grokking: not judged; {note}", _LETTERS, break_on_hyphens=False)
    found = marked(grokking)
    if found.empty:
        return ["No accuracy rises: neither t_mem nor t_gen, so nothing can be said of grokking."]
    hollow = "; hollow: too few rows follow" if not found["confirmed"].all() else ""
    lines = [
        f"Diamond: reaches {rule.train_threshold:.0%} in training (t_mem), {rule.held_out_threshold:.0%} held out "
        f"(t_gen), and stays{hollow}. Disc: half of a fitted sigmoid's rise, with its {rule.confidence:.0%} interval."
    ]
    lines.append(f"Grokking, t_gen at least {rule.factor:g} t_mem? {_verdict(delays, style)}")
    more = [note] if note else []
    open_ = [name for name in dict.fromkeys(times["series"]) if name not in set(found["series"])]
    if open_:
        more.append(f"No time for {', '.join(style[name][0] for name in open_)}.")
    return [*lines, *([" ".join(more)] if more else [])]


def _verdict(delays: pd.DataFrame, style: Style) -> str:
    answers = delays["verdict"].map(_ANSWERS)
    if delays["reason"].nunique() == 1:
        return f"{answers.iloc[0].capitalize()}: {delays['reason'].iloc[0]}."
    if answers.nunique() == 1:
        return f"{answers.iloc[0].capitalize()}, for every series and by both marks."
    words = [
        f"{style[str(name)][0]} {' / '.join(answers[rows.index])}"
        for name, rows in delays.groupby("series", sort=False)
    ]
    return f"By diamond / disc: {', '.join(words)}."


def _readable(colour: str) -> str:
    # A line may be faint, letters and small marks may not.
    return MUTED if colour == FAINT else colour
