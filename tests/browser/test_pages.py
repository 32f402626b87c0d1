"""What holds for every page, whatever it shows."""

import altair as alt
import pandas as pd
import pytest

from dynamics.plot import draw_run
from dynamics.plot.axes import rows
from dynamics.plot.figure import assemble
from dynamics.plot.page import page, without_reload
from dynamics.plot.parameters import ROLES_BY, roles_by, selected
from tests.analysis.runs import random_run
from tests.plot.growing import Training
from tests.plot.test_page import HOSTILE


def test_texts_of_a_run_can_do_nothing(tmp_path, view):
    folder = tmp_path / "<b>grokking&"
    folder.mkdir()
    metadata = {"started": HOSTILE, "git": {"commit": "<i>0123456789", "uncommitted_changes": True}}
    metrics = [(step, {f"{HOSTILE[:60]}/exact_match": 0.5}) for step in (0, 5)]
    random_run(folder / "run.h5", n_steps=3, prefix=HOSTILE, metadata=metadata, metrics=metrics)
    viewer = view(draw_run(folder / "run.h5", tmp_path / "page.html"))
    place = viewer.evaluate(
        "seen.panels().map((_, panel) => seen.first(panel, item => item.tooltip?.title?.includes('L0H1'), () => ({})))"
        ".find(place => place)"
    )
    assert viewer.tooltip(place).startswith(f"{HOSTILE}L0H1, step ")
    strange = "body :is(img, iframe, object, embed, link, form, b, i)"
    assert viewer.evaluate(f"document.querySelectorAll('{strange}').length") == 0
    assert viewer.evaluate("document.scripts.length") == 4
    assert viewer.page.locator("h1").inner_text() == "<b>grokking&"
    assert HOSTILE in viewer.page.locator("dl").inner_text()


def test_the_policy_lets_no_other_script_run_and_nothing_be_loaded(tmp_path, view):
    random_run(tmp_path / "run.h5", n_steps=2)
    path = draw_run(tmp_path / "run.h5")
    injected = "<script>window.injected = 1</script><img src='https://example.org/a.png'></body>"
    # The code of the page holds the text of such an end, too.
    text, _, end = path.read_text().rpartition("</body>")
    path.write_text(text + injected + end)
    viewer = view(path)
    assert viewer.evaluate("window.injected ?? 0") == 0
    refused = [found for found in viewer.problems if "violates the following Content Security Policy" in found]
    assert [found.split(" violates")[0] for found in refused] == [
        "Executing inline script",
        "Loading the image 'https://example.org/a.png'",
    ]
    # Playwright tells of the request, too.
    assert set(viewer.problems) - set(refused) <= {"https://example.org/a.png"}
    viewer.problems.clear()


def test_a_large_run_is_drawn_in_pixels(tmp_path, view, monkeypatch):
    monkeypatch.setattr("dynamics.plot.page._MOST_SVG_CELLS", 10)
    random_run(tmp_path / "run.h5", n_steps=4)
    viewer = view(draw_run(tmp_path / "run.h5"))
    assert viewer.evaluate("chart.querySelectorAll('svg.marks').length") == 0

    def inked(selector):
        """Return the share of pixels of each canvas that are not white."""
        return viewer.evaluate(
            "selector => [...document.querySelectorAll(selector)].map(canvas => {"
            " const {width, height} = canvas, copy = Object.assign(document.createElement('canvas'), {width, height}),"
            " context = copy.getContext('2d', {willReadFrequently: true}); context.drawImage(canvas, 0, 0);"
            " const all = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);"
            " return all.filter(pixel => pixel !== 0xffffffff && pixel !== 0).length / all.length })",
            selector,
        )

    [share] = inked("#chart canvas.marks")
    assert share > 0.02
    before = viewer.evaluate("chart.querySelector('canvas').toDataURL()")
    viewer.set(ROLES_BY, "loss")
    assert viewer.evaluate("chart.querySelector('canvas').toDataURL()") != before
    viewer.page.emulate_media(media="print")
    viewer.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(inked(".paper canvas")) == viewer.panels
    assert min(inked(".paper canvas")) > 0.005


@pytest.mark.parametrize(("kind", "begins"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_the_menu_saves_the_picture(tmp_path, view, kind, begins):
    random_run(tmp_path / "run.h5", n_steps=2)
    viewer = view(draw_run(tmp_path / "run.h5"))
    viewer.page.locator("#chart summary").click()
    link = viewer.page.locator(".vega-actions a", has_text=f"Save as {kind}")
    with viewer.page.expect_download() as download:
        # The picture is made while the button is down.
        link.dispatch_event("mousedown")
        viewer.page.wait_for_function("link => /^(data|blob):/.test(link.href)", arg=link.element_handle())
        link.click()
    saved = download.value.path().read_bytes()
    assert saved.startswith(begins)
    assert len(saved) > 5000


SETTINGS = (
    "[chart.view.signal('step'), chart.view.signal('roles_by'),"
    " chart.view.data('selected_store').map(one => one.values)]"
)


def linked_page(path, steps=(0, 10, 20), components="abcd", reload=0.0):
    """Write a page of two panels with a switch, a slider and a selection, taller than the window."""
    table = [{"component": name, "step": step, "y": 90 * i} for i, name in enumerate(components) for step in steps]
    slider = alt.param(
        name="step", value=steps[-1], bind=alt.binding_range(min=steps[0], max=steps[-1], step=10, name="step ")
    )

    def panel(name):
        chart = alt.Chart(alt.NamedData(name="points")).mark_circle(size=900)
        opacity = alt.condition(selected(), alt.value(1), alt.value(0.2))
        return chart.encode(x="step:Q", y="y:Q", opacity=opacity).properties(name=name, width=760, height=700)

    data = {"points": rows(pd.DataFrame(table))}
    panels = [(panel("first").add_params(selected()), data), (panel("second"), {})]
    specification = assemble(panels, [roles_by("exact_match"), slider], None).to_dict()
    path.write_text(page(specification, "linked", [], 10, reload))
    return path


def choose(viewer, component):
    place = viewer.evaluate(
        "component => seen.first(0, item => item.datum?.component === component, () => ({}))", component
    )
    viewer.click(place)


def test_a_reload_keeps_what_the_reader_had_set(tmp_path, view):
    path = linked_page(tmp_path / "a.html")
    viewer = view(path, width=600)
    assert viewer.evaluate(SETTINGS) == [20, "exact_match", []]
    choose(viewer, "c")
    viewer.set(ROLES_BY, "loss")
    viewer.evaluate("scrollTo(0, 321), chart.scrollLeft = 55, 0")
    # Rows came: what was not touched follows, what was stays.
    linked_page(path, steps=(0, 10, 20, 30))
    viewer.page.reload()
    viewer.page.wait_for_selector("#chart[data-restored]")
    viewer.settle()
    assert viewer.evaluate(SETTINGS) == [30, "loss", [["c"]]]
    assert viewer.page.locator("#controls select").input_value() == "loss"
    assert viewer.evaluate("[scrollY, chart.scrollLeft]") == [321, 55]
    faded = {component: opacity for component, opacity, *_ in viewer.looks(1)}
    assert faded == {"a": 0.2, "b": 0.2, "c": 1, "d": 0.2}
    viewer.page.locator("#controls input[type=range]").fill("10")
    # Another run, which has no such component and fewer steps.
    linked_page(path, steps=(0, 10), components="xy")
    viewer.page.reload()
    viewer.page.wait_for_selector("#chart[data-restored]")
    assert viewer.evaluate(SETTINGS) == [10, "loss", []]


def test_a_page_that_is_not_watched_starts_anew(tmp_path, view):
    viewer = view(linked_page(tmp_path / "a.html", reload=None))
    viewer.set(ROLES_BY, "loss")
    viewer.page.reload()
    viewer.settle()
    assert viewer.evaluate(SETTINGS) == [20, "exact_match", []]


def test_a_watched_page_reloads_itself_until_the_run_is_finished(tmp_path, view):
    training = Training(tmp_path / "run.h5")
    training.append(0)
    path = draw_run(tmp_path / "run.h5", watched=True)
    path.write_text(path.read_text().replace('data-reload="5"', 'data-reload="0.01"'))
    viewer = view(path)
    assert "This page reloads itself" in viewer.page.locator("#watched").inner_text()
    viewer.set(ROLES_BY, "loss")
    training.append(10)
    training.finish()
    with viewer.page.expect_event("load"):
        draw_run(tmp_path / "run.h5", watched=True)
    # The page that was open may have come once more before the last was drawn.
    viewer.page.wait_for_function("!document.documentElement.dataset.reload")
    viewer.page.wait_for_selector("#chart[data-restored]")
    viewer.settle()
    assert "finished" in viewer.page.locator("dl").inner_text()
    assert viewer.page.locator("#watched").inner_text() == ""
    assert viewer.evaluate("chart.view.signal('roles_by')") == "loss"
    assert without_reload(path.read_text()) == path.read_text()


def test_shift_adds_a_component_and_escape_clears(tmp_path, view):
    viewer = view(linked_page(tmp_path / "a.html", reload=None))
    assert "Click a component to highlight it" in viewer.page.locator(".how").inner_text()
    choose(viewer, "b")
    assert viewer.evaluate(SETTINGS)[2] == [["b"]]
    viewer.page.keyboard.down("Shift")
    choose(viewer, "d")
    viewer.page.keyboard.up("Shift")
    assert sorted(viewer.evaluate(SETTINGS)[2]) == [["b"], ["d"]]
    viewer.page.keyboard.press("Escape")
    assert viewer.evaluate(SETTINGS)[2] == []
    choose(viewer, "b")
    assert viewer.evaluate(SETTINGS)[2] == [["b"]]
