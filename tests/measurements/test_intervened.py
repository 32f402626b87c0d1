"""The choice of an engine; that the engines' numbers are right is tested where ablation and each engine are."""

import pytest

from dynamics import find_components
from dynamics.errors import MeasurementError
from dynamics.measurements import intervened
from dynamics.measurements.scorer import Ticks, bind
from tests.cases import DEAD_AND_CRITICAL


def scorer():
    model, probe = DEAD_AND_CRITICAL.model(), DEAD_AND_CRITICAL.probe()
    components = find_components(model)
    return bind(model, components, probe, Ticks(None)), components


def test_an_unknown_engine_is_refused():
    with pytest.raises(MeasurementError) as error:
        intervened.choose_engine(*scorer(), "warp")
    assert str(error.value) == f"engine must be among auto, {', '.join(intervened.ENGINES)}; got 'warp'."


def test_an_engine_that_does_not_suit_says_why_and_is_passed_over_by_auto(monkeypatch):
    unsuited = {"picky": lambda score, components: "the model is too plain"}
    monkeypatch.setattr(intervened, "ENGINES", unsuited | {"hooks": intervened.ENGINES["hooks"]})
    assert intervened.choose_engine(*scorer()).name == "hooks"
    with pytest.raises(MeasurementError) as error:
        intervened.choose_engine(*scorer(), "picky")
    assert str(error.value) == "the engine 'picky' does not suit here: the model is too plain. Use engine='auto'."
