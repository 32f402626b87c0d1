import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dynamics import take_snapshot
from dynamics.errors import MeasurementError
from dynamics.probe import Probe
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT, Channels, channels_map, channels_probe, squared_error
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import attributions, attributions_by_differences
from tests.strategies import decoder, probe, scenes


def attribute(model, probe, components=None):
    snapshot = take_snapshot(model, probe, components, measurements=["attribution"], methods="gradient")
    assert snapshot.methods == ("gradient",)
    return snapshot["attribution"][0]


@given(scenes())
def test_it_equals_the_gradient_of_the_slow_forward(scene):
    model, probe = scene
    expected = attributions(DecoderOracle(model), probe.batches)
    np.testing.assert_allclose(attribute(model, probe), expected, rtol=1e-8, atol=1e-11)


@given(scenes(max_layers=1))
@settings(max_examples=8)
def test_it_is_the_slope_of_log_p_along_the_way_from_the_mean(scene):
    model, probe = scene
    expected = attributions_by_differences(DecoderOracle(model), probe.batches)
    np.testing.assert_allclose(attribute(model, probe), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", [DEAD_AND_CRITICAL, REDUNDANT, AND_PAIR])
def test_planted_heads_get_what_the_closed_form_says(case):
    values = attribute(case.model(), case.probe())[:4]
    np.testing.assert_allclose(values, case.attribution(), rtol=1e-12, atol=1e-15)
    # A needed head supports the answer, and a head that writes nothing gets exactly nothing.
    assert (values[0] > 0.1).all()
    assert (values[2:] == 0).all()


def test_a_module_with_a_component_map_of_its_own():
    values = attribute(Channels(), channels_probe(), channels_map())
    sums, counts = np.array([3.0, -1.0, 4.0, 4.0]), np.array([2, 2, 2, 3])
    error = 1.75 * sums + 3.0 * counts - np.array([11.5, 4.0, 14.0, 10.0])
    away = sums - 10 / 9 * counts
    np.testing.assert_allclose(values, np.outer([2.0, -0.5, 0.25], -error * away), rtol=1e-12)


def test_frozen_weights_do_not_stop_the_gradient():
    model = decoder()
    probe_ = probe(model)
    expected = attribute(model, probe_)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    np.testing.assert_array_equal(attribute(model, probe_), expected)


def test_a_loss_that_is_cut_off_from_the_model_is_an_error():
    def detached(model, batch):
        loss, match = squared_error(model, batch)
        return loss.detach(), match

    with pytest.raises(MeasurementError) as caught:
        attribute(Channels(), channels_probe(detached), channels_map())
    assert str(caught.value) == (
        "the loss that the objective returned has no gradient; it must depend on the model's output, without "
        "detach() and outside torch.no_grad()."
    )


def test_an_output_that_the_loss_ignores_is_an_error():
    def side_only(model, batch):
        x, y = batch
        model(x)
        error = (model.scale * x.sum()).sum() - y
        return error**2, error < 1

    with pytest.raises(MeasurementError) as caught:
        attribute(Channels(), Probe(channels_probe().batches, side_only), channels_map())
    assert str(caught.value) == (
        "the loss does not depend on the input of 'mix', so it has no gradient there; the component map must name "
        "modules whose tensors the objective uses."
    )


def test_half_precision_is_returned_in_single_precision():
    model = decoder().bfloat16()
    values = attribute(model, probe(model))
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, attribute(model.double(), probe(model)), atol=0.15)
    assert torch.isfinite(torch.from_numpy(values)).all()
