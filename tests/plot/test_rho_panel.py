"""What the panels of rho and of agreement draw beside the lines: intervals, luck, ties."""

import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import Findings
from dynamics.plot import Tables, draw_run, figure
from dynamics.plot.marks import lonely
from dynamics.plot.palette import FAINT, INK, LUCK, PURPLE
from dynamics.plot.rho_panel import HEIGHT
from tests.analysis.runs import components, random_arrays, random_run, write_run
from tests.plot.svg import areas, boxes, lines

ALL = 2.5
"""The axis goes from 1 down to -1.5."""


def height_of(rho):
    return HEIGHT * (1 - rho) / ALL


def subtitle(path, panel):
    [drawn] = figure(Tables(open_run(path)), panels=(panel,)).to_dict()["vconcat"]
    return drawn["title"]["subtitle"]


def band(table, low, high):
    """Heights of a band's corners: along its upper and back along its lower end, in Vega's order."""
    return sorted([height_of(value) for name in (low, high) for value in table[name]])


def test_bands_lie_where_the_findings_say(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=4, layers=3)
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", panels=("rho",)).read_text()
    with open_run(tmp_path / "run.h5") as run:
        by = {score: found.rho for score, found in Findings(run).by.items()}
    for score, colour in (("exact_match", INK), ("loss", PURPLE)):
        [drawn] = areas(svg, colour)
        assert sorted(y for _, y in drawn) == pytest.approx(band(by[score], "low", "high"), abs=0.02)
        assert len({x for x, _ in drawn}) == 4
    # Luck in one colour for both scores, behind everything else.
    drawn = areas(svg, LUCK)
    assert [sorted(y for _, y in area) for area in drawn] == [
        pytest.approx(band(table, "null_low", "null_high"), abs=0.02) for table in by.values()
    ]
    assert svg.rindex(LUCK) < svg.index(f'fill="{INK}" opacity="0.16"')


def test_a_snapshot_between_gaps_keeps_its_interval(tmp_path, rng):
    rows = [random_arrays(rng, 6) for _ in range(6)]
    for row in (1, 3):
        rows[row]["gradient_norm"][:] = np.nan
    path = write_run(tmp_path / "run.h5", range(6), rows, components(2, 2))
    svg = draw_run(path, tmp_path / "a.svg", panels=("rho",)).read_text()
    with open_run(path) as run:
        table = Findings(run).by["loss"].rho
    assert [len(area) for area in areas(svg, PURPLE)] == [2, 2, 4]
    alone = lines(svg, PURPLE, 5)
    expected = [(height_of(table["low"][row]), height_of(table["high"][row])) for row in (0, 2)]
    assert sorted(end for _, y, _, down in alone for end in (y, y + down)) == pytest.approx(
        sorted(end for pair in expected for end in pair), abs=0.02
    )
    assert len(alone) == 2
    assert len(lines(svg, LUCK, 13)) == 4


def test_lonely_rows_are_told_by_group():
    rows = pd.DataFrame({"value": [1.0, np.nan, 1, 1, np.nan, 1, 1], "group": list("aaaaabb")})
    assert lonely(rows, "value", "group").tolist() == [True, False, False, False, False, False, False]
    rows["group"] = list("aaabbbc")
    assert lonely(rows, "value", "group").tolist() == [True, False, True, True, False, True, True]


def test_ties_are_bars_from_their_snapshot_to_the_next(tmp_path, rng):
    rows = [random_arrays(rng, 6) for _ in range(2)]
    # Ablating any of four components leaves one and the same accuracy.
    for row, right in ((0, [0, 1, 2, 3, 4, 5]), (1, [4, 4, 4, 4, 1, 8])):
        rows[row]["ablation_exact_match"][:] = np.arange(8) < np.array(right)[:, None]
    path = write_run(tmp_path / "run.h5", [0, 10], rows, components(2, 2))
    svg = draw_run(path, tmp_path / "a.svg", panels=("rho",), x="linear").read_text()
    [(left, top, _, tall, opacity)] = boxes(svg, FAINT)
    whole = height_of(-1.45) - height_of(-1.15)
    assert (tall, top + tall, opacity) == pytest.approx((whole * 4 / 6, height_of(-1.45), 1))
    # The axis ends one step after the last snapshot.
    assert left == pytest.approx(760 * 10 / 11, rel=0.05)
    assert svg.count(">100% tied</text>") == 1
    assert "Bars: share of components that share their C with others." in subtitle(path, "rho")[2]
    # Without any ties there are no bars, and no word of them.
    path = write_run(tmp_path / "none.h5", [0], rows[:1], components(2, 2))
    svg = draw_run(path, tmp_path / "b.svg", panels=("rho",)).read_text()
    assert boxes(svg, FAINT) == []
    assert "tied" not in svg
    assert len(subtitle(path, "rho")) == 2


def test_a_single_batch_has_no_interval_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.analysis.runs.N_BATCHES", 1)
    random_run(tmp_path / "run.h5", n_steps=3, methods=("gim",))
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", panels=("rho",)).read_text()
    assert areas(svg, INK) == areas(svg, PURPLE) == []
    # Chance needs no batches.
    assert len(areas(svg, LUCK)) == 2
    assert subtitle(tmp_path / "run.h5", "rho")[:2] == [
        "Rank correlation of gradient magnitude G and causal importance C; 1: the same order.",
        "No interval: the probe has a single batch; an interval needs at least 2 batches to resample.",
    ]
    assert subtitle(tmp_path / "run.h5", "agreement")[1:] == [
        "No interval: the probe has a single batch; an interval needs at least 2 batches to resample.",
        "Grey: 95% of all ρ by luck, components paired at random. Gap: undefined.",
    ]


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_agreement_has_bands_of_the_chosen_score(tmp_path, score):
    random_run(tmp_path / "run.h5", n_steps=3, layers=3, methods=("gim",))
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", score=score, panels=("agreement",)).read_text()
    with open_run(tmp_path / "run.h5") as run:
        table = Findings(run).agreement
    table = table[(table["score"] == score) & (table["measure"] == "gradient_norm")]
    for colour, low, high in ((INK, "low", "high"), (LUCK, "null_low", "null_high")):
        [drawn] = areas(svg, colour)
        wanted = sorted(165 * (1 - value) / 2 for name in (low, high) for value in table[name])
        assert sorted(y for _, y in drawn) == pytest.approx(wanted, abs=0.02)
