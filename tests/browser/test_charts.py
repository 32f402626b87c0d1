"""Every chart of the catalogue, as a reader sees and uses it."""

import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import gap_table
from dynamics.plot import ALL, CHARTS, draw_run
from dynamics.plot.figure import panels_of
from dynamics.plot.palette import ROLE_COLOURS
from dynamics.plot.parameters import ROLES_BY, SELECTED
from tests.analysis.runs import N_EXAMPLES, components, random_arrays, random_faithfulness, random_synergy, write_run

N_STEPS, LAYERS, HEADS = 4, 2, 2


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    """A run that has something for every panel."""
    listed, rng = components(LAYERS, HEADS), np.random.default_rng(0)
    n = len(listed)
    rows = [
        random_arrays(rng, n, methods=3)
        | {
            "self_repair_rows": rng.random((n, N_EXAMPLES)).astype(np.float32),
            "self_repair_interaction": rng.normal(size=(n, N_EXAMPLES)).astype(np.float32),
        }
        for _ in range(N_STEPS)
    ]
    steps = [10 * step for step in range(N_STEPS)]
    rankings = ("gradient_norm", "gradient", "ablation", "random")
    joint = [random_synergy({"bloats": (0, 1), "heroes": (2, 3, 5)}, n, seed=step) for step in range(N_STEPS)]
    return write_run(
        tmp_path_factory.mktemp("charts") / "run.h5",
        steps,
        rows,
        listed,
        methods=("gradient", "gim", "ig"),
        rankings=rankings,
        faithful=list(zip(steps, random_faithfulness(n, len(rankings), N_STEPS), strict=True)),
        sets=joint[0][0],
        joint=[(step, row) for step, (_, row) in zip(steps, joint, strict=True)],
        metrics=[(step, {"train/exact_match": 0.2, "id/exact_match": 0.03 * step}) for step in steps],
    )


@pytest.fixture(scope="module", params=[*CHARTS, ALL])
def chart(request, run_path, module_view):
    """The name of a chart, and its page."""
    path = draw_run(run_path, run_path.with_name(f"{request.param}.html"), chart=request.param)
    return request.param, module_view(path)


def test_every_panel_is_drawn(chart):
    name, viewer = chart
    assert 0 < viewer.panels <= len(panels_of(name))
    for panel in range(viewer.panels):
        # Of each mark in the scene: whether it is on the page, and not in one point or out of the picture.
        drawn = viewer.evaluate(
            "panel => { const whole = document.querySelector('#chart svg.marks').getBoundingClientRect();"
            " return seen.items(panel).filter(item => item._svg).map(item => item._svg.getBoundingClientRect())"
            " .filter(box => box.width + box.height > 0 && box.right > whole.left && box.left < whole.right"
            " && box.bottom > whole.top && box.top < whole.bottom).length }",
            panel,
        )
        assert drawn > 0, panel


def roles_cells(viewer):
    """Return the marks of the raster of roles, by snapshot and component: their colours."""
    found = viewer.evaluate(
        "seen.panels().flatMap((_, panel) => seen.items(panel)).filter(item => item.mark.marktype === 'rect'"
        " && item.datum?.role_exact_match).map(item => [item.datum.step, item.datum.component, item.fill])"
    )
    return {(step, component): colour for step, component, colour in found}


def expected_cells(run_path, score):
    with open_run(run_path) as run:
        gaps = gap_table(run, score=score)
    return {
        (step, component): ROLE_COLOURS[role] for step, component, role in gaps[["step", "component", "role"]].values
    }


def test_the_switch_of_the_score_changes_titles_and_colours(chart, run_path):
    name, viewer = chart
    if ROLES_BY not in viewer.parameters:
        pytest.skip(f"{name} is the same for both scores")
    picture = "[...document.querySelectorAll('#chart svg.marks text')].map(one => one.textContent).sort()"
    # In any order: what is highlighted may be drawn last, and stay there.
    viewer.page.mouse.move(0, 0)
    viewer.update()
    scene = "seen.panels().map((_, panel) => seen.items(panel).map(seen.look).map(JSON.stringify).sort())"
    before = viewer.evaluate(picture), viewer.evaluate(scene)
    viewer.set(ROLES_BY, "loss")
    after = viewer.evaluate(picture), viewer.evaluate(scene)
    if "roles" in panels_of(name):
        assert "Roles, with C by accuracy" in "".join(before[0])
        assert "Roles, with C by loss" in "".join(after[0])
        assert roles_cells(viewer) == expected_cells(run_path, "loss")
        viewer.set(ROLES_BY, "exact_match")
        assert roles_cells(viewer) == expected_cells(run_path, "exact_match")
    else:
        viewer.set(ROLES_BY, "exact_match")
    assert before != after
    assert before == (viewer.evaluate(picture), viewer.evaluate(scene))


def test_tooltips_show_what_lies_under_the_pointer(chart):
    _, viewer = chart
    shown = 0
    for panel in range(viewer.panels):
        place = viewer.evaluate(
            "panel => seen.first(panel, item => item.tooltip, item => ({hint: item.tooltip}))", panel
        )
        if place is None:
            continue
        text = viewer.tooltip(place)
        hint = place["hint"] if isinstance(place["hint"], dict) else {"": place["hint"]}
        for line, value in hint.items():
            assert str(value) in text
            assert line in ("title", "") or line in text
        shown += 1
    assert shown > 0


def test_the_tooltip_of_a_role_holds_the_numbers_of_the_table(chart, run_path):
    name, viewer = chart
    if "roles" not in panels_of(name):
        pytest.skip(f"{name} has no raster of roles")
    with open_run(run_path) as run:
        by_match, by_loss = (
            gap_table(run, score=score).set_index(["step", "component"]) for score in ("exact_match", "loss")
        )
    for step, component in ((10, "L0MLP"), (30, "L1H1")):
        [place] = [
            found
            for panel in range(viewer.panels)
            if (
                found := viewer.evaluate(
                    "([panel, step, component]) => seen.first(panel, item => item.mark.marktype === 'rect' &&"
                    " item.datum?.role_loss && item.datum.step === step && item.datum.component === component,"
                    " () => ({}))",
                    [panel, step, component],
                )
            )
        ]
        text = viewer.tooltip(place).split()
        assert text[:3] == [f"{component},", "step", str(step)]
        for table, score in ((by_match, "accuracy"), (by_loss, "loss")):
            row = table.loc[(step, component)]
            words = ["role", "by", score, row["role"]]
            assert any([word.strip(",") for word in text[at : at + 4]] == words for at in range(len(text)))
            # Vega writes a minus sign.
            words = ["Δ", "by", score, f"{row['delta']:+g}".replace("-", "−")]
            assert any([word.strip(",") for word in text[at : at + 4]] == words for at in range(len(text)))


def opacity(look):
    return np.prod([1.0 if value is None else value for value in look[1:4]])


def test_a_click_on_a_component_highlights_it_everywhere(chart):
    name, viewer = chart
    if SELECTED not in viewer.parameters:
        pytest.skip(f"no panel of {name} shows single components")
    linked = [panel for panel in range(viewer.panels) if len({look[0] for look in viewer.looks(panel)}) > 1]
    assert linked
    before = [viewer.looks(panel) for panel in linked]
    place = chosen = None
    for panel in linked:
        # Only marks of panels that bring the selection answer to a click.
        place = viewer.evaluate(
            "panel => seen.first(panel, item => item.datum?.component, item => ({component: item.datum.component}))",
            panel,
        )
        if place is None:
            continue
        viewer.click(place)
        chosen = viewer.evaluate(f"chart.view.data('{SELECTED}_store').map(one => one.values[0])")
        if chosen:
            break
    assert chosen == [place["component"]]
    for panel, earlier in zip(linked, before, strict=True):
        looks = viewer.looks(panel)
        assert looks != earlier, f"panel {panel} does not answer"
        inside = [opacity(look) for look in looks if look[0] in chosen]
        outside = [opacity(look) for look in looks if look[0] not in chosen]
        assert not inside or not outside or np.mean(inside) >= np.mean(outside), f"panel {panel} fades what is chosen"
    viewer.page.keyboard.press("Escape")
    assert [viewer.looks(panel) for panel in linked] == before
    viewer.click(place)
    viewer.page.mouse.dblclick(place["x"], place["y"])
    assert [viewer.looks(panel) for panel in linked] == before


def test_the_page_of_a_narrow_screen_scrolls_within_the_chart_alone(chart):
    _, viewer = chart
    size = viewer.page.viewport_size
    viewer.page.set_viewport_size({"width": 600, "height": 900})
    assert viewer.evaluate("document.documentElement.scrollWidth") <= 600
    assert viewer.evaluate("document.body.scrollWidth") <= 600
    assert viewer.evaluate("getComputedStyle(chart).overflowX") == "auto"
    viewer.page.set_viewport_size(size)


def test_on_paper_each_panel_is_a_picture_as_wide_as_the_page(chart):
    _, viewer = chart
    viewer.page.emulate_media(media="print")
    viewer.evaluate("dispatchEvent(new Event('beforeprint'))")
    boxes = viewer.evaluate(
        "[...document.querySelectorAll('.paper > *')].map(part => part.getBoundingClientRect())"
        ".map(box => [box.left, box.right, box.height])"
    )
    width = viewer.evaluate("document.documentElement.clientWidth")
    hidden = viewer.evaluate(
        "['#controls', '.how', 'summary'].map(one => getComputedStyle(document.querySelector(one)).display)"
    )
    viewer.evaluate("dispatchEvent(new Event('afterprint'))")
    viewer.page.emulate_media(media="screen")
    assert len(boxes) == viewer.panels
    assert all(0 <= left < right <= width and height > 50 for left, right, height in boxes)
    assert hidden == ["none"] * 3
    assert viewer.evaluate("document.querySelectorAll('.paper').length") == 0


def test_nothing_went_wrong(chart):
    assert chart[1].problems == []
