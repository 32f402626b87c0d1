"""What the reader of a page can set; all panels of a page share these, which is what links them."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

ROLES_BY = "roles_by"
"""Name of the parameter that says which score C, and so every role, comes from: ``"exact_match"`` or ``"loss"``."""
METHOD = "method"
"""Name of the parameter that says which attribution method is shown."""
CHOSEN_RUN = "chosen_run"
"""Name of the selection that holds the chosen runs."""
SELECTED = "selected"
"""Name of the selection that holds the chosen components."""


def roles_by(score: str) -> alt.Parameter:
    """Return the switch between C by accuracy and C by loss.

    Args:
        score: Where it stands at first.
    """
    binding = alt.binding_select(options=["exact_match", "loss"], labels=["accuracy", "loss"], name="C by ")
    return alt.param(name=ROLES_BY, value=score, bind=binding)


def method(methods: Sequence[str]) -> alt.Parameter:
    """Return the switch between attribution methods; it begins at the first.

    Args:
        methods: Names of the methods that the run has.
    """
    return alt.param(name=METHOD, value=methods[0], bind=alt.binding_select(options=list(methods), name="attribution "))


def selected() -> alt.Parameter:
    """Return the selection of components: a click takes one, with shift more, a double click none.

    Every chart whose rows have a ``component`` can take part, by `Chart.add_params`: the selection is one for all.
    """
    return alt.selection_point(name=SELECTED, fields=["component"], on="click", clear="dblclick")


def chosen_run() -> alt.Parameter:
    """Return the selection of runs, where several are drawn: a click takes one, with shift more, a double click none.

    Every chart whose rows have a ``run`` can take part.
    """
    return alt.selection_point(name=CHOSEN_RUN, fields=["run"], on="click", clear="dblclick")
