import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamics import take_snapshot
from dynamics.errors import MeasurementError
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT, Channels, channels_map, channels_probe
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import ablated_scores, integrated_gradients, scores
from tests.strategies import decoder, probe, scenes


def attribute(model, probe, components=None, steps=24):
    snapshot = take_snapshot(model, probe, components, "attribution", methods="ig", ig_steps=steps)
    assert snapshot.methods == ("ig",)
    return snapshot["attribution"][0]


@given(scenes(max_layers=1))
@settings(max_examples=5)
def test_it_equals_the_integral_over_the_slow_forward(scene):
    model, probe = scene
    expected = integrated_gradients(DecoderOracle(model), probe.batches)
    np.testing.assert_allclose(attribute(model, probe), expected, rtol=1e-5, atol=1e-6)


def test_it_equals_the_integral_over_two_layers():
    model = decoder(n_layers=2)
    fixed = probe(model, sizes=((2, 3),))
    expected = integrated_gradients(DecoderOracle(model), fixed.batches, points=81)
    np.testing.assert_allclose(attribute(model, fixed), expected, rtol=1e-6, atol=1e-8)


@given(scenes())
def test_it_is_complete(scene):
    model, probe = scene
    oracle = DecoderOracle(model)
    whole, _ = scores(oracle, probe.batches)
    nothing, _ = ablated_scores(oracle, probe.batches, "mean", oracle.labels)
    np.testing.assert_allclose(attribute(model, probe, steps=40).sum(0), nothing - whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", [DEAD_AND_CRITICAL, REDUNDANT, AND_PAIR])
def test_planted_heads_share_what_all_of_them_give(case):
    values = attribute(case.model(), case.probe(), steps=60)
    assert (values[2:4] == 0).all()
    np.testing.assert_allclose(values[:4].sum(0), case.loss((0, 1)) - case.loss(), rtol=1e-9)
    # The loss depends on the sum of the votes alone, so along the diagonal each head gets its share of that sum.
    votes = np.array([head.out * head.gain for head in case.heads])
    np.testing.assert_allclose(values[:4], np.outer(votes / votes.sum(), values[:4].sum(0)), rtol=1e-9)


@given(st.integers(1, 4))
def test_a_loss_that_is_quadratic_in_the_gates_is_exact_at_any_number_of_steps(steps):
    values = attribute(Channels(), channels_probe(), channels_map(), steps=steps)
    sums, counts = np.array([3.0, -1.0, 4.0, 4.0]), np.array([2, 2, 2, 3])
    error = 1.75 * sums + 3.0 * counts - np.array([11.5, 4.0, 14.0, 10.0])
    away = sums - 10 / 9 * counts
    # At gate a the output is a * 1.75 * away less than what is missing at the mean; a is 1/2 on average.
    np.testing.assert_allclose(values, np.outer([2.0, -0.5, 0.25], -(error - 1.75 * away / 2) * away), rtol=1e-12)


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "8"])
def test_steps_that_are_no_number_of_steps_are_an_error(steps):
    with pytest.raises(MeasurementError) as caught:
        attribute(decoder(), probe(decoder()), steps=steps)
    assert str(caught.value) == f"ig_steps must be a whole number, at least 1; got {steps!r}."
