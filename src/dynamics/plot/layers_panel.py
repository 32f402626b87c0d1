"""Panel: how many heroes and bloats each layer holds, beside what chance alone gives."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import labels, number, pixels, rules, tooltip
from dynamics.plot.palette import BLOAT, FAINT, HERO, INK, MUTED, WIDTH
from dynamics.plot.parameters import ROLES_BY


def layers_panel(layers: pd.DataFrame, axis: StepAxis) -> Panel:
    """Draw a strip per layer: heroes upwards, bloats downwards, and the layer's chance level as a dashed line."""
    strips = layers.drop_duplicates("layer")[["layer", "components", "chance"]].sort_values("layer")
    half = min(28.0, max(10.0, 380 / len(strips)))
    gap = 14.0 if half > 14 else 5.0
    counts = [name for name in layers if str(name).startswith(("heroes_", "bloats_"))]
    most = max(1, math.ceil(strips["chance"].max()), *(int(layers[name].fillna(0).max()) for name in counts))
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
        {"heroes": number("heroes"), "bloats": number("bloats"), "by chance (each)": number("chance"),
         "components": "datum.components"},
    )  # fmt: skip
    choose = f"{ROLES_BY} === 'loss' ? datum.{{0}}_loss : datum.{{0}}_exact_match"
    layers = layers.assign(end=axis.ends(layers["step"]), y=layers["layer"].map(middle))
    counted = flattened("layers", layers).transform_calculate(
        heroes=choose.format("heroes"),
        bloats=choose.format("bloats"),
        middle="datum.y",
        top=f"datum.y - datum.heroes * {unit:g}",
        bottom=f"datum.y + datum.bloats * {unit:g}",
    )
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
    chart = alt.layer(
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
        labels(names, fontSize=11.5),
    ).properties(
        width=WIDTH,
        height=height,
        title=alt.Title(
            "Heroes and bloats in each layer",
            subtitle=f"Number of components: heroes upwards, bloats downwards{out_of}. "
            "Dashed: what luck alone would give, were both rankings independent.",
        ),
    )
    return chart, {"layers": columns(layers)}
