"""What the reader of a page can set; all panels of a page share these, which is what links them."""

from __future__ import annotations

import altair as alt

ROLES_BY = "roles_by"
"""Name of the parameter that says which score C, and so every role, comes from: ``"exact_match"`` or ``"loss"``."""
SELECTED = "selected"
"""Name of the selection that holds the chosen components."""


def roles_by(score: str) -> alt.Parameter:
    """Return the switch between C by accuracy and C by loss.

    Args:
        score: Where it stands at first.
    """
    binding = alt.binding_select(options=["exact_match", "loss"], labels=["accuracy", "loss"], name="C by ")
    return alt.param(name=ROLES_BY, value=score, bind=binding)


def selected() -> alt.Parameter:
    """Return the selection of components: a click takes one, with shift more, a double click none.

    Every chart whose rows have a ``component`` can take part, by `Chart.add_params`: the selection is one for all. A
    click on anything else in such a chart, as on a bar that stands for a layer, changes nothing.
    """
    on = "click[event.item && event.item.datum && isValid(event.item.datum.component)]"
    return alt.selection_point(name=SELECTED, fields=["component"], on=on, clear="dblclick")


def chosen(column: str) -> str:
    """Return the expression of a column that a row holds for both scores, ``..._exact_match`` and ``..._loss``."""
    return f"({ROLES_BY} === 'loss' ? datum.{column}_loss : datum.{column}_exact_match)"
