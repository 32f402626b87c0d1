import numpy as np
import pandas as pd
import pytest

from dynamics.errors import AnalysisError
from dynamics.plot import pair_matrix
from dynamics.plot.palette import DIVERGING


class Pairs:
    """Stands in for what `pair_interactions` returns: A and B are an OR, A and C an AND, B and C add up."""

    def table(self):
        rows = [("A", "B", 0.0, 0.0, 4.0, 4.0), ("A", "C", 1.0, 2.0, 2.0, -1.0), ("B", "C", 0.0, 2.0, 2.0, 0.0)]
        names = ["first", "second", "score", "first_c", "second_c", "joint_c", "interaction"]
        by_loss = [(first, second, "loss", *numbers) for first, second, *numbers in rows]
        by_match = [(first, second, "exact_match", 0, 0, 0, np.nan) for first, second, *_ in rows]
        return pd.DataFrame([*by_loss, *by_match], columns=names)


def test_both_halves_hold_every_pair_with_its_numbers():
    cells = pair_matrix(Pairs()).to_dict()["datasets"]["pairs"]
    found = {(cell["first"], cell["second"]): cell for cell in cells}
    assert set(found) == {(a, b) for a in "ABC" for b in "ABC" if a != b}
    for (first, second), interaction, joint in ((("A", "B"), 4, 4), (("A", "C"), -1, 2), (("B", "C"), 0, 2)):
        for pair in ((first, second), (second, first)):
            assert (found[pair]["interaction"], found[pair]["joint_c"]) == (interaction, joint)
            assert found[pair]["component"] == pair[0]
    # C goes with its component, also in the half where the two change places.
    assert (found["A", "C"]["first_c"], found["A", "C"]["second_c"]) == (1, 2)
    assert (found["C", "A"]["first_c"], found["C", "A"]["second_c"]) == (2, 1)


def test_the_scale_is_symmetric_and_its_middle_is_zero():
    encoding = pair_matrix(Pairs()).to_dict()["encoding"]
    assert encoding["color"]["scale"] == {"domain": [-2, -1, 0, 1, 2], "range": list(DIVERGING)}
    assert encoding["x"]["scale"]["domain"] == encoding["y"]["scale"]["domain"] == ["A", "B", "C"]


def test_what_is_undefined_is_not_drawn():
    drawn = pair_matrix(Pairs(), score="exact_match").to_dict()
    assert {cell["interaction"] for cell in drawn["datasets"]["pairs"]} == {None}
    assert {"filter": "isValid(datum.interaction)"} in drawn["transform"]
    assert drawn["encoding"]["color"]["scale"]["domain"] == [-1, -0.5, 0, 0.5, 1]


def test_the_picture_holds_its_data(tmp_path):
    """Offline: nothing is loaded, also from a page that a notebook's user saves."""
    chart = pair_matrix(Pairs().table())
    chart.save(tmp_path / "pairs.svg")
    svg = (tmp_path / "pairs.svg").read_text()
    assert svg.count(f"rgb({int(DIVERGING[-1][1:3], 16)}, ") >= 2
    chart.save(tmp_path / "pairs.html", inline=True)
    assert '<script src="http' not in (tmp_path / "pairs.html").read_text()


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(AnalysisError) as error:
        pair_matrix(Pairs().table().drop(columns="joint_c"))
    assert str(error.value) == (
        "a pair matrix needs the table of pair_interactions(...); its columns joint_c are missing."
    )
    with pytest.raises(AnalysisError) as error:
        pair_matrix(Pairs().table().iloc[:3], score="exact_match")
    assert str(error.value) == (
        "there is no pair with C by exact_match; pair_interactions(...) needs at least 2 components."
    )
    with pytest.raises(AnalysisError, match="the score must be one of"):
        pair_matrix(Pairs(), score="nats")
