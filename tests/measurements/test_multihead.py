"""``nn.MultiheadAttention`` in two steps: the same numbers, hooks that fire, everything put back."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamics import GIMRules, Probe, gim_backward, take_snapshot
from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.errors import MeasurementError
from dynamics.measurements.held_still import held_still
from dynamics.measurements.interventions import reading, replaced
from dynamics.measurements.multihead import output_projections_called, without_fast_path
from tests.measurements.gim_models import randomised

OPTIONS = {
    "plain": {},
    "positions first": {"batch_first": False},
    "no bias": {"bias": False},
    "other widths": {"kdim": 5, "vdim": 3},
    "bias of keys": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
}


def attention(**options):
    return randomised(nn.MultiheadAttention(6, 2, **{"batch_first": True, **options}))


def inputs(module, examples=3, queries=4, keys=5):
    generator = torch.Generator().manual_seed(1)

    def random(positions, width):
        x = torch.randn(examples, positions, width, generator=generator, dtype=torch.float64)
        return x if module.batch_first else x.transpose(0, 1)

    return random(queries, 6), random(keys, module.kdim), random(keys, module.vdim)


def component(path="out_proj", start=0, stop=3, **site):
    weight = WeightSlice(f"{path}.weight", 1, start, stop)
    return Component(0, "head", 0, Site(path, "input", start, stop, **site), (weight,), (weight,))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("how", [{"need_weights": False}, {}, {"average_attn_weights": False}])
def test_the_numbers_stay_to_the_bit_and_hooks_see_examples_first(name, how):
    module = attention(**OPTIONS[name])
    given = inputs(module)
    expected, weights = module(*given, **how)
    with torch.no_grad():
        without_gradient = module(*given, **how)[0]
    with reading(module, [component()]) as outputs:
        found, found_weights = module(*given, **how)
    assert torch.equal(found, expected)
    assert weights is None or torch.equal(found_weights, weights)
    assert found.shape == expected.shape == without_gradient.shape
    (z,) = outputs.tensors.values()
    assert z.shape == (3, 4, 6)
    ours = F.linear(z, module.out_proj.weight, module.out_proj.bias)
    torch.testing.assert_close(ours if module.batch_first else ours.transpose(0, 1), expected)


def test_a_head_is_replaced_and_only_it():
    module = attention()
    given = inputs(module)
    with reading(module, [component()]) as outputs:
        module(*given)
    z = outputs.tensors["out_proj", "input"].clone()
    value = torch.tensor([1.0, -2.0, 0.5]).double()
    z[..., :3] = value
    with replaced(module, [component()], [value]):
        found, _ = module(*given)
    torch.testing.assert_close(found, F.linear(z, module.out_proj.weight, module.out_proj.bias))


@pytest.mark.parametrize("how", [{"need_weights": False}, {}])
def test_every_parameter_gets_its_ordinary_gradient(how):
    module = attention()
    given = [x.requires_grad_(True) for x in inputs(module)]
    wanted = [*given, *module.parameters()]
    factors = torch.linspace(-1, 1, 3 * 4 * 6).double().view(3, 4, 6)
    expected = torch.autograd.grad((module(*given, **how)[0] * factors).sum(), wanted)
    with reading(module, [component()], gradients=True):
        loss = (module(*given, **how)[0] * factors).sum()
    found = torch.autograd.grad(loss, wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_single_example_without_its_dimension_is_read_as_it_is():
    module = attention()
    query, key, value = (x[0] for x in inputs(module))
    expected, _ = module(query, key, value)
    with reading(module, [component()]) as outputs:
        found, _ = module(query, key, value)
    assert torch.equal(found, expected)
    assert outputs.tensors["out_proj", "input"].shape == (4, 6)


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 5, batch_first=True, **options)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("how", [{"need_weights": False}, {}])
@pytest.mark.parametrize("rules", [GIMRules(), GIMRules(freeze_norm=False), GIMRules(temperature=None)])
def test_gradients_under_gim_are_the_same(how, rules):
    net = randomised(nn.ModuleDict({"norm": nn.LayerNorm(6), "attn": nn.MultiheadAttention(6, 2, batch_first=True)}))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            y = net["norm"](x)
            return x + net["attn"](y, y, y, **how)[0]

    model = Block()
    x = inputs(net["attn"])[0].requires_grad_(True)
    wanted = [x, *model.parameters()]
    with gim_backward(model, rules):
        expected = torch.autograd.grad((model(x) ** 2).sum(), wanted)
    with gim_backward(model, rules):
        with reading(model, [component("net.attn.out_proj")], gradients=True):
            loss = (model(x) ** 2).sum()
        found = torch.autograd.grad(loss, wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(expected[0], torch.autograd.grad((model(x) ** 2).sum(), wanted)[0])


def test_clean_and_ablated_runs_compute_alike_where_pytorch_would_take_its_fast_path():
    model = randomised(Net()).float()
    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    heads = [component(f"layers.layers.{i}.self_attn.out_proj") for i in (0, 1)]
    with held_still(model), torch.no_grad():
        assert not torch.backends.mha.get_fastpath_enabled()
        clean = model(x)
        with reading(model, heads) as outputs:
            assert torch.equal(model(x), clean)
        for head in heads:
            with replaced(model, [head], [outputs.of(head)]):
                assert torch.equal(model(x), clean)
    assert torch.backends.mha.get_fastpath_enabled()


def test_everything_is_put_back_after_an_exception():
    module = attention()
    given = inputs(module)
    calls = []
    handle = module.out_proj.register_forward_hook(lambda *_: calls.append(1))

    def run():
        with output_projections_called(module, ["out_proj"]):
            module(*given)
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert calls == [1]
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.overrides._len_torch_function_stack() == 0
    module(*given)
    assert calls == [1]
    handle.remove()


def test_an_exception_in_a_hook_leaves_the_next_call_alone():
    module = attention()
    given = inputs(module)

    def fail(*_):
        raise KeyError

    with output_projections_called(module, ["out_proj"]):
        handle = module.out_proj.register_forward_pre_hook(fail)
        with pytest.raises(KeyError):
            module(*given)
        handle.remove()
        assert torch.equal(module(*given)[0], attention()(*given)[0])


def test_contexts_nest():
    module = attention()
    given = inputs(module)
    with (
        reading(module, [component()]) as outer,
        reading(module, [component()]) as inner,
        replaced(module, [component()], [torch.zeros(3).double()]),
    ):
        module(*given)
    assert torch.equal(outer.tensors["out_proj", "input"], inner.tensors["out_proj", "input"])


@pytest.mark.parametrize("before", [True, False])
def test_the_fast_path_comes_back_as_it_was_when_users_overlap_in_threads(before):
    torch.backends.mha.set_fastpath_enabled(before)
    try:
        inside, leave = threading.Event(), threading.Event()

        def other():
            with without_fast_path():
                inside.set()
                leave.wait(5)

        thread = threading.Thread(target=other)
        with without_fast_path():
            thread.start()
            inside.wait(5)
        assert not torch.backends.mha.get_fastpath_enabled()
        leave.set()
        thread.join()
        assert torch.backends.mha.get_fastpath_enabled() is before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_other_threads_run_as_usual_meanwhile():
    module = attention()
    given, calls = inputs(module), []
    handle = module.out_proj.register_forward_hook(lambda *_: calls.append(threading.get_ident()))
    with output_projections_called(module, ["out_proj"]):
        thread = threading.Thread(target=lambda: module(*given))
        thread.start()
        thread.join()
        assert calls == []
        module(*given)
    assert calls == [threading.get_ident()]
    handle.remove()


def test_modules_that_share_the_projections_weight_are_refused():
    model = nn.ModuleDict({"a": attention(), "b": attention()})
    model["b"].out_proj.weight = model["a"].out_proj.weight
    with pytest.raises(MeasurementError) as caught, output_projections_called(model, ["a.out_proj", "b.out_proj"]):
        model["a"](*inputs(model["a"]))
    assert str(caught.value) == (
        "2 nn.MultiheadAttention modules share one out_proj.weight, so their heads cannot be told apart; share the "
        "whole module or keep the weights apart."
    )


def test_attention_that_never_runs_is_still_an_error():
    model = nn.ModuleDict({"a": attention()})
    with pytest.raises(MeasurementError) as caught, reading(model, [component("a.out_proj")]):
        pass
    assert str(caught.value) == (
        "'a.out_proj' was never called while the objective ran, so nothing was measured there. Does the objective use "
        "the model it is given?"
    )


def test_a_site_with_positions_first_is_turned_for_reading_and_replacing():
    model = nn.Sequential(nn.Linear(2, 3), nn.Identity()).double()
    x = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for point, path in (("output", "0"), ("input", "1")):
        site = Site(path, point, 1, 3, positions_first=True)
        weight = (WeightSlice("0.weight"),)
        head = Component(0, "head", 0, site, weight, weight)
        with reading(model, [head], gradients=True) as outputs:
            found = model(x)
        assert outputs.of(head).shape == (4, 5, 2)
        assert torch.equal(found, model(x))
        per_example = torch.arange(4.0).double()[:, None, None]
        with replaced(model, [head], [per_example]):
            found = model(x)
        assert torch.equal(found[..., 1:], per_example.transpose(0, 1).expand(5, 4, 2))
        assert torch.equal(found[..., 0], model(x)[..., 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_under_autocast_and_in_other_dtypes(dtype):
    module = attention().to(dtype)
    given = [x.to(dtype) for x in inputs(module)]
    expected, _ = module(*given)
    with reading(module, [component()]):
        assert torch.equal(module(*given)[0], expected)
    with torch.autocast("cpu", torch.bfloat16):
        expected, _ = module(*given)
        with reading(module, [component()]):
            assert torch.equal(module(*given)[0], expected)


def test_a_padding_mask_makes_no_nested_tensors_while_a_model_is_measured():
    layer = nn.TransformerEncoderLayer(6, 2, 5, batch_first=True)
    stack = randomised(nn.TransformerEncoder(layer, 1))

    def objective(model, batch):
        y = model(batch["x"], src_key_padding_mask=batch["padding"])
        return y.square().mean((1, 2)), torch.ones(len(y), dtype=torch.bool)

    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    head = component("layers.0.self_attn.out_proj")
    snapshot = take_snapshot(stack, Probe([{"x": x, "padding": padding}], objective), ComponentMap([head]))
    assert snapshot["gradient_norm"].shape == (1, 1)
    assert (snapshot["ablation_loss"] != snapshot["loss"]).all()
