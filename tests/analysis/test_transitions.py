import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics.analysis import sigmoid_midpoint, threshold_crossing
from dynamics.analysis.transitions import running_mean
from dynamics.errors import AnalysisError

STEPS = np.arange(1, 81) * 50.0


def sigmoid(steps, middle, width, low=0.0, high=0.95):
    """A rise that takes the step from 10 to 90 % times ``width``."""
    return low + (high - low) / (1 + np.exp(-(np.log(steps) - np.log(middle)) * 2 * np.log(9) / np.log(width)))


def noisy(shares, examples, seed):
    return np.random.default_rng(seed).binomial(examples, np.clip(shares, 0, 1)) / examples


@given(st.lists(st.sampled_from([0.1, 0.5, 0.9, np.nan]), max_size=10), st.integers(1, 4))
def test_a_crossing_equals_a_brute_force_reading(values, persistence):
    told = [(float(10 * row), value) for row, value in enumerate(values) if value == value]
    found = threshold_crossing(10 * np.arange(len(values)), values, 0.5, persistence)
    expected = next(
        (i for i in range(len(told)) if all(value >= 0.5 for _, value in told[i : i + persistence])),
        None,
    )
    if expected is None:
        assert np.isnan([found.step, found.low, found.high, found.kept]).all()
        assert found.reason is not None
        return
    later = [value >= 0.5 for _, value in told[expected:]]
    assert (found.step, found.high, found.reason) == (told[expected][0], told[expected][0], None)
    assert found.low == (told[expected - 1][0] if expected else 0)
    assert found.kept == pytest.approx(np.mean(later))
    assert found.confirmed == (len(later) >= persistence and all(later[:persistence]))


def test_the_best_accuracy_is_one_that_lasts():
    found = threshold_crossing([1, 2, 3, 4, 5], [0.2, 0.9, 0.3, 0.4, 0.35], 0.5, persistence=2)
    assert found.best == 0.35
    assert found.reason == "it does not reach 50% for 2 rows in a row; at best 35%"
    assert threshold_crossing([], [], 0.5).reason == "the series has no rows"


@given(
    st.floats(np.log(200), np.log(2500)),
    st.floats(1.5, 6),
    st.sampled_from([64, 256, 2048]),
    st.floats(0.5, 1.0),
    st.integers(0, 2**16),
)
def test_the_midpoint_is_recovered_from_noise(log_middle, width, examples, high, seed):
    middle = np.exp(log_middle)
    found = sigmoid_midpoint(STEPS, noisy(sigmoid(STEPS, middle, width, 0, high), examples, seed))
    assert found.reason is None
    assert found.low <= found.step <= found.high
    # Eight standard errors of a median of binomial shares, and half a row.
    assert abs(np.log(found.step / middle)) < 4 / np.sqrt(examples) * np.log(width) + 25 / middle
    assert found.explained > 0.6
    assert abs(found.end - high) < 0.25


def test_without_noise_all_is_recovered():
    found = sigmoid_midpoint(STEPS, sigmoid(STEPS, 900, 3, 0.05, 0.85))
    assert (found.step, found.start, found.end, found.width, found.explained) == pytest.approx(
        (900, 0.05, 0.85, 3, 1), rel=1e-4
    )
    linear = 0.05 + 0.8 / (1 + np.exp(-(STEPS - 1500) / 100))
    found = sigmoid_midpoint(STEPS, linear, scale="linear")
    assert (found.step, found.width) == pytest.approx((1500, 200 * np.log(9)), rel=1e-4)


@pytest.mark.parametrize(("examples", "rows", "width"), [(64, 40, 4), (1600, 20, 4), (256, 160, 2), (256, 40, 1.3)])
def test_the_interval_covers_the_midpoint_about_as_often_as_it_says(examples, rows, width):
    steps = np.arange(1, rows + 1) * (4000 / rows)
    middles = np.exp(np.random.default_rng(7).uniform(np.log(400), np.log(2500), 200))
    covered = 0
    for seed, middle in enumerate(middles):
        found = sigmoid_midpoint(steps, noisy(sigmoid(steps, middle, width), examples, seed))
        covered += found.low <= middle <= found.high
    # Of 200 at 95 %: below 0.91 or at 1 with a chance of about 1 %.
    assert 0.91 <= covered / 200 < (1 if width > 1.3 else 1.01)


def test_the_interval_is_too_short_where_the_accuracy_wanders():
    rng = np.random.default_rng(3)
    covered = 0
    for middle in np.exp(rng.uniform(np.log(400), np.log(2500), 200)):
        share = sigmoid(STEPS, middle, 4)
        wander = np.zeros(len(STEPS))
        for row in range(1, len(STEPS)):
            wander[row] = 0.6 * wander[row - 1] + rng.normal(0, 0.03)
        found = sigmoid_midpoint(STEPS, np.clip(share + wander * 4 * share * (1 - share), 0, 1))
        covered += found.low <= middle <= found.high
    # The correction for autocorrelation helps, and is not enough: the documents say some 80 %.
    assert 0.7 < covered / 200 < 0.92


@pytest.mark.parametrize("high", [0.9, 1.0])
def test_a_step_between_two_rows_is_no_better_known_than_the_rows_are_dense(high):
    found = sigmoid_midpoint(STEPS, np.where(STEPS > 1020, high, 0.0))
    assert (found.low, found.high) == pytest.approx((1000, 1050))
    assert 1000 < found.step < 1050
    # A row on the slope: the midpoint may lie on either side of it.
    found = sigmoid_midpoint(STEPS, np.select([STEPS > 1020, STEPS > 990], [high, high / 2], 0.0))
    assert (found.low, found.high) == pytest.approx((950, 1050))


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [
        (np.zeros(80), "it stays between 0% and 0%"),
        (np.ones(80), "it stays between 100% and 100%"),
        (noisy(np.full(80, 0.95), 200, 1), "it stays between 92% and 98%"),
        (np.linspace(0.9, 0.1, 80), "it falls, from 84% to 0%"),
        (np.exp(-(((STEPS - 2000) / 300) ** 2)), "a sigmoid explains 13% of the variance only"),
        (0.1 + 0.15 * sigmoid(STEPS, 900, 3) + 0.1 * (STEPS == 2000), "the fitted rise is from 10% to 24% only"),
        (np.full(80, np.nan), "a sigmoid needs at least 6 rows at different steps; there are 0"),
    ],
)
def test_series_without_a_transition_say_why(accuracy, reason):
    found = sigmoid_midpoint(STEPS, accuracy)
    assert np.isnan([found.step, found.low, found.high]).all()
    assert found.reason == reason


def test_step_zero_has_no_logarithm():
    steps = np.concatenate([[0.0], STEPS])
    accuracy = sigmoid(STEPS, 900, 3)
    assert sigmoid_midpoint(steps, np.concatenate([[0.0], accuracy])) == sigmoid_midpoint(STEPS, accuracy)


def test_the_running_mean_equals_a_loop():
    values = np.random.default_rng(0).random(9)
    for window in (1, 2, 3, 5, 30):
        half = window // 2
        expected = [values[max(i - half, 0) : i + half + 1].mean() for i in range(9)]
        assert running_mean(values, window) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sigmoid_midpoint([1, 2], [0.5]),
            "steps and accuracy must both be (row,), of the same length; got (2,) and (1,).",
        ),
        (lambda: threshold_crossing([2, 1], [0.5, 0.5], 0.5), "steps must ascend; sort the series by step."),
        (lambda: threshold_crossing([1], [0.5], 0.5, 0), "persistence must be at least 1 row; got 0."),
        (lambda: sigmoid_midpoint([1], [0.5], scale="ln"), "the scale must be one of log, linear; got 'ln'."),
        (
            lambda: sigmoid_midpoint([1], [0.5], confidence=95),
            "the confidence must lie between 0 and 1; got 95.",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(AnalysisError) as caught:
        call()
    assert str(caught.value) == message
