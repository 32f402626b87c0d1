"""Panels: what ablation, and what an attribution method, says of every component over training, with its sign."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from dynamics.analysis.importance import SCORES
from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import DIVERGING, MUTED, UNKNOWN, WIDTH
from dynamics.plot.parameters import METHOD, ROLES_BY, selected
from dynamics.plot.roles_panel import RasterLayout

_UNITS = {"exact_match": "accuracy", "loss": "nats"}
_DIMMED = 0.25
_LEGEND = 180
"""Length of the colour bar, in pixels."""
_AMONG_LARGEST = 0.98
"""The colours end at this quantile of the shares' sizes, so that a few cells do not make all others pale."""


def causal_map_panel(shares: pd.DataFrame, axis: StepAxis) -> Panel | None:
    """Draw C of every component over steps, as a share of the snapshot; ``None`` if the run has no attributions."""
    if shares.empty:
        return None
    return _panel(
        shares,
        axis,
        f"{ROLES_BY} === 'loss' ? datum.share_loss : datum.share_exact_match",
        f"'What ablation says: C by ' + ({ROLES_BY} === 'loss' ? 'loss' : 'accuracy')",
        "Green: the model needs the component; purple: it does better without.",
    )


def attribution_map_panel(shares: pd.DataFrame, axis: StepAxis) -> Panel | None:
    """Draw the chosen attribution of every component over steps; ``None`` if the run has none."""
    if shares.empty:
        return None
    *others, last = _methods(shares)
    share = " : ".join([*(f"{METHOD} === '{name}' ? datum.share_{name}" for name in others), f"datum.share_{last}"])
    return _panel(
        shares,
        axis,
        share,
        f"'What the gradient says: attribution by ' + {METHOD}",
        "Green: the component supports the answer; purple: it works against it. The scale is that of C.",
    )


def _methods(shares: pd.DataFrame) -> list[str]:
    names = [str(name).removeprefix("share_") for name in shares if str(name).startswith("share_")]
    return [name for name in names if name not in SCORES]


def _panel(shares: pd.DataFrame, axis: StepAxis, share: str, title: str, reading: str) -> Panel:
    layout = RasterLayout(shares.drop_duplicates("component"))
    drawn = shares.assign(end=axis.ends(shares["step"]), y=np.tile(layout.top, len(shares) // len(layout.top)))
    end = _end(shares)
    lines = {}
    for name in (*SCORES, *_methods(shares)):
        what = f"C, {_UNITS[name]}" if name in SCORES else f"{name}, nats"
        lines[what] = f"({number(f'value_{name}')}) + {_percent(f'share_{name}')}"
    hint = tooltip("datum.component + ', step ' + format(datum.step, ',d')", lines)
    selection = selected()
    framed = WIDTH / shares["step"].nunique() > 6 and layout.row > 7
    # Small values are seen, and keep their sign, when the colour goes with the root.
    top = float(np.sqrt(end))
    scale = alt.Scale(domain=[-top, -top / 2, 0, top / 2, top], range=list(DIVERGING), clamp=True)
    colour = alt.Color(
        "root:Q",
        scale=scale,
        legend=alt.Legend(
            orient="top",
            values=[-top, -top / 2, 0, top / 2, top],
            labelExpr="datum.value === 0 ? '0' : format(datum.value * abs(datum.value), '+.1~%')",
            gradientLength=_LEGEND,
            gradientThickness=9,
            title="share of the snapshot",
            titleFontWeight="normal",
            titleColor=MUTED,
            titleFontSize=11,
        ),
    )
    cells = (
        flattened("shares", drawn)
        .transform_calculate(y2=f"datum.y + {layout.row:g}", share=share)
        # Not null where there is none: Vega-Lite would leave the cell out.
        .transform_calculate(root="isValid(datum.share) ? (datum.share < 0 ? -1 : 1) * sqrt(abs(datum.share)) : 0")
        .mark_rect(tooltip=hint, cursor="pointer", stroke="white", strokeWidth=1 if framed else 0)
        .encode(
            x=axis.x(),
            x2="end:Q",
            y=pixels("y", layout.height),
            y2="y2:Q",
            color=alt.when("isValid(datum.share)").then(colour).otherwise(alt.value(UNKNOWN)),
            opacity=alt.condition(selection, alt.value(1), alt.value(_DIMMED)),
        )
        .add_params(selection)
    )
    small = min(10.5, max(8.5, layout.row - 1))
    layers = alt.layer(
        cells,
        labels(layout.component_labels(), "left", fontSize=small),
        labels(layout.layer_labels(), fontSize=11.5),
    )
    # Labels carry their colours themselves, and Vega-Lite cannot merge that with a scale of numbers.
    chart = layers.resolve_scale(color="independent").properties(
        width=WIDTH,
        height=layout.height,
        title=alt.Title(
            text=alt.ExprRef(title),
            subtitle=[
                f"{reading} Grey: undefined.",
                "Colour: the component's share of the sum of all sizes at its snapshot, by its root, so that small "
                f"ones are seen, up to ±{end:.0%}.",
            ],
        ),
    )
    return chart, {"shares": columns(drawn)}


def _end(shares: pd.DataFrame) -> float:
    """Return the share at which colours end, for C and all methods alike."""
    sizes = shares[[name for name in shares if str(name).startswith("share_")]].abs().to_numpy()
    known = sizes[np.isfinite(sizes)]
    return float(np.ceil(100 * np.quantile(known, _AMONG_LARGEST)) / 100) if known.size else 1.0


def _percent(field: str) -> str:
    return f"(isValid(datum.{field}) ? ' (' + format(datum.{field}, '+.1~%') + ')' : '')"
