import json

import numpy as np
import pytest

from dynamics import open_run
from dynamics.errors import AnalysisError
from dynamics.plot import Tables, draw_run
from dynamics.plot.figure import figure
from dynamics.plot.palette import BLOAT, HERO, layer_colours
from dynamics.plot.scatter_panel import SIDE
from tests.analysis.runs import random_run
from tests.plot.ranked import points, ranked_run, snapshot, texts

SIX = [1, 2, 3, 4, 5, 6]
REVERSED = (SIX, [6, 5, 3, 4, 2, 1])
EQUAL = (SIX, [2, 2, 2, 2, 2, 2])


def place(rank_gradient, rank_causal, n=6):
    """Where a point belongs: the square reaches half a rank beyond the first and the last."""
    return pytest.approx((SIDE * (rank_gradient - 0.5) / n, SIDE * (n + 0.5 - rank_causal) / n))


def drawn(path, folder, **options):
    options = {"chart": "scatter", "score": "loss"} | options
    return draw_run(path, folder / "a.svg", **options).read_text()


def test_points_lie_at_their_ranks_in_the_outline_of_their_role(tmp_path):
    """Delta is -5, -3, 0, 0, 3, 5, and tau is 2: the components are L0H0 L0H1 L0MLP L1H0 L1H1 L1MLP."""
    svg = drawn(ranked_run(tmp_path / "run.h5", [REVERSED]), tmp_path)
    first, last = layer_colours(2)
    assert points(svg, stroke=HERO, fill=first) == [place(1, 6), place(2, 5)]
    assert points(svg, stroke="white", fill=first) == [place(3, 3)]
    assert points(svg, stroke="white", fill=last) == [place(4, 4)]
    assert points(svg, stroke=BLOAT, fill=last) == [place(5, 2), place(6, 1)]
    for label in ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP", "Hidden Heroes", "Gradient Bloats"):
        assert texts(svg).count(label) == 1


def test_numbers_of_the_snapshot(tmp_path):
    svg = drawn(ranked_run(tmp_path / "run.h5", [REVERSED, (SIX, SIX)], steps=[0, 1500]), tmp_path)
    assert "Who lies off the diagonal at step 1,500? (C by loss)" in texts(svg)
    assert {"Step 1,500", "ρ = +1.00", "0 Hidden Heroes", "0 Gradient Bloats"} <= set(texts(svg))
    svg = drawn(tmp_path / "run.h5", tmp_path, step=0)
    assert "Who lies off the diagonal at step 0? (C by loss)" in texts(svg)
    # 6 components, tau 2: (6 - 2)(6 - 2 + 1) / (2 x 36) of 6. Every batch has the same G and C.
    assert {"ρ = −0.94", "95 % interval −0.94 to −0.94", "by chance 1.67 of each"} <= set(texts(svg))
    assert {"2 Hidden Heroes", "2 Gradient Bloats", "accuracy on the probe 50.0%"} <= set(texts(svg))
    assert "0% of components tie in C" in texts(svg)


def test_ties_share_their_mean_rank(tmp_path):
    svg = drawn(ranked_run(tmp_path / "run.h5", [(SIX, [9, 3, 1, 3, 1, 3])]), tmp_path)
    heights = {1: 6, 2: 4, 3: 1.5, 4: 4, 5: 1.5, 6: 4}
    # The legend's points are near its corner.
    assert sorted(p for p in points(svg) if p[0] > 20) == [place(g, c) for g, c in heights.items()]
    assert "83% of components tie in C: same height" in texts(svg)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (EQUAL, ["causal importance is the same for all components (2)"]),
        (
            ([np.nan, 2, 3, 4, 5, 6], [np.nan, 5, 3, 4, 2, 1]),
            ["1 of 6 values of gradient magnitude are not finite", "1 of 6 values of causal importance are not finite"],
        ),
    ],
)
def test_where_rho_is_undefined_a_text_says_why(tmp_path, row, why):
    svg = drawn(ranked_run(tmp_path / "run.h5", [REVERSED, row]), tmp_path, step=10)
    assert [p for p in points(svg) if p[0] > 20] == []
    assert {"Nothing to compare at this step: ρ is undefined, since", *why} < set(texts(svg))
    assert "ρ is undefined" in texts(svg)
    assert not any("by chance" in line and "of each" in line for line in texts(svg))
    assert "L0H0" not in texts(svg)


def test_the_band_ends_where_roles_begin(tmp_path):
    for threshold, corners in ((None, {0.5, 2.5, 4.5, 6.5}), (5, {0.5, 1.5, 5.5, 6.5})):
        path = ranked_run(tmp_path / "run.h5", [REVERSED])
        made = draw_run(path, tmp_path / "a.json", chart="scatter", threshold=threshold).read_text()
        band = json.loads(made)["vconcat"][0]["layer"][2]["data"]["values"]
        assert {row["x"] for row in band} == corners
        tau = threshold or 2
        assert all(row["upper"] == min(row["x"] + tau, 6.5) for row in band)
        assert all(row["lower"] == max(row["x"] - tau, 0.5) for row in band)


def test_no_names_of_regions_without_room(tmp_path):
    svg = drawn(ranked_run(tmp_path / "run.h5", [REVERSED]), tmp_path, threshold=6)
    assert not {"Hidden Heroes", "Gradient Bloats"} & set(texts(svg))


def test_which_snapshot_is_shown_first(tmp_path):
    def shown(corrects, score="loss", row=REVERSED):
        rows = [snapshot(*row, correct=correct) for correct in corrects]
        return Tables(open_run(ranked_run(tmp_path / "run.h5", rows))).shown_snapshot(score=score)

    # 8 examples: from 2 to 6 right are between 20 and 75 %.
    assert shown([0, 2, 6, 7, 8]) == 2
    assert shown([0, 1, 7, 8]) == 3
    # Ablated, no example is right: C by accuracy is the same for all.
    assert shown([0, 1, 7], "exact_match") == 2
    assert shown([0, 3, 8], "exact_match") == 1
    rows = [snapshot(*REVERSED, correct=0), snapshot(*REVERSED, correct=8), snapshot(*EQUAL, correct=8)]
    assert Tables(open_run(ranked_run(tmp_path / "run.h5", rows))).shown_snapshot(score="loss") == 1


@pytest.mark.parametrize(
    ("step", "nearest"), [(5, "are at 0 and 10"), (1250, "are at 20 and 3,000"), (9999, "is at 3,000"), (-1, "is at 0")]
)
def test_a_step_without_snapshot(tmp_path, step, nearest):
    path = ranked_run(tmp_path / "run.h5", [REVERSED] * 4, steps=[0, 10, 20, 3000])
    with pytest.raises(AnalysisError) as error:
        draw_run(path, tmp_path / "a.svg", chart="scatter", step=step)
    assert str(error.value) == f"there is no snapshot at step {step:,}; the nearest {nearest}."


def test_a_step_for_a_chart_without_scatter(tmp_path):
    path = ranked_run(tmp_path / "run.h5", [REVERSED] * 2)
    with pytest.raises(AnalysisError) as error:
        draw_run(path, tmp_path / "a.svg", panels=("rho", "roles"), step=10)
    assert str(error.value) == "a step chooses what the panel scatter shows, but the panels are rho, roles."


def test_the_slider_reaches_every_snapshot(tmp_path):
    def slider(steps):
        path = ranked_run(tmp_path / "run.h5", [REVERSED] * len(steps), steps=steps)
        specification = figure(Tables(open_run(path)), panels=("scatter",)).to_dict()
        return next(one for one in specification["params"] if one["name"] == "at_snapshot")

    bound = slider([0, 5, 1000])
    assert bound["bind"] == {
        "input": "range", "min": 0, "max": 2, "step": 1, "name": "snapshot, from step 0 to 1,000 ",
    }  # fmt: skip
    assert bound["value"] == 2
    # One snapshot leaves nothing to choose.
    assert slider([7]) == {"name": "at_snapshot", "value": 0}


def test_of_many_components_few_are_named(tmp_path):
    """Names would lie on each other; all are in the data, for the selection to show."""
    random_run(tmp_path / "run.h5", n_steps=2, layers=20, heads=3)
    [cells] = json.loads(draw_run(tmp_path / "run.h5", tmp_path / "a.json", chart="scatter", step=10).read_text())[
        "datasets"
    ]["cells"]
    places, roles = np.array(cells["place_loss"]), np.array(cells["role_loss"])
    assert set(roles[places > 0]) == {"hero", "bloat"}
    for row in (0, 1):
        assert 5 <= (places[row * 80 : row * 80 + 80] > 0).sum() <= 24


def test_outlines_keep_their_colours_beside_a_raster_without_frames(tmp_path):
    """Both panels encode roles as strokes, by scales of their own."""
    path = ranked_run(tmp_path / "run.h5", [REVERSED] * 130)
    svg = drawn(path, tmp_path, panels=("scatter", "roles"))
    for stroke, ranks in ((HERO, [(1, 6), (2, 5)]), ("white", [(3, 3), (4, 4)]), (BLOAT, [(5, 2), (6, 1)])):
        # The legend's points are near its corner.
        assert [p for p in points(svg, stroke=stroke) if p[0] > 20] == [place(*pair) for pair in ranks]
