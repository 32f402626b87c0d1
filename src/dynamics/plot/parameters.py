"""What the reader of a page can set; all panels of a page share these, which is what links them."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

AT_SNAPSHOT = "at_snapshot"
"""Name of the parameter that says which snapshot is shown, by its row in the file; -1 where no panel asks for one."""
HOVERED = "hovered"
"""Name of the selection that holds the component under the pointer."""
ROLES_BY = "roles_by"
"""Name of the parameter that says which score C, and so every role, comes from: ``"exact_match"`` or ``"loss"``."""
METHOD = "method"
"""Name of the parameter that says which attribution method is shown."""
CHOSEN_RUN = "chosen_run"
"""Name of the selection that holds the chosen runs."""
SELECTED = "selected"
"""Name of the selection that holds the chosen components."""
BY_SCORE = f"({ROLES_BY} === 'loss' ? 'loss' : 'accuracy')"
"""Expression of the name of the score that C comes from."""


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

    Every chart whose rows have a ``component`` can take part, by `Chart.add_params`: the selection is one for all. A
    click on anything else in such a chart, as on a bar that stands for a layer, changes nothing.
    """
    return alt.selection_point(name=SELECTED, fields=["component"], on=_click_on("component"), clear="dblclick")


def chosen_run() -> alt.Parameter:
    """Return the selection of runs, where several are drawn: a click takes one, with shift more, a double click none.

    Every chart whose rows have a ``run`` can take part; a click on anything else in it changes nothing.
    """
    return alt.selection_point(name=CHOSEN_RUN, fields=["run"], on=_click_on("run"), clear="dblclick")


def _click_on(field: str) -> str:
    return f"click[event.item && event.item.datum && isValid(event.item.datum.{field})]"


def chosen(column: str) -> str:
    """Return the expression of a column that a row holds for both scores, ``..._exact_match`` and ``..._loss``."""
    return f"({ROLES_BY} === 'loss' ? datum.{column}_loss : datum.{column}_exact_match)"


def hovered() -> alt.Parameter:
    """Return the selection of the component under the pointer: panels name it, and bring it forward."""
    return alt.selection_point(name=HOVERED, fields=["component"], on="pointerover", clear="pointerout", empty=False)


def at_snapshot(row: int | None, steps: Sequence[int]) -> alt.Parameter:
    """Return the slider over snapshots.

    Args:
        row: Which snapshot it stands at first; ``None``: no panel shows a single snapshot, so there is no slider.
        steps: Step of each snapshot.
    """
    if row is None or len(steps) < 2:
        return alt.param(name=AT_SNAPSHOT, value=-1 if row is None else row)
    name = f"snapshot, from step {steps[0]:,} to {steps[-1]:,} "
    return alt.param(name=AT_SNAPSHOT, value=row, bind=alt.binding_range(min=0, max=len(steps) - 1, step=1, name=name))


def step_shown(steps: Sequence[int]) -> str:
    """Return the expression of the step of the snapshot that is shown."""
    return f"format([{','.join(str(step) for step in steps)}][{AT_SNAPSHOT}], ',d')"


def of_score(names: Sequence[str]) -> dict[str, str]:
    """Return expressions that give columns such as ``delta_loss`` of the chosen score the names ``delta``."""
    return {name: chosen(name) for name in names}
