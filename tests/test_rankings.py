import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dynamics import take_snapshot
from dynamics.errors import MeasurementError
from dynamics.measurements.catalogue import MEASUREMENTS
from dynamics.rankings import descending, possible_rankings, ranking_scores, select_rankings
from tests.cases import DEAD_AND_CRITICAL
from tests.strategies import decoder, probe

ALL = [spec.name for measurement in MEASUREMENTS.values() for spec in measurement.arrays]
POSSIBLE = ("gradient_norm", "gradient", "gim", "ig", "ablation", "random", "|gradient|", "|gim|", "|ig|")


def test_scores_are_the_means_of_what_was_measured():
    model = decoder()
    snapshot = take_snapshot(model, probe(model), baselines=("zero", "mean"))
    scores = dict(zip(POSSIBLE, ranking_scores(snapshot, POSSIBLE), strict=True))
    for component in range(6):
        assert scores["gradient_norm"][component] == pytest.approx(np.mean(snapshot["gradient_norm"][component]))
        for m, method in enumerate(("gradient", "gim", "ig")):
            mean = np.mean(snapshot["attribution"][m, component])
            assert scores[method][component] == pytest.approx(mean)
            assert scores[f"|{method}|"][component] == pytest.approx(abs(mean))
        gained = np.mean(snapshot["ablation_loss"][1, component]) - np.mean(snapshot["loss"])
        assert scores["ablation"][component] == pytest.approx(gained)
    assert sorted(scores["random"]) == list(range(6))
    # The control is the same for another model of as many components.
    other = decoder(seed=7)
    again = ranking_scores(take_snapshot(other, probe(other), measurements=()), ["random"])
    assert (again[0] == scores["random"]).all()
    # The attributions have both signs, so that the magnitudes rank differently.
    assert (descending(scores["gim"]) != descending(scores["|gim|"])).any()


def test_ties_keep_the_order_of_components_and_nan_comes_last():
    scores = np.array([[1.0, 3.0, 1.0, 3.0], [np.nan, -np.inf, 0.0, np.inf], [0.0, -0.0, 0.0, -0.0]])
    assert descending(scores).tolist() == [[1, 3, 0, 2], [3, 2, 1, 0], [0, 1, 2, 3]]
    # Many: short arrays are sorted stably by any means.
    assert descending(np.tile([0.0, 1.0], (1, 40))).tolist() == [[*range(1, 80, 2), *range(0, 80, 2)]]


def test_what_supports_the_answer_comes_first_and_what_speaks_against_it_last():
    snapshot = take_snapshot(DEAD_AND_CRITICAL.model(), DEAD_AND_CRITICAL.probe())
    names = ("gradient_norm", "gradient", "gim", "ig", "ablation")
    orders = descending(ranking_scores(snapshot, names))
    # Head 1 reads the input but writes nothing: its gradient is not zero, and all else of it is.
    assert orders[:, 0].tolist() == [0, 0, 0, 0, 0]
    assert orders[1:].tolist() == [[0, 1, 2, 3, 4]] * 4


@given(arrays(float, 6, elements=st.floats(-3, 3), unique=True), st.permutations(range(6)))
def test_scores_that_move_with_their_components_rank_them_the_same(scores, places):
    [order], [moved] = descending(scores[None]), descending(scores[places][None])
    assert [places[index] for index in moved] == order.tolist()


@pytest.mark.parametrize(
    ("arrays", "baselines", "methods", "expected"),
    [
        (ALL, ("mean", "zero"), ("gradient", "gim", "ig"), POSSIBLE),
        (ALL, ("zero",), ("gim",), ("gradient_norm", "gim", "random", "|gim|")),
        (["loss", "ablation_loss"], ("mean",), ("gim",), ("ablation", "random")),
        (["loss"], (), (), ("random",)),
    ],
)
def test_the_possible_rankings_are_those_of_what_is_measured(arrays, baselines, methods, expected):
    assert possible_rankings(arrays, baselines, methods) == expected


def test_rankings_are_chosen_by_name():
    assert select_rankings(None, POSSIBLE) == POSSIBLE[:6]
    assert select_rankings("|gim|", POSSIBLE) == ("|gim|",)
    assert select_rankings(["random", "ig", "random"], POSSIBLE) == ("random", "ig")
    for wrong, got in ((["gim", "shap", "G"], "'shap', 'G'"), ([], "none")):
        with pytest.raises(MeasurementError) as caught:
            select_rankings(wrong, ("gim", "random", "|gim|"))
        assert str(caught.value) == (
            "rankings must be among gim, random, |gim|, which is what the snapshot's measurements, baselines and "
            f"methods allow; got {got}."
        )
