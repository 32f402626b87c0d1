"""What the panels of many runs share: heroes on the left and bloats on the right, and words for each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from dynamics.analysis.roles import BLOAT as BLOAT_ROLE
from dynamics.analysis.roles import HERO as HERO_ROLE
from dynamics.plot.axes import Panel
from dynamics.plot.palette import BLOAT, HERO, INK, MUTED, WIDTH
from dynamics.plot.parameters import ROLES_BY

GAP = 36.0
SIDE = (WIDTH - GAP) / 2
"""Width of the half of a panel that belongs to a role, in pixels."""
LEFT = {HERO_ROLE: 0.0, BLOAT_ROLE: SIDE + GAP}
"""Where each half begins."""
COLOURS = {HERO_ROLE: HERO, BLOAT_ROLE: BLOAT}
PLURALS = {HERO_ROLE: "Hidden Heroes", BLOAT_ROLE: "Gradient Bloats"}
HEAD = 52.0
"""Height of the lines above the rows, in pixels."""
CHOSEN = f"datum.score === {ROLES_BY}"
"""Holds for the rows of the score that is chosen."""


def across(field: str) -> alt.X:
    """Return the encoding of a field that counts pixels from the panel's left edge."""
    return alt.X(field, type="quantitative", scale=alt.Scale(domain=[0, WIDTH], range=[0, WIDTH]), axis=None)


def question(text: str, subtitle: str | Sequence[str]) -> alt.Title:
    """Return a title that says which score C comes from."""
    expression = f"'{text} (C by ' + ({ROLES_BY} === 'loss' ? 'loss)' : 'accuracy)')"
    return alt.Title(text=alt.ExprRef(expression), subtitle=subtitle)


def row_height(rows: int, least: float, most: float) -> float:
    """Return the height of each of so many rows, in pixels."""
    return min(most, max(least, 620 / rows))


def texts(values: Sequence[Mapping[str, Any]], **style: Any) -> alt.Chart:
    """Return texts at pixels, each with ``text, x, y, colour`` and ``score``, those of the chosen score."""
    # As properties of the mark: an encoding would put the panel's own scales into pixels.
    place = {"x": alt.ExprRef("datum.x"), "y": alt.ExprRef("datum.y")}
    return (
        alt.Chart(alt.Data(values=[dict(value) for value in values]))
        .transform_filter(CHOSEN)
        .mark_text(**{"baseline": "middle", "align": "left", "fontSize": 11.5, **place, **style})
        .encode(text="text:N", color=alt.Color("colour:N", scale=None))
    )


def absences(missing: Mapping[str, str]) -> alt.Chart:
    """Return the reason why there is nothing to see, for each score that has nothing."""
    return texts([{"text": text, "x": 0, "y": HEAD, "colour": INK, "score": score} for score, text in missing.items()])


def note(title: str, lines: Sequence[str]) -> Panel:
    """Return a panel that only says something."""
    blank = alt.Chart(alt.Data(values=[{}])).mark_point(opacity=0)
    return blank.properties(width=WIDTH, height=1, title=alt.Title(title, subtitle=list(lines))), {}


def headings(first: Mapping[str, str], second: Mapping[tuple[str, str], str]) -> alt.LayerChart | alt.FacetChart:
    """Return two lines above each half.

    Args:
        first: A text for each role.
        second: A text for each score and role.
    """
    names = [
        {"text": first[role], "x": LEFT[role], "y": 10, "colour": COLOURS[role], "score": score}
        for score, role in second
    ]
    below = [
        {"text": text, "x": LEFT[role], "y": 27, "colour": MUTED, "score": score}
        for (score, role), text in second.items()
    ]
    return alt.layer(texts(names, fontWeight=600, fontSize=12), texts(below, fontSize=11))
