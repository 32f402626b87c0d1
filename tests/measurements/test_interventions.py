import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from dynamics import take_snapshot
from dynamics.errors import MeasurementError
from dynamics.measurements.held_still import held_still
from dynamics.measurements.interventions import reading, replaced, requiring_grad
from dynamics.model import Transformer
from dynamics.tasks import SequenceDataModule
from tests.cases import Channels, channels_map, channels_probe, squared_error
from tests.strategies import decoder, probe


def test_a_module_that_is_called_twice_is_an_error():
    def twice(model, batch):
        model(batch[0])
        return squared_error(model, batch)

    with pytest.raises(MeasurementError) as caught:
        take_snapshot(Channels(), channels_probe(twice), channels_map())
    assert str(caught.value) == (
        "'mix' is called more than once in one evaluation of the objective; a component's output must appear once. "
        "Let the objective call the model once, or map each use to a module of its own."
    )


NEVER = (
    "'mix' was never called while the objective ran, so nothing was measured there. "
    "Does the objective use the model it is given?"
)


def test_an_objective_that_ignores_the_model_is_an_error():
    def constant(model, batch):
        zero = torch.zeros(len(batch[0]), requires_grad=True)
        return zero, zero == 0

    with pytest.raises(MeasurementError) as caught:
        take_snapshot(Channels(), channels_probe(constant), channels_map())
    assert str(caught.value) == NEVER


def test_replacing_in_a_module_that_is_never_called_is_an_error():
    components = channels_map()
    with pytest.raises(MeasurementError) as caught, replaced(Channels(), components[:1], [torch.zeros(1)]):
        pass
    assert str(caught.value) == NEVER


def test_an_output_that_is_not_a_tensor_is_an_error():
    class Wordy(nn.Module):
        def forward(self, x):
            return {"z": x}

    model = Channels()
    model.side = Wordy()
    model.side.slope = nn.Parameter(torch.ones(1, 1))
    with pytest.raises(MeasurementError) as caught, reading(model, channels_map()):
        model(torch.ones(2, 3).double())
    assert str(caught.value) == (
        "'side' was expected to have a tensor as its output; got dict. Name another module in the component map."
    )


def test_what_is_read_is_what_the_module_got_and_the_rest_of_a_tuple_passes_through():
    model, x = Channels(), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    with reading(model, channels_map()) as outputs:
        total = model(x)
    first, second, mlp = (outputs.of(component) for component in channels_map())
    assert first.flatten().tolist() == [2.0, 4.0]
    assert second.flatten().tolist() == [-0.5, -1.0]
    assert mlp.flatten().tolist() == [3.25, 3.5]
    assert total.item() == 11.25
    with replaced(model, channels_map()[2:], [torch.tensor([1.0])]):
        output, rest = model.side(x)
    assert (output.flatten().tolist(), rest) == ([1.0, 1.0], "not a tensor")


def test_only_the_first_argument_of_a_module_is_replaced():
    class Scaled(nn.Module):
        def forward(self, x, factor, *, shift):
            return x * factor + shift

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = Scaled()

        def forward(self, x):
            return self.mix(x, 3.0, shift=1.0)

    x = torch.tensor([[[1.0, 2.0]]])
    model = Model()
    with replaced(model, channels_map()[:1], [torch.tensor([5.0])]):
        assert model(x).tolist() == [[[16.0, 7.0]]]


def test_reading_does_not_change_the_output_and_gives_leaves_their_gradient():
    model, x = Channels(), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with reading(model, channels_map(), gradients=True) as outputs:
        total = model(x)
    assert total.item() == 11.25
    gradients = torch.autograd.grad(total.sum(), list(outputs.leaves.values()))
    assert [tuple(gradient.shape) for gradient in gradients] == [(1, 2, 2), (1, 2, 1)]
    assert all((gradient == 1).all() for gradient in gradients)


def test_the_rest_of_a_tensor_is_not_replaced_nor_the_original_written_to():
    model = decoder()
    ids = probe(model).batches[0]["input_ids"]
    seen = []
    model.blocks[0].attention.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    components = take_snapshot(model, probe(model), measurements=[]).components
    seen.clear()
    with reading(model, components[:2]) as outputs, torch.no_grad():
        model(ids)
        before = outputs.of(components[1]).clone()
    with replaced(model, components[:1], [torch.zeros(4)]), reading(model, components[:2]) as outputs, torch.no_grad():
        model(ids)
    assert (outputs.of(components[0]) == 0).all()
    assert torch.equal(outputs.of(components[1]), before)
    assert torch.equal(seen[0], seen[1])
    assert (seen[0][..., :4] != 0).any()


def test_requiring_grad_goes_back_when_something_fails():
    parameters = [nn.Parameter(torch.ones(1), requires_grad=flag) for flag in (True, False)]
    with contextlib.suppress(KeyError), requiring_grad(parameters):
        assert all(parameter.requires_grad for parameter in parameters)
        raise KeyError
    assert [parameter.requires_grad for parameter in parameters] == [True, False]


def test_held_still_gives_back_random_states_flags_and_buffers_when_something_fails():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("written", torch.zeros(2))
            self.register_buffer("replaced", torch.zeros(2))
            self.register_buffer("nothing", None)
            self.register_buffer("expanded", torch.zeros(1).expand(2))

        def forward(self):
            self.written += 1
            self.replaced = self.replaced + 1
            return self.replaced

    model = nn.Sequential(nn.Linear(1, 1), Counter()).train()
    model[0].eval()
    buffers = dict(model.named_buffers())
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with contextlib.suppress(KeyError), torch.no_grad(), held_still(model):
        assert torch.is_grad_enabled()
        assert not any(module.training for module in model.modules())
        torch.rand(1), np.random.rand(), random.random()
        model[1]()
        raise KeyError
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected
    assert [module.training for module in model.modules()] == [True, False, True]
    assert all(dict(model.named_buffers())[name] is buffer for name, buffer in buffers.items())
    assert all((buffer == 0).all() for buffer in buffers.values())


def test_a_module_compiled_in_place_is_measured_uncompiled_and_stays_compiled():
    torch.manual_seed(0)
    model = Transformer(n_layers=1, n_heads=2, d_model=8, d_ff=8).double()
    examples = SequenceDataModule("sort", probe_batches=2, probe_batch_size=2).probe()
    expected = take_snapshot(model, examples)
    # PyTorch keeps the compiled call here; a stand-in shows whether it is used.
    used = []
    model._compiled_call_impl = lambda *given: used.append(given)
    model.blocks[0]._compiled_call_impl = lambda *given: used.append(given)
    snapshot = take_snapshot(model, examples)
    assert not used
    model(examples.batches[0]["input_ids"])
    assert len(used) == 1
    assert model.blocks[0]._compiled_call_impl is not None
    for name in expected:
        np.testing.assert_array_equal(snapshot[name], expected[name])
