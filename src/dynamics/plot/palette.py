"""Colours, letters and measures that all panels share.

Blue and vermilion (Okabe and Ito) stay apart for every common kind of colour blindness, and mean hero and bloat
wherever they appear; nothing else is drawn in them.
"""

from __future__ import annotations

from typing import Any

INK, MUTED, FAINT, GRID, SHADE = "#1c2127", "#68717c", "#aab1ba", "#e9ecef", "#f3f5f7"
HERO, BLOAT, ALIGNED, UNDEFINED = "#0072b2", "#e2631a", "#d3d9e0", "#f4f5f7"
ROLE_COLOURS = {"hero": HERO, "bloat": BLOAT, "aligned": ALIGNED, "undefined": UNDEFINED}
GREEN, PURPLE, OCHRE, ROSE = "#2f9277", "#8463b0", "#a98a2c", "#b5577d"
SERIES_COLOURS = (GREEN, PURPLE, OCHRE, ROSE, MUTED)

UNKNOWN = "#d4d8de"
"""A cell without a value, among signed ones."""
DIVERGING = ("#5e3c99", "#b7a6d6", "#f7f7f7", "#8fc9ac", "#1b7a55")
"""Signed values from negative to positive: purple and green, which are no roles' colours, with 0 in the middle."""

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
WIDTH = 760
"""Width of every panel, in pixels."""
LABEL_GAP = 9
"""From a panel's edge to the labels beside it, in pixels."""


def config() -> dict[str, Any]:
    """Return the Vega-Lite configuration: quiet axes, no frames."""
    return {
        "font": FONT,
        "background": "white",
        "padding": {"left": 16, "right": 28, "top": 20, "bottom": 16},
        # A description of every one of thousands of cells would be most of an SVG.
        "aria": False,
        "view": {"stroke": None},
        "title": {"color": INK, "fontSize": 14, "fontWeight": 600, "subtitleColor": MUTED, "subtitleFontSize": 11.5,
                  "subtitlePadding": 5, "offset": 10, "anchor": "start", "frame": "group"},
        "axis": {"domain": False, "ticks": False, "grid": True, "gridColor": GRID, "gridWidth": 1,
                 "labelColor": MUTED, "labelFontSize": 11, "labelPadding": 7, "titleColor": MUTED,
                 "titleFontSize": 11.5, "titleFontWeight": "normal", "titlePadding": 10},
        "legend": {"labelColor": INK, "labelFontSize": 11.5, "symbolType": "square", "symbolSize": 130, "title": None,
                   "orient": "top", "direction": "horizontal", "columnPadding": 18, "offset": 8, "padding": 0},
    }  # fmt: skip
