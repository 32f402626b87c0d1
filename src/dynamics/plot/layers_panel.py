"""Panel: how many heroes and bloats each layer holds, beside what chance alone gives."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import interval, labels, number, pixels, rules, tooltip
from dynamics.plot.palette import BLOAT, CHOSEN, FAINT, HERO, INK, LUCK, MUTED, WIDTH
from dynamics.plot.parameters import chosen, selected

_LUCK = tuple(f"{role}_{name}" for role in ("heroes", "bloats") for name in ("low", "high", "p"))


def layers_panel(layers: pd.DataFrame, components: pd.DataFrame, axis: StepAxis, level: float) -> Panel:
    """Draw a strip per layer: heroes upwards, bloats downwards, and what luck gives as a band and a dashed line.

    Args:
        layers: The table `Tables.layers`.
        components: The components: ``component`` and ``layer``.
        axis: The step axis.
        level: Of the band.
    """
    strips = layers.drop_duplicates("layer")[["layer", "components", "chance"]].sort_values("layer")
    half = min(28.0, max(10.0, 380 / len(strips)))
    gap = 14.0 if half > 14 else 5.0
    counts = [name for name in layers if str(name).startswith(("heroes_", "bloats_"))]
    most = max(1, math.ceil(strips["chance"].max()), *(math.ceil(layers[name].fillna(0).max()) for name in counts))
    unit = half / most
    # All strips share one scale, so that layers can be compared; it reaches to the largest count.
    middle = {layer: (2 * half + gap) * row + half for row, layer in enumerate(strips["layer"])}
    height = (2 * half + gap) * len(strips) - gap
    centres = np.array(list(middle.values()))
    chance = strips["chance"].to_numpy() * unit
    sizes = strips["components"].unique()
    out_of = f", each out of {sizes[0]}" if len(sizes) == 1 else ""
    hint = tooltip(
        "'layer ' + datum.layer + ', step ' + format(datum.step, ',d')",
        {
            "heroes": number("heroes"),
            f"{level:.0%} by luck, heroes": interval("heroes_low", "heroes_high", ".3~g"),
            "p, heroes": number("heroes_p"),
            "bloats": number("bloats"),
            f"{level:.0%} by luck, bloats": interval("bloats_low", "bloats_high", ".3~g"),
            "p, bloats": number("bloats_p"),
            "mean by luck (each)": number("chance"),
            "components": "datum.components",
        },
    )
    layers = layers.assign(end=axis.ends(layers["step"]), y=layers["layer"].map(middle))
    counted = flattened("layers", layers).transform_calculate(
        **{name: chosen(name) for name in ("heroes", "bloats", *_LUCK)},
        middle="datum.y",
        top=f"datum.y - {chosen('heroes')} * {unit:g}",
        bottom=f"datum.y + {chosen('bloats')} * {unit:g}",
    )
    by_luck = [
        counted.transform_calculate(
            near=f"datum.y {sign} datum.{role}_low * {unit:g}", far=f"datum.y {sign} datum.{role}_high * {unit:g}"
        )
        .transform_filter(f"isValid(datum.{role}_low)")
        .mark_rect(color=LUCK, stroke=LUCK, strokeWidth=0.5, opacity=1, tooltip=hint)
        .encode(x=axis.x(), x2="end:Q", y=pixels("near", height), y2="far:Q")
        for role, sign in (("heroes", "-"), ("bloats", "+"))
    ]
    bars = [
        counted.transform_filter(f"datum.{count} > 0")
        .mark_rect(color=colour, stroke=colour, strokeWidth=0.5, tooltip=hint)
        .encode(x=axis.x(), x2="end:Q", y=pixels("middle", height), y2=f"{edge}:Q")
        for count, edge, colour in (("heroes", "top", HERO), ("bloats", "bottom", BLOAT))
    ]
    scale: list[dict[str, Any]] = [
        {"text": text, "y": y, "colour": MUTED}
        for centre in centres
        for text, y in ((str(most), centre - half + 5), ("0", centre), (str(most), centre + half - 5))
    ]
    names = [{"text": f"layer {layer}", "y": y, "colour": INK} for layer, y in middle.items()]
    # Behind a layer, once for each of its components: seen while that is selected.
    behind = [
        {"component": component, "y": middle[layer] - half - gap / 2, "y2": middle[layer] + half + gap / 2}
        for component, layer in components[["component", "layer"]].values
    ]
    selection = selected()
    chart = alt.layer(
        alt.Chart(alt.Data(values=behind))
        .mark_rect(color=CHOSEN, x=0, x2=WIDTH, y=alt.ExprRef("datum.y"), y2=alt.ExprRef("datum.y2"))
        .encode(opacity=alt.condition(selection, alt.value(1), alt.value(0), empty=False)),
        *by_luck,
        *bars,
        rules(height, list(centres), color=FAINT),
        rules(
            height,
            [*(centres - chance), *(centres + chance)],
            color=INK,
            strokeDash=[3, 3],
            strokeWidth=1 if half > 14 else 0.7,
        ),
        labels(scale if half > 14 else [], "left", fontSize=9.5),
        labels(names, fontSize=11.5).add_params(selection),
    ).properties(
        width=WIDTH,
        height=height,
        title=alt.Title(
            "Heroes and bloats in each layer",
            subtitle=[
                f"Number of components: heroes upwards, bloats downwards{out_of}. Were both rankings independent, luck "
                "alone would give",
                f"the dashed number on average, and in {level:.0%} of cases one within the grey band: a bar that ends "
                "beyond it is beyond chance.",
            ],
        ),
    )
    return chart, {"layers": columns(layers)}
