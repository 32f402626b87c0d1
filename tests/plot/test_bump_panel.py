import json
import re

import numpy as np
import pytest

from dynamics.plot import draw_run
from dynamics.plot.palette import BLOAT, HERO, WIDTH, layer_colours
from tests.analysis.runs import random_run
from tests.plot.ranked import points, ranked_run, texts

SIX = [1, 2, 3, 4, 5, 6]
REVERSED = (SIX, [6, 5, 3, 4, 2, 1])
AGREED = (SIX, SIX)
EQUAL = (SIX, [2, 2, 2, 2, 2, 2])
ROW = 15
"""Height of a rank, in pixels."""


def drawn(path, folder, **options):
    return draw_run(path, folder / "a.svg", **({"chart": "bump", "score": "loss", "x": "linear"} | options)).read_text()


def lines(svg, colour, dash):
    """Return the lines of a colour, each as its pieces of heights."""
    paths = re.findall(rf'<path d="(M[^"]*)" stroke="{colour}"[^>]*stroke-dasharray="{dash}"', svg)
    pieces = [[piece for piece in path.split("M") if piece] for path in paths]
    return [
        [[float(point.split(",")[1]) for point in re.split("[LZ]", piece) if point] for piece in one] for one in pieces
    ]


def height(rank, n=6):
    return ROW * (n + 0.5 - rank)


def test_a_line_for_each_component_in_its_colour(tmp_path):
    """C turns around between the snapshots, G does not; MLPs, the last of each layer, are dashed."""
    svg = drawn(ranked_run(tmp_path / "run.h5", [REVERSED, AGREED]), tmp_path)
    first, last = layer_colours(2)
    moves = {(first, "1,0"): [(6, 1, 1), (5, 2, 2)], (first, "7,3"): [(3, 3, 3)]}
    moves |= {(last, "1,0"): [(4, 4, 4), (2, 5, 5)], (last, "7,3"): [(1, 6, 6)]}
    for (colour, dash), ranks in moves.items():
        causal = [[[height(before), height(after)]] for before, after, _ in ranks]
        gradient = [[[height(same), height(same)]] for _, _, same in ranks]
        # One more, a short one, is the legend's.
        assert [line for line in lines(svg, colour, dash) if line[0][0] != 0] == causal + gradient
    for label in ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP"):
        assert texts(svg).count(label) == 2


def test_roles_are_marked_where_components_have_them(tmp_path):
    svg = drawn(ranked_run(tmp_path / "run.h5", [AGREED, REVERSED]), tmp_path)
    x = pytest.approx(WIDTH * 10 / 11)
    for colour, causal, gradient in ((HERO, (6, 5), (1, 2)), (BLOAT, (2, 1), (5, 6))):
        expected = [(x, pytest.approx(height(rank))) for rank in (*causal, *gradient)]
        assert points(svg, fill=colour) == expected


def test_a_gap_where_nothing_is_ranked(tmp_path):
    """C is the same for all at the second snapshot, and its ranks would be, too; G is ranked, but not of the last."""
    unknown = ([np.nan] * 6, SIX)
    svg = drawn(ranked_run(tmp_path / "run.h5", [AGREED, EQUAL, AGREED, AGREED, unknown]), tmp_path)
    found = [line for line in lines(svg, layer_colours(2)[0], "7,3") if line[0][0] != 0]
    assert [[len(piece) for piece in line] for line in found] == [[1, 2], [4]]
    assert texts(svg).count("L0MLP") == 2


def test_no_label_for_a_line_that_is_not_there(tmp_path):
    """Ablated, no example is right, and none of the model without ablation: C by accuracy is 0."""
    svg = drawn(ranked_run(tmp_path / "run.h5", [AGREED, AGREED]), tmp_path, score="exact_match")
    assert texts(svg).count("L0MLP") == 1
    assert "Which components does the model need? (C by accuracy)" in texts(svg)


def test_the_rule_stands_at_the_step_of_the_scatter(tmp_path):
    path = ranked_run(tmp_path / "run.h5", [AGREED, REVERSED, AGREED], steps=[0, 10, 15])

    def rules(**options):
        svg = drawn(path, tmp_path, **options)
        return re.findall(r'<line transform="translate\(([\d.]+),0\)"[^>]*stroke-dasharray="2,3"', svg)

    # The last cell is as wide as the axis allows: it ends at 16.
    both = ("scatter", "bump_causal", "bump_gradient")
    assert [float(x) for x in rules(panels=both, step=10)] == [pytest.approx(WIDTH * 10 / 16)] * 2
    assert [float(x) for x in rules(panels=both)] == [pytest.approx(WIDTH * 15 / 16)] * 2
    assert rules() == []


def test_labels_lie_apart_though_ranks_tie(tmp_path):
    path = ranked_run(tmp_path / "run.h5", [(SIX, [1, 5, 5, 5, 5, 6])])
    made = json.loads(draw_run(path, tmp_path / "a.json", chart="bump").read_text())
    [names] = [layer for layer in made["vconcat"][0]["layer"] if layer["mark"].get("type") == "text"]
    places = sorted(row["y"] for row in names["data"]["values"] if row["score"] == "loss")
    assert len(places) == 6
    assert min(np.diff(places)) >= 11


def test_of_many_components_none_is_named_or_marked_until_it_is_chosen(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3, layers=10, heads=3)
    svg = drawn(tmp_path / "run.h5", tmp_path)
    assert not any(re.fullmatch(r"L\d+(H\d|MLP)", text) for text in texts(svg))
    assert points(svg, fill=HERO) == []
    made = json.loads(draw_run(tmp_path / "run.h5", tmp_path / "a.json", chart="bump").read_text())
    front = {"or": [{"param": "selected", "empty": False}, {"param": "hovered", "empty": False}]}
    filtered = [layer for layer in made["vconcat"][0]["layer"] if {"filter": front} in layer.get("transform", [])]
    assert [layer["mark"]["type"] for layer in filtered] == ["point", "point", "text"]


@pytest.mark.soak
def test_a_large_run_draws(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=200, layers=32, heads=4)
    assert draw_run(tmp_path / "run.h5", tmp_path / "a.png", chart="bump").stat().st_size > 100_000
