"""Panel: ranks by cause against ranks by gradient at one snapshot, which a slider chooses."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.analysis.importance import SCORES
from dynamics.plot.axes import Panel, columns, flattened
from dynamics.plot.marks import FEW, KIND_NAMES, KINDS, layer_colour, number, rank_ticks, tooltip
from dynamics.plot.palette import BLOAT, FAINT, HERO, INK, MUTED, SHADE
from dynamics.plot.parameters import AT_SNAPSHOT, BY_SCORE, ROLES_BY, of_score, selected, step_shown
from dynamics.plot.scatter_labels import ABOVE, BELOW, LEFT, NOWHERE, OFFSET, RAISE, RIGHT, label_places

SIDE = 480
"""Width and height of the square, in pixels."""
_READOUT = SIDE + 40
"""Where the numbers stand, beside the square."""
_TINTS = {"hero": "#e6f1f8", "bloat": "#fdeee5"}
"""The regions of the roles, in their own colours, but so light that points stand out."""
_NAMES = np.array([[0.0, 0.0, 105.0, 24.0], [SIDE - 112.0, SIDE - 24.0, SIDE, SIDE]])
"""Where the names of the regions lie: their edges in pixels, from the left and the top."""
_BY_SCORE = ("causal", "rank_causal", "delta", "role", "p_hero", "p_bloat", "place")
_NEEDED = ("snapshot", "step", "component", "layer", "kind", "gradient", "rank_gradient")


def scatter_panel(cells: pd.DataFrame, snapshots: pd.DataFrame) -> Panel:
    """Draw every component at its two ranks, in the band of aligned ones or beyond, and the snapshot's numbers beside.

    Args:
        cells: `Tables.cells`.
        snapshots: `Tables.snapshots`.
    """
    n = cells["component"].nunique()
    threshold = float(snapshots["threshold"].iloc[0])
    low, high = 1 - max(0.5, n / 40), n + max(0.5, n / 40)
    radius = 6.0 if n <= FEW else max(3.0, 6.0 * (FEW / n) ** 0.5)
    cells = cells[[*_NEEDED, *(f"{name}_{score}" for score in SCORES for name in _BY_SCORE if name != "place")]]
    cells = cells.assign(**{f"place_{score}": _places(cells, score, n, low, high, radius) for score in SCORES})
    scale = alt.Scale(domain=[low, high], nice=False)

    def axis(title: str) -> alt.Axis:
        return alt.Axis(values=rank_ticks(n), title=title, format="d", labelFlush=False)

    chosen = flattened("cells", cells).transform_filter(f"datum.snapshot === {AT_SNAPSHOT}")
    chosen = chosen.transform_calculate(**of_score(_BY_SCORE)).transform_filter("datum.role !== 'undefined'")
    chosen = chosen.encode(
        x=alt.X("rank_gradient:Q", scale=scale, axis=axis(f"rank of gradient magnitude G ({n}: largest)")),
        y=alt.Y("rank_causal:Q", scale=scale, axis=axis(f"rank of causal importance C ({n}: needed most)")),
    )
    hint = tooltip(
        "datum.component + ', step ' + format(datum.step, ',d')",
        {
            "G": number("gradient"),
            "rank of G": number("rank_gradient", ".1~f"),
            "C": f"({number('causal')}) + ' (by ' + {BY_SCORE} + ')'",
            "rank of C": number("rank_causal", ".1~f"),
            "Δ = rank of G − rank of C": number("delta", "+.1~f"),
            "role": "datum.role",
            "probability of hero": number("p_hero", ".0%"),
            "probability of bloat": number("p_bloat", ".0%"),
        },
    )
    pick = selected()
    points = (
        chosen.mark_point(filled=True, size=np.pi * radius**2, tooltip=hint, cursor="pointer")
        .encode(
            color=layer_colour(cells, legend="circle"),
            shape=alt.Shape(
                "kind:N",
                scale=alt.Scale(domain=list(KINDS), range=["circle", "square"]),
                legend=alt.Legend(title="kind", titleFontWeight="normal", labelExpr=KIND_NAMES),
            ),
            stroke=alt.Stroke(
                "role:N",
                scale=alt.Scale(domain=["hero", "bloat", "aligned"], range=[HERO, BLOAT, "white"]),
                legend=None,
            ),
            strokeWidth=alt.when(alt.datum.role == "aligned").then(alt.value(1)).otherwise(alt.value(0.37 * radius)),
            opacity=alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.22)),
        )
        .add_params(pick)
    )
    chart = alt.layer(
        *_regions(low, high, threshold, scale),
        points,
        _labels(chosen, pick),
        *_readout(snapshots),
    ).properties(
        width=SIDE,
        height=SIDE,
        title=alt.Title(
            text=alt.ExprRef(
                f"'Who lies off the diagonal at step ' + {step_shown(_steps(snapshots))} + "
                f"'? (C by ' + {BY_SCORE} + ')'"
            ),
            subtitle="A point is a component, outlined in the colour of its role. On the diagonal both rankings agree; "
            f"in the grey band they are fewer than {threshold:g} ranks apart.",
        ),
    )
    return chart, {"cells": columns(cells), "snapshots": columns(snapshots)}


def _steps(snapshots: pd.DataFrame) -> list[int]:
    return snapshots[snapshots["score"] == snapshots["score"].iloc[0]]["step"].tolist()


def _regions(low: float, high: float, threshold: float, scale: alt.Scale) -> list[alt.Chart]:
    """Return the regions of the roles with their names, the band between them, and the diagonal."""
    # All corners are cut at the edges of the square here: what sticks out of it would make room for itself.
    places = sorted({low, high, *(min(max(edge, low), high) for edge in (low + threshold, high - threshold))})

    def within(value: float) -> float:
        return min(max(value, low), high)

    edges = pd.DataFrame(
        {
            "x": places,
            "upper": [within(place + threshold) for place in places],
            "lower": [within(place - threshold) for place in places],
            "top": high,
            "bottom": low,
        }
    )
    data = alt.Data(values=edges.to_dict("records"))
    x = alt.X("x:Q", scale=scale)
    drawn = [
        alt.Chart(data).mark_area(color=colour).encode(x=x, y=alt.Y(f"{above}:Q", scale=scale), y2=f"{below}:Q")
        for above, below, colour in (
            ("top", "upper", _TINTS["hero"]),
            ("lower", "bottom", _TINTS["bloat"]),
            ("upper", "lower", SHADE),
        )
    ]
    ends = alt.Data(values=[{"x": low, "y": low}, {"x": high, "y": high}])
    drawn.append(
        alt.Chart(ends)
        .mark_line(color=FAINT, strokeWidth=1.2, strokeDash=[4, 4])
        .encode(x=x, y=alt.Y("y:Q", scale=scale))
    )
    # A threshold of most of the ranks leaves no room for names.
    if high - low > 1.6 * threshold:
        name = alt.Chart(alt.Data(values=[{}]))
        style: dict[str, Any] = {"baseline": "middle", "fontWeight": 600, "fontSize": 12.5}
        drawn += [
            name.mark_text(text="Hidden Heroes", x=10, y=14, align="left", color=HERO, **style),
            name.mark_text(text="Gradient Bloats", x=SIDE - 10, y=SIDE - 14, align="right", color=BLOAT, **style),
        ]
    return drawn


def _places(cells: pd.DataFrame, score: str, n: int, low: float, high: float, radius: float) -> np.ndarray:
    """Return where each component's label goes at each snapshot; of many components, only roles have one."""
    few = n <= FEW
    places = np.full(len(cells), NOWHERE)
    texts = cells["component"].tolist()
    x, y, delta = (cells[name].to_numpy() for name in ("rank_gradient", f"rank_causal_{score}", f"delta_{score}"))
    roles = cells[f"role_{score}"].to_numpy()
    for start in range(0, len(cells), n):
        part = slice(start, start + n)
        order = np.argsort(-np.abs(delta[part]), kind="stable")
        named = roles[part][order] != "undefined" if few else np.isin(roles[part][order], ["hero", "bloat"])
        if named.any():
            across, down = (x[part] - low) / (high - low) * SIDE, (high - y[part]) / (high - low) * SIDE
            places[part] = label_places(
                across, down, texts[part], order[named][:FEW], SIDE, radius, _NAMES, everywhere=few
            )
    return places


def _labels(chosen: alt.Chart, pick: alt.Parameter) -> alt.Chart:
    """Return the components' names; one that has no place of its own shows above its point while it is selected."""
    dx = f"datum.place === {RIGHT} ? {OFFSET} : datum.place === {LEFT} ? {-OFFSET} : 0"
    align = f"datum.place === {RIGHT} ? 'left' : datum.place === {LEFT} ? 'right' : 'center'"
    dy = f"datum.place === {BELOW} ? {RAISE} : datum.place === {ABOVE} || datum.place === {NOWHERE} ? {-RAISE} : 0"
    return chosen.mark_text(
        baseline="middle",
        fontSize=10,
        color=INK,
        align=alt.ExprRef(align),
        dx=alt.ExprRef(dx),
        dy=alt.ExprRef(dy),
    ).encode(
        text="component:N",
        opacity=alt.when(pick, empty=False)
        .then(alt.value(1))
        .when(pick & f"datum.place !== {NOWHERE}")
        .then(alt.value(0.85))
        .otherwise(alt.value(0)),
    )


def _readout(snapshots: pd.DataFrame) -> list[alt.Chart]:
    """Return the numbers of the snapshot, as lines beside the square, or why there is nothing in it."""
    one = flattened("snapshots", snapshots).transform_filter(
        f"datum.snapshot === {AT_SNAPSHOT} && datum.score === {ROLES_BY}"
    )
    interval = (
        "isValid(datum.low) ? '95 % interval ' + format(datum.low, '+.2f') + ' to ' + format(datum.high, '+.2f') : "
        "'no interval'"
    )
    lines = [
        ("'Step ' + format(datum.step, ',d')", INK, 15, 0),
        ("isValid(datum.rho) ? 'ρ = ' + format(datum.rho, '+.2f') : 'ρ is undefined'", INK, 15, 26),
        (f"isValid(datum.rho) ? {interval} : ''", MUTED, 12, 46),
        ("isValid(datum.heroes) ? datum.heroes + ' Hidden Hero' + (datum.heroes === 1 ? '' : 'es') : ''", HERO, 13, 78),
        (
            "isValid(datum.bloats) ? datum.bloats + ' Gradient Bloat' + (datum.bloats === 1 ? '' : 's') : ''",
            BLOAT,
            13,
            98,
        ),
        ("isValid(datum.rho) ? 'by chance ' + format(datum.chance, '.3~g') + ' of each' : ''", MUTED, 12, 118),
        ("'accuracy on the probe ' + format(datum.accuracy, '.1%')", MUTED, 12, 150),
        (
            "format(datum.ties, '.0%') + ' of components tie in C' + (datum.ties > 0 ? ': same height' : '')",
            MUTED,
            12,
            170,
        ),
    ]
    drawn = [
        one.transform_calculate(text=text)
        .mark_text(
            x=_READOUT,
            y=24 + y,
            align="left",
            baseline="middle",
            fontSize=size,
            color=colour,
            fontWeight=600 if size > 12 else "normal",
        )
        .encode(text="text:N")
        for text, colour, size, y in lines
    ]
    why = (
        one.transform_filter("!isValid(datum.rho)")
        .transform_calculate(
            text="split('Nothing to compare at this step: ρ is undefined, since; ' + datum.reason, '; ')"
        )
        .mark_text(x=SIDE / 2, y=SIDE / 2, lineHeight=18, fontSize=12.5, color=INK, baseline="middle")
        .encode(text="text:N")
    )
    return [*drawn, why]
