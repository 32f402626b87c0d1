import json
import re

import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import faithfulness_table
from dynamics.errors import AnalysisError
from dynamics.plot import Tables, draw_run, figure
from dynamics.plot.palette import FAINT, GREEN, INK, OCHRE, PURPLE, ROSE
from tests.analysis.runs import random_faithfulness, random_run
from tests.plot.pages import Page

LOOKS = {
    "gradient_norm": ("G", INK),
    "gradient": ("attr. patching", OCHRE),
    "gim": ("GIM", GREEN),
    "ig": ("integrated gr.", ROSE),
    "ablation": ("ablation", PURPLE),
    "random": ("random", FAINT),
}
TITLES = {"faithfulness": "Does a ranking find what the model needs?", "curve": "How few components suffice at step"}


def faithful_run(path, steps=(10, 20), rankings=tuple(LOOKS), change=None):
    rows = random_faithfulness(6, len(rankings), len(steps))
    if change is not None:
        change(rows)
    random_run(path, n_steps=3, rankings=rankings, faithful=list(zip(steps, rows, strict=True)))
    return path


def lines(svg, colour):
    """Return the number of points in each line of a colour."""
    return [path.count("L") + 1 for path in re.findall(f'<path d="(M[^"]*)" stroke="{colour}" stroke-width="1.8"', svg)]


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_a_line_for_every_ranking_and_its_area_beside(tmp_path, score):
    path = faithful_run(tmp_path / "run.h5")
    svg = draw_run(path, tmp_path / "a.svg", score=score, panels=("faithfulness", "curve")).read_text()
    with open_run(path) as run:
        cpr = faithfulness_table(run, score).set_index(["step", "ranking"])["cpr"]
    for ranking, (text, colour) in LOOKS.items():
        assert sorted(lines(svg, colour)) == [2, 7]
        assert svg.count(f">{text}</text>") == 1
        assert svg.count(f">{text}  {cpr[20, ranking]:.2f}</text>") == 1
    words = "minus the loss" if score == "loss" else "accuracy"
    assert f"{TITLES['curve']} 20? (score: {words})" in svg
    # Each of the two has a horizontal axis of its own.
    assert (
        svg.count(">optimizer step</text>") == svg.count(">components kept (k), the highest ranked first</text>") == 1
    )


def test_what_is_drawn_is_what_the_analysis_says(tmp_path):
    path = faithful_run(tmp_path / "run.h5")
    data = json.loads(draw_run(path, tmp_path / "a.json").read_text())["datasets"]
    with open_run(path) as run:
        table = faithfulness_table(run, "loss").set_index(["step", "ranking"])
    by_loss = [row for row in data["faithfulness"] if row["score"] == "loss"]
    assert len(by_loss) == 12
    assert {(row["step"], row["ranking"]): row["cpr"] for row in by_loss} == pytest.approx(
        table["cpr"].to_dict(), rel=1e-4
    )
    assert {row["step"] for row in data["curves"]} == {20}
    assert len(data["curves"]) == 2 * 6 * 7
    assert data["faithfulness"][0]["ranking"] == data["curves"][0]["ranking"] == "random"


def test_magnitudes_are_dashed_in_the_colour_of_what_they_measure(tmp_path):
    path = faithful_run(tmp_path / "run.h5", rankings=("gim", "|gim|"))
    svg = draw_run(path, tmp_path / "a.svg", panels=("faithfulness",)).read_text()
    assert len(lines(svg, GREEN)) == 2
    assert len(re.findall(f'stroke="{GREEN}"[^>]*stroke-dasharray="4,3"', svg)) == 1
    assert ">|GIM|</text>" in svg


def test_a_whole_model_that_is_no_better_than_none_leaves_a_gap(tmp_path):
    def change(rows):
        rows[1]["kept_loss"] = rows[1]["kept_loss"][:, ::-1]

    path = faithful_run(tmp_path / "run.h5", steps=(0, 10, 20), rankings=("gim", "random"), change=change)
    specification = figure(Tables(open_run(path)), score="loss").to_dict()
    shown = [row["shown"] for row in specification["datasets"]["faithfulness"] if row["score"] == "loss"]
    assert [value is None for value in shown] == [False, True, False] * 2
    # The tooltip still has the number, and the two scores that explain it.
    assert all(row["cpr"] is not None for row in specification["datasets"]["faithfulness"])


def test_where_the_last_row_is_undefined_the_curves_panel_says_so(tmp_path):
    def change(rows):
        rows[0]["kept_exact_match"][:] = False

    path = faithful_run(tmp_path / "run.h5", steps=(10,), change=change)
    svg = draw_run(path, tmp_path / "a.svg", panels=("curve",)).read_text()
    assert ">undefined</text>" in svg
    assert lines(svg, GREEN) == []
    svg = draw_run(path, tmp_path / "a.svg", panels=("curve",), score="loss").read_text()
    assert ">undefined</text>" not in svg
    assert lines(svg, GREEN) == [7]


@pytest.mark.parametrize(("steps", "drawn"), [((), set()), ((20,), {"curve"}), ((10, 20), {"curve", "faithfulness"})])
def test_panels_come_with_their_rows(tmp_path, steps, drawn):
    path = faithful_run(tmp_path / "run.h5", steps=steps)
    svg = draw_run(path, tmp_path / "a.svg").read_text()
    assert {name for name, title in TITLES.items() if title in svg} == drawn
    assert svg.count(">optimizer step</text>") == 1
    for name in TITLES.keys() - drawn:
        with pytest.raises(AnalysisError) as caught:
            draw_run(path, tmp_path / "b.svg", panels=(name,))
        assert str(caught.value) == (
            f"the run has nothing to draw for {name}; choose other panels, or track again with a schedule of "
            "faithfulness, such as faithfulness=5000."
        )


def test_values_far_beyond_stay_within_the_panel(tmp_path):
    def change(rows):
        rows[0]["kept_loss"][:, 3] = np.float32(-500)

    path = faithful_run(tmp_path / "run.h5", change=change)
    specification = figure(Tables(open_run(path)), score="loss", panels=("faithfulness",)).to_dict()
    [panel] = specification["vconcat"]
    domains = [layer["encoding"]["y"]["scale"]["domain"] for layer in panel["layer"] if layer["mark"].get("clip")]
    assert domains == [[0, 1.5]] * 2
    ends = next(layer for layer in panel["layer"] if layer["mark"]["type"] == "text")["data"]["values"]
    assert all(0 <= end["y"] <= 165 for end in ends)


def test_the_page_has_both_panels(tmp_path):
    path = faithful_run(tmp_path / "run.h5")
    specification = Page(draw_run(path).read_text()).specification
    assert len(specification["vconcat"]) == 6
    assert {"faithfulness", "curves"} <= set(specification["datasets"])
