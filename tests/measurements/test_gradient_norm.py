import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamics import find_components, take_snapshot
from dynamics.errors import ComponentError, MeasurementError
from dynamics.measurements.gradient_norm import training_gradient_norm
from dynamics.probe import Probe
from tests.cases import Channels, channels_map, channels_probe, squared_error
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import gradient_norm_by_differences, gradient_norms
from tests.strategies import decoder, probe, scenes

WEIGHTS = ("value_out", "all")


def measure(model, probe, components=None, weights="value_out"):
    return take_snapshot(model, probe, components, measurements="gradient_norm", weights=weights)["gradient_norm"]


@given(scenes(), st.sampled_from(WEIGHTS))
def test_it_equals_the_norm_at_leaves_of_the_slow_forward(scene, weights):
    model, probe = scene
    expected = gradient_norms(DecoderOracle(model), probe.batches, weights)
    assert expected.shape == (len(find_components(model)), len(probe))
    np.testing.assert_allclose(measure(model, probe, weights=weights), expected, rtol=1e-9, atol=1e-13)


@given(scenes(max_layers=1, positions=("none", "rotary")))
@settings(max_examples=3)
def test_it_equals_central_differences_weight_by_weight(scene):
    model, probe = scene
    oracle, values = DecoderOracle(model), measure(model, probe, weights="all")
    for label in ("L0H0", "L0MLP"):
        expected = gradient_norm_by_differences(oracle, probe.batches[-1], label, "all")
        row = oracle.labels.index(label)
        np.testing.assert_allclose(values[row, -1], expected, rtol=1e-6, atol=1e-9)


def test_a_module_with_a_component_map_of_its_own():
    sums, counts = np.array([3.0, -1.0, 4.0, 4.0]), np.array([2, 2, 2, 3])
    slope = (1.75 * sums + 3.0 * counts - np.array([11.5, 4.0, 14.0, 10.0])) * sums
    expected = np.abs([slope[:3].mean(), slope[3]])
    np.testing.assert_allclose(measure(Channels(), channels_probe(), channels_map()), [expected] * 3, rtol=1e-14)


def test_frozen_weights_are_measured_and_stay_frozen():
    model = decoder()
    probe_ = probe(model)
    expected = measure(model, probe_, weights="all")
    frozen = [p for name, p in model.named_parameters() if "blocks.0" in name or "unembed" in name]
    for parameter in frozen:
        parameter.requires_grad_(False)
    np.testing.assert_array_equal(measure(model, probe_, weights="all"), expected)
    assert [p for p in model.parameters() if not p.requires_grad] == frozen


def test_dropout_plays_no_part():
    model, dropping = decoder(), decoder(dropout=0.5).train()
    np.testing.assert_array_equal(measure(dropping, probe(model)), measure(model, probe(model)))


def test_half_precision_is_returned_in_single_precision():
    model = decoder().bfloat16()
    values = measure(model, probe(model))
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, measure(model.double(), probe(model)), rtol=0.2, atol=0.01)


def test_weights_that_do_not_enter_the_loss_are_an_error():
    def without_side(model, batch):
        x, y = batch
        model(x)
        error = (x.sum(-1)[:, None] * model.scale.flatten()).sum(-1) - y
        return error**2, error < 1

    with pytest.raises(MeasurementError) as caught:
        measure(Channels(), Probe(channels_probe().batches, without_side), channels_map())
    assert str(caught.value) == (
        "the loss does not depend on 'side.slope', so it has no gradient there; the component map must name weights "
        "that the objective uses."
    )


def test_a_loss_that_is_cut_off_from_the_model_is_an_error():
    @torch.no_grad()
    def detached(model, batch):
        return squared_error(model, batch)

    with pytest.raises(MeasurementError) as caught:
        measure(Channels(), channels_probe(detached), channels_map())
    assert str(caught.value) == (
        "the loss that the objective returned has no gradient; it must depend on the model's output, without "
        "detach() and outside torch.no_grad()."
    )


def test_unknown_weights_are_an_error():
    model = decoder()
    with pytest.raises(ComponentError) as caught:
        measure(model, probe(model), weights="value")
    assert str(caught.value) == "weights must be 'value_out' or 'all'; got 'value'."


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_training_gradient_is_read_where_the_backward_pass_left_it(weights):
    model = decoder()
    probe_ = probe(model, sizes=[(3, 4)])
    loss, _ = probe_.objective(model, probe_.batches[0])
    loss.mean().backward()
    kept = [p.grad.clone() for p in model.parameters()]
    values = training_gradient_norm(model, find_components(model), weights)
    np.testing.assert_allclose(values, gradient_norms(DecoderOracle(model), probe_.batches, weights)[:, 0], rtol=1e-9)
    assert not values.requires_grad
    assert all(torch.equal(p.grad, before) for p, before in zip(model.parameters(), kept, strict=True))


def test_a_missing_training_gradient_is_nan_for_the_components_it_belongs_to():
    model = decoder()
    probe_ = probe(model)
    probe_.objective(model, probe_.batches[0])[0].mean().backward()
    model.blocks[0].attention.value.weight.grad = None
    model.blocks[1].mlp.input.weight.grad = None
    components = find_components(model)
    missing = {
        weights: [
            label
            for label, value in zip(
                components.labels, training_gradient_norm(model, components, weights).tolist(), strict=True
            )
            if np.isnan(value)
        ]
        for weights in WEIGHTS
    }
    assert missing == {"value_out": ["L0H0", "L0H1"], "all": ["L0H0", "L0H1", "L1MLP"]}
