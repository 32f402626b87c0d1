import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dynamics import ComponentMap, find_components, take_snapshot
from dynamics.errors import ComponentError, MeasurementError
from dynamics.model import SequenceModule
from dynamics.probe import Probe, sequence_objective
from dynamics.snapshot import select_measurements
from tests.cases import WITHOUT_ATTENTION, Channels, channels_map, channels_probe
from tests.strategies import decoder, probe, scenes


def bits(tensor):
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape), tensor.detach().numpy().tobytes())


def everything_about(model):
    """Return all that a snapshot must not change, in a form that can be compared."""
    modules = dict(model.named_modules())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    numpy_state = np.random.get_state()
    return {
        "parameters": {name: (id(p), bits(p)) for name, p in model.named_parameters()},
        "buffers": {name: (id(b), bits(b)) for name, b in model.named_buffers()},
        "gradients": {name: (id(p.grad), bits(p.grad)) for name, p in model.named_parameters()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "training": {name: module.training for name, module in modules.items()},
        "hooks": {name: [len(getattr(module, kind)) for kind in hooks] for name, module in modules.items()},
        "parameter hooks": {name: len(p._backward_hooks or ()) for name, p in model.named_parameters()},
        "torch": bits(torch.get_rng_state()),
        "numpy": (numpy_state[0], numpy_state[1].tobytes(), *numpy_state[2:]),
        "python": random.getstate(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def used_model():
    """Return a model in the middle of things: modes mixed, some weights frozen, some gradients there."""
    module = SequenceModule(decoder(dropout=0.3)).train()
    module.register_buffer("extra", torch.arange(3.0))
    module.model.blocks[1].eval()
    module.model.blocks[1].dropout.train()
    module.model.blocks[0].mlp.output.weight.requires_grad_(False)
    module.model.embed.weight.requires_grad_(False)
    for name, parameter in module.named_parameters():
        if "blocks.1" in name:
            parameter.grad = torch.full_like(parameter, 0.5)
    return module


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop_after", [0, 1, 2, 4, 5, 6, 20, None])
def test_the_model_is_left_as_it_was_even_when_the_objective_fails(stop_after):
    calls = 0

    def objective(model, batch):
        nonlocal calls
        torch.rand(3), np.random.rand(3), random.random()
        assert not any(module.training for module in model.modules())
        calls += 1
        if stop_after is not None and calls > stop_after:
            raise StopError
        return sequence_objective(model, batch)

    model = used_model()
    kept = Probe(probe(model.model).batches, objective)
    before = everything_about(model)
    if stop_after is None:
        take_snapshot(model, kept)
        assert calls == 2 + 2 + (1 + 1 + 8) * 2 + 2 + 2 * 2 * 6
    else:
        with pytest.raises(StopError):
            take_snapshot(model, kept)
    assert everything_about(model) == before


@given(scenes(), st.sampled_from(("value_out", "all")))
def test_it_leaves_any_model_as_it_was_and_gives_the_same_again(scene, weights):
    model, probe = scene
    before = everything_about(model)
    first = take_snapshot(model, probe, weights=weights)
    assert everything_about(model) == before
    again = take_snapshot(model, probe, weights=weights)
    assert all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_with_autograd_off_and_leaves_it_off(mode):
    model = decoder()
    fixed = probe(model)
    expected = take_snapshot(model, fixed)
    with mode():
        before = everything_about(model)
        inside = take_snapshot(model, fixed)
        assert everything_about(model) == before
    assert all(np.array_equal(inside[name], expected[name], equal_nan=True) for name in expected)


def test_a_dropping_and_wrapped_model_gives_what_the_bare_one_gives():
    bare = decoder()
    fixed = probe(bare)
    expected, snapshot = take_snapshot(bare, fixed), take_snapshot(used_model(), fixed)
    assert all(np.array_equal(snapshot[name], expected[name], equal_nan=True) for name in expected)
    assert snapshot.components.root == "model"


def test_the_default_objective_is_given_the_transformer_and_ones_own_what_was_handed_over():
    class Holder(nn.Module):
        """A module that cannot be called the way a transformer is."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self):
            raise AssertionError("called with arguments of its own")

    holder, given = Holder(decoder()), []

    def objective(model, batch):
        given.append(model)
        return sequence_objective(model.inner, batch)

    fixed = probe(holder.inner)
    expected = take_snapshot(holder.inner, fixed)
    for snapshot in (take_snapshot(holder, fixed), take_snapshot(holder, Probe(fixed.batches, objective))):
        assert all(np.array_equal(snapshot[name], expected[name], equal_nan=True) for name in expected)
    assert all(model is holder for model in given)
    assert len(given) == 50


def test_what_a_snapshot_holds():
    model = decoder()
    snapshot = take_snapshot(model, probe(model, sizes=[(3, 4), (2, 2)]))
    dims = {
        "loss": ("example",),
        "exact_match": ("example",),
        "weight_norm": ("component",),
        "gradient_norm": ("component", "batch"),
        "attribution": ("method", "component", "example"),
        "self_repair_rows": ("component", "example"),
        "self_repair_interaction": ("component", "example"),
        "ablation_loss": ("baseline", "component", "example"),
        "ablation_exact_match": ("baseline", "component", "example"),
    }
    assert {name: snapshot.dims(name) for name in snapshot} == dims
    assert len(snapshot) == 9
    assert snapshot.batch_sizes == (3, 2)
    assert snapshot.methods == ("gradient", "gim", "ig")
    assert snapshot.spec("loss").units == "nat"
    assert repr(take_snapshot(model, probe(model), measurements=["weight_norm"])) == (
        "Snapshot(6 components; loss (5,), exact_match (5,), weight_norm (6,))"
    )
    # Sorting by name keeps the order of the labels with the numbers.
    assert snapshot.components.labels == ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP")


def test_an_array_that_was_not_measured_is_an_error():
    model = decoder()
    snapshot = take_snapshot(model, probe(model), measurements="weight_norm")
    for get in (snapshot.__getitem__, snapshot.spec, snapshot.dims):
        with pytest.raises(KeyError) as caught:
            get("ablation_loss")
        assert caught.value.args == ("this snapshot has no 'ablation_loss'; it holds loss, exact_match, weight_norm.",)
    assert "ablation_loss" not in snapshot


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("all", ("clean", "weight_norm", "gradient_norm", "attribution", "self_repair", "ablation")),
        (["ablation", "all"], ("clean", "weight_norm", "gradient_norm", "attribution", "self_repair", "ablation")),
        ([], ("clean",)),
        ("clean", ("clean",)),
        (["ablation", "weight_norm"], ("clean", "weight_norm", "ablation")),
        ("attribution", ("clean", "attribution")),
    ],
)
def test_measurements_are_chosen_by_name(wanted, names):
    assert select_measurements(wanted) == names


def test_a_name_that_is_not_known_is_an_error():
    model = decoder()
    for options, message in (
        (
            {"measurements": ["ablation", "gim", "abl"]},
            "measurements must be among all, clean, weight_norm, gradient_norm, attribution, self_repair, ablation; "
            "got 'abl', 'gim'.",
        ),
        ({"baselines": ("mean", "median")}, "baselines must be among mean, zero; got 'median'."),
        ({"baselines": "median"}, "baselines must be among mean, zero; got 'median'."),
        ({"baselines": ()}, "ablation needs a baseline, out of mean, zero; got none."),
    ):
        with pytest.raises(MeasurementError) as caught:
            take_snapshot(model, probe(model), **options)
        assert str(caught.value) == message


def test_baselines_may_be_one_name_and_none_without_ablation():
    model = decoder()
    assert take_snapshot(model, probe(model), measurements="ablation", baselines="zero").baselines == ("zero",)
    snapshot = take_snapshot(model, probe(model), measurements="weight_norm", baselines=())
    assert snapshot.baselines == ()


def test_components_of_another_model_are_an_error():
    model = decoder(n_layers=1)
    with pytest.raises(ComponentError) as caught:
        take_snapshot(model, probe(model), find_components(decoder(n_layers=2)))
    assert str(caught.value) == (
        "L1H0: the model has no module 'blocks.1.attention.output', which the component map names. "
        "Was the map made for another model, or the model changed since?"
    )
    wide = decoder(d_model=16)
    with pytest.raises(ComponentError) as caught:
        take_snapshot(model, probe(model), find_components(wide))
    assert str(caught.value) == (
        "L0H1: blocks.0.attention.value.weight has 8 entries along dimension 0, but the component map asks for 8 to 16."
    )


def test_some_components_can_be_measured_alone():
    model = decoder()
    fixed = probe(model)
    components = find_components(model)
    # Integrated gradients go to where all of these components are ablated, so they depend on the others.
    methods = ("gradient", "gim")
    whole = take_snapshot(model, fixed, methods=methods)
    part = take_snapshot(model, fixed, ComponentMap(components[1:4]), methods=methods)
    for name in whole:
        axis = whole.dims(name).index("component") if "component" in whole.dims(name) else None
        expected = whole[name] if axis is None else whole[name].take([1, 2, 3], axis)
        np.testing.assert_allclose(part[name].astype(float), expected.astype(float), rtol=1e-12)


def test_nan_weights_are_recorded_not_raised():
    model = decoder()
    with torch.no_grad():
        model.blocks[0].mlp.input.weight[0, 0] = torch.nan
    snapshot = take_snapshot(model, probe(model))
    assert np.isnan(snapshot["loss"]).all()
    assert not snapshot["exact_match"].any()
    assert np.isnan(snapshot["gradient_norm"]).all()
    assert np.isnan(snapshot["attribution"]).all()
    assert np.isnan(snapshot["self_repair_rows"]).all()
    mlp = snapshot.components.labels.index("L0MLP")
    # Only with the broken MLP set to zero is anything left to see.
    assert np.isfinite(snapshot["ablation_loss"][1]).all(-1).tolist() == [c == mlp for c in range(6)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_comes_back_in_single_precision(dtype):
    model = decoder()
    fixed = probe(model)
    expected, snapshot = take_snapshot(model, fixed), take_snapshot(model.to(dtype), fixed)
    wide = np.float64 if dtype == torch.float64 else np.float32
    assert {name: array.dtype.type for name, array in snapshot.items()} == {
        name: np.bool_ if "match" in name else wide for name in snapshot
    }
    np.testing.assert_allclose(snapshot["loss"], expected["loss"], atol=0.1)
    np.testing.assert_allclose(snapshot["ablation_loss"], expected["ablation_loss"], atol=0.2)


def test_a_module_with_a_component_map_of_its_own_is_left_as_it_was():
    model = Channels().train()
    before = everything_about(model)
    snapshot = take_snapshot(model, channels_probe(), channels_map(), WITHOUT_ATTENTION, methods="gradient")
    assert everything_about(model) == before
    assert snapshot.batch_sizes == (3, 1)


def test_progress_counts_up_to_what_it_announced_for_every_choice():
    model = decoder(n_layers=1)
    for measurements in ("all", "ablation", "gradient_norm", ["attribution", "weight_norm"], []):
        for baselines in (("mean",), ("zero", "mean")):
            seen = []
            take_snapshot(
                model,
                probe(model),
                measurements=measurements,
                baselines=baselines,
                progress=lambda done, total, seen=seen: seen.append((done, total)),
            )
            total = seen[-1][1]
            assert seen == [(done, total) for done in range(1, total + 1)]


def test_a_batch_norm_in_training_mode_keeps_its_running_statistics():
    class Normed(Channels):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(1, dtype=torch.float64)

        def forward(self, x):
            return super().forward(self.norm(x[:, None])[:, 0])

    model = Normed().train()
    before = everything_about(model)
    take_snapshot(model, channels_probe(), channels_map(), WITHOUT_ATTENTION, methods="gradient")
    assert everything_about(model) == before
