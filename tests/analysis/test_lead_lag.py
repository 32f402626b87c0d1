import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics.analysis import events_table, largest_change, lead_lag_table, role_episodes, weight_norm_turn
from dynamics.errors import AnalysisError
from tests.analysis.timelines import timeline


@given(st.lists(st.floats(-1, 1) | st.just(np.nan), min_size=1, max_size=12))
def test_the_largest_change_is_the_best_fit_by_two_constants(values):
    steps = 5.0 * np.arange(len(values))
    told = [(step, value) for step, value in zip(steps, values, strict=True) if value == value]
    found = largest_change(steps, values)
    y = np.array([value for _, value in told])
    if len(y) < 4:
        assert found.reason == f"a change of level needs 4 snapshots; {len(y)} have a value"
        return
    if np.ptp(y) == 0:
        assert found.reason == f"it is {y[0]:.2f} at every snapshot"
        return
    errors = {k: y[:k].var() * k + y[k:].var() * (len(y) - k) for k in range(2, len(y) - 1)}
    cut = [step for step, _ in told].index(found.step)
    assert errors[cut] == pytest.approx(min(errors.values()), abs=1e-12)
    assert (found.low, found.high) == (told[cut - 1][0], found.step)
    assert found.size == pytest.approx(y[cut:].mean() - y[:cut].mean(), abs=1e-12)


def test_resamples_widen_the_interval():
    steps, values = np.arange(8) * 10, np.array([0, 0, 0, 0, 1, 1, 1, 1.0])
    earlier, later = np.where(steps >= 20, 1.0, 0.0), np.where(steps >= 60, 1.0, 0.0)
    samples = np.stack([values] * 2 + [earlier] * 4 + [later] * 4 + [np.full(8, np.nan)])
    found = largest_change(steps, values, samples, confidence=0.9)
    assert (found.step, found.low, found.high, found.size) == (40, 20, 60, 1)
    same = largest_change(steps, values, np.stack([values] * 5))
    assert (same.low, same.high) == (30, 40)


def test_the_turn_of_the_weight_norm():
    steps = [0, 10, 20, 30]
    # 3-4-5 triangles: norms 5, 10, 10, 9 over both components.
    norms = np.array([[3, 4], [6, 8], [0, 10], [9, 0.0]])
    found = weight_norm_turn(steps, norms)
    assert (found.step, found.low, found.high, found.reason) == (10, 0, 20, None)
    assert found.size == pytest.approx(-0.1)
    assert weight_norm_turn(steps, norms[::-1] * 0 + [[1], [2], [3], [4]]).reason == (
        "the norm is largest at the last snapshot"
    )
    assert weight_norm_turn(steps, [[1], [2], [1.99], [1.99]]).reason == (
        "the norm declines by 0.5% only after its maximum"
    )
    assert weight_norm_turn(steps, np.full((4, 1), np.nan)).reason == "no snapshot has a finite norm"
    # From the start on: the maximum lies no earlier than the first step.
    assert weight_norm_turn(steps, [[4], [3], [2], [1]]).low == 0


def test_events():
    whole = timeline("ahhhhh", "bbbbba", "-----h", "aaaaaa")
    table = events_table(whole, role_episodes(whole), np.ones((6, 4)))
    assert table[["event", "component", "role"]].values.tolist() == [
        ["role onset", "L0H1", "bloat"],
        ["role onset", "L0H0", "hero"],
        ["role onset", "L0H2", "hero"],
        ["rho change", "", ""],
        ["weight-norm turn", "", ""],
    ]
    # The bloat was there at the first snapshot; the last hero may have been one all along.
    assert table[["step", "low", "high"]].values[:3].tolist() == [[0, 0, 0], [10, 0, 10], [50, 0, 50]]
    assert table["reason"].tolist() == [None] * 4 + ["the norm declines by 0.0% only after its maximum"]
    assert events_table(whole, role_episodes(whole)).iloc[-1]["reason"] == "no weight norm was recorded"


def test_a_role_that_comes_back_counts_once():
    whole = timeline("hhhaahhh", "aaaaaaaa")
    assert events_table(whole, role_episodes(whole))["step"].tolist()[:1] == [0]
    assert (events_table(whole, role_episodes(whole))["event"] == "role onset").sum() == 1


def events(*rows):
    columns = ["event", "component", "role", "step", "low", "high", "size", "reason"]
    return pd.DataFrame([(name, "", "", *times, 0.0, None) for name, *times in rows], columns=columns)


def test_lead_and_lag():
    times = pd.DataFrame(
        {"series": ["ood", "ood"], "method": ["threshold", "sigmoid"], "step": [200.0, np.nan], "low": [150.0, np.nan],
         "high": [200.0, np.nan]}
    )  # fmt: skip
    table = lead_lag_table(
        events(
            ("early", 100, 50, 100), ("touching", 150, 100, 150), ("within", 180, 160, 180), ("late", 400, 300, 400),
            ("next", 250, 200, 250), ("never", np.nan, np.nan, np.nan),
        ),
        times,
    )  # fmt: skip
    assert table["event"].tolist() == ["early", "touching", "within", "late", "next"]
    assert table["order"].tolist() == ["before", "before", "open", "after", "after"]
    assert table[["lag", "lag_low", "lag_high"]].values.tolist() == [
        [-100, -150, -50], [-50, -100, 0], [-20, -40, 30], [200, 100, 250], [50, 0, 100],
    ]  # fmt: skip
    assert table.loc[3, ["ratio", "ratio_low", "ratio_high"]].tolist() == pytest.approx([2, 1.5, 400 / 150])
    # The middle of an interval that reaches to both sides.
    fitted = pd.DataFrame({"series": "ood", "method": "sigmoid", "step": [180.0], "low": 150.0, "high": 200.0})
    row = lead_lag_table(events(("late", 400, 300, 400)), fitted).iloc[0]
    assert row[["lag", "lag_low", "lag_high"]].tolist() == [220, 100, 250]
    assert row[["ratio", "ratio_low", "ratio_high"]].tolist() == pytest.approx([400 / 180, 1.5, 400 / 150])


@given(st.data())
def test_the_truth_lies_in_the_range_and_never_against_the_order(data):
    def interval():
        low, high = sorted(data.draw(st.tuples(st.integers(0, 50), st.integers(0, 50))))
        return low, high, data.draw(st.integers(low + (low < high), high)), high

    low, high, truth, step = interval()
    gen_low, gen_high, gen_truth, gen = interval()
    times = pd.DataFrame({"series": "a", "method": "b", "step": [float(gen)], "low": gen_low, "high": gen_high})
    (row,) = lead_lag_table(events(("x", step, low, high)), times).itertuples()
    assert row.lag_low <= truth - gen_truth <= row.lag_high
    assert row.order != ("after" if truth < gen_truth else "before" if truth > gen_truth else "")
    if gen_truth and gen_low:
        assert row.ratio_low <= truth / gen_truth <= row.ratio_high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: largest_change([1, 2], [1]),
            "steps and values must both be (step,), of the same length; got (2,) and (1,).",
        ),
        (
            lambda: largest_change(range(4), [0, 0, 1, 1], np.ones((5, 3))),
            "samples must be (resample, step) with 4 steps; got (5, 3).",
        ),
        (
            lambda: weight_norm_turn([1, 2], np.ones(2)),
            "weight_norm must be (step, component) with 2 steps; got (2,).",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(AnalysisError) as caught:
        call()
    assert str(caught.value) == message
