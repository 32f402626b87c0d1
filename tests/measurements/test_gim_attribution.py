"""The attribution method ``gim`` in a snapshot, against the rules written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynamics import GIMRules, take_snapshot
from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.errors import MeasurementError
from dynamics.measurements.attribution import METHODS
from dynamics.model import SequenceModule, Transformer
from dynamics.probe import Probe
from tests.measurements.gim_models import randomised
from tests.oracles import gim as oracle


def scene(seed=0, n_layers=2, n_heads=2, width=3, sizes=((3, 4), (2, 6))):
    torch.manual_seed(seed)
    model = randomised(
        Transformer(n_layers=n_layers, n_heads=n_heads, d_model=n_heads * width, d_ff=5, vocab_size=6), seed
    )
    batches = []
    for examples, length in sizes:
        ids, labels = torch.randint(6, (2, examples, length))
        batches.append({"input_ids": ids, "labels": labels.masked_fill(torch.rand(examples, length) < 0.4, -100)})
        batches[-1]["labels"][:, -1] = 2
    return model, Probe(batches)


def attribution(model, probe, **options):
    snapshot = take_snapshot(model, probe, measurements="attribution", **options)
    return dict(zip(snapshot.methods, snapshot["attribution"], strict=True))


@given(st.integers(0, 2**16), st.integers(1, 2), st.integers(1, 3), st.floats(1.2, 5), st.booleans(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_it_equals_the_rules_written_out_by_hand(seed, n_layers, n_heads, temperature, freeze, split):
    model, probe = scene(seed, n_layers, n_heads)
    found = attribution(model, probe, rules=GIMRules(temperature, freeze, split))
    rules = oracle.Rules(temperature, freeze, split)
    np.testing.assert_allclose(found["gim"], oracle.attributions(model, probe.batches, rules), rtol=1e-9, atol=1e-12)
    plain = oracle.attributions(model, probe.batches, oracle.OFF)
    np.testing.assert_allclose(found["gradient"], plain, rtol=1e-9, atol=1e-12)


def test_the_rules_default_to_all_three_at_temperature_two():
    model, probe = scene()
    default = attribution(model, probe)
    np.testing.assert_allclose(default["gim"], oracle.attributions(model, probe.batches, oracle.Rules()), rtol=1e-9)
    assert not np.allclose(default["gim"], default["gradient"])


def test_with_the_rules_off_gim_is_the_gradient_to_the_bit():
    model, probe = scene()
    found = attribution(model, probe, rules=GIMRules(None, False, False))
    assert (found["gim"] == found["gradient"]).all()


def test_the_last_mlp_and_frozen_weights_see_what_they_must():
    model, probe = scene()
    expected = attribution(model, probe)["gim"]
    wrapped = SequenceModule(model.requires_grad_(False))
    np.testing.assert_array_equal(attribution(wrapped, probe)["gim"], expected)


@pytest.mark.parametrize("methods", [("gim",), "gim", ("gim", "gradient"), ("gradient", "gim", "gradient")])
def test_methods_are_chosen_by_name_and_keep_their_order(methods):
    model, probe = scene()
    expected, found = attribution(model, probe), attribution(model, probe, methods=methods)
    assert tuple(found) == (("gim",) if methods == "gim" else tuple(dict.fromkeys(methods)))
    for method, values in found.items():
        np.testing.assert_array_equal(values, expected[method])
    assert METHODS == ("gradient", "gim", "ig")


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (("shap",), "methods must be among gradient, gim, ig; got 'shap'."),
        ((), "attribution needs a method, out of gradient, gim, ig; got none."),
    ],
)
def test_methods_that_do_not_exist_are_an_error(methods, message):
    model, probe = scene()
    with pytest.raises(MeasurementError) as caught:
        take_snapshot(model, probe, methods=methods)
    assert str(caught.value) == message
    assert take_snapshot(model, probe, measurements="weight_norm", methods=()).methods == ()


class Linear(nn.Module):
    """A model without attention, norms or gates."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


def test_a_model_without_anything_to_correct_is_an_error_unless_gim_is_left_out():
    def objective(model, batch):
        loss = model(batch).sum((1, 2))
        return loss, loss > 0

    weight = WeightSlice("inner.weight")
    components = ComponentMap([Component(0, "mlp", None, Site("inner", "output"), (weight,), (weight,))])
    probe = Probe([torch.ones(2, 3, 2)], objective)
    with pytest.raises(MeasurementError) as caught:
        take_snapshot(Linear(), probe, components)
    assert str(caught.value).startswith("gim_backward found nothing to act on in Linear: no attention whose softmax ")
    assert take_snapshot(Linear(), probe, components, methods="gradient").methods == ("gradient",)


def test_a_snapshot_counts_the_passes_of_every_method():
    model, probe = scene()
    seen = []
    take_snapshot(
        model, probe, measurements="attribution", ig_steps=3, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (2 + 2 + 2 + 3 * 2,) * 2
