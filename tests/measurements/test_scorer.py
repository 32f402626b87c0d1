from dataclasses import replace

import pytest
import torch
from torch import nn

from dynamics import ComponentMap, Probe, find_components, take_snapshot
from dynamics.errors import ProbeError
from tests.cases import Channels, channels_map, channels_probe, squared_error
from tests.strategies import decoder, probe

EXPECTED = (
    "the objective must return the loss and the exact match of each example, a float tensor (examples,) "
    "and a bool tensor (examples,); got "
)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda loss, match: (loss.mean(), match), "torch.float64 () and torch.bool (3,)."),
        (lambda loss, match: (loss.mean(), match.all()), "torch.float64 () and torch.bool ()."),
        (lambda loss, match: (loss[:, None], match[:, None]), "torch.float64 (3, 1) and torch.bool (3, 1)."),
        (lambda loss, match: (loss, match[:2]), "torch.float64 (3,) and torch.bool (2,)."),
        (lambda loss, match: (loss, match.float()), "torch.float64 (3,) and torch.float32 (3,)."),
        (lambda loss, match: (loss.long(), match), "torch.int64 (3,) and torch.bool (3,)."),
        (lambda loss, match: (loss.tolist(), match), "a list and torch.bool (3,)."),
        (lambda loss, match: (loss, 0.5), "torch.float64 (3,) and a float."),
        (lambda loss, match: loss, "a Tensor."),
        (lambda loss, match: (loss, match, 1), "a tuple of 3."),
        (lambda loss, match: None, "a NoneType."),
    ],
)
def test_an_objective_that_returns_anything_else_is_an_error(change, got):
    with pytest.raises(ProbeError) as caught:
        take_snapshot(
            Channels(), channels_probe(lambda model, batch: change(*squared_error(model, batch))), channels_map()
        )
    assert str(caught.value) == EXPECTED + got


def test_the_objective_is_given_what_was_handed_over_and_the_batch_as_it_was():
    given = []

    def objective(model, batch):
        given.append((model, batch))
        return squared_error(model, batch)

    model, probe = Channels(), channels_probe(objective)
    take_snapshot(model, probe, channels_map(), measurements=[])
    assert [m is model for m, _ in given] == [True, True]
    for (_, batch), expected in zip(given, probe.batches, strict=True):
        assert isinstance(batch, tuple)
        assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))


def test_a_module_without_a_forward_is_named():
    class Shell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Channels()

    components = channels_map()
    inside = [
        replace(
            component,
            site=replace(component.site, module=f"inner.{component.site.module}"),
            value_out=tuple(replace(w, parameter=f"inner.{w.parameter}") for w in component.value_out),
            all_weights=tuple(replace(w, parameter=f"inner.{w.parameter}") for w in component.all_weights),
        )
        for component in components
    ]
    with pytest.raises(ProbeError) as caught:
        take_snapshot(Shell(), channels_probe(lambda model, batch: model(batch)), type(components)(inside))
    assert str(caught.value) == (
        'the objective called something that is not implemented (Module [Shell] is missing the required "forward" '
        "function). It was given the Shell; if that lacks forward, let the objective call the model inside it, or name "
        "that model as the root of the component map."
    )


class TakesBatches(nn.Module):
    """A user's module whose forward takes the whole batch."""

    def __init__(self):
        super().__init__()
        self.decoder = decoder()

    def forward(self, batch):
        return self.decoder(batch["input_ids"])


def test_a_model_that_does_not_take_token_ids_is_an_error_that_says_what_to_do():
    model = TakesBatches()
    components = ComponentMap(find_components(model).components)
    with pytest.raises(ProbeError) as caught:
        take_snapshot(model, probe(model.decoder), components)
    assert str(caught.value) == (
        "the default objective called TakesBatches with the probe's input_ids, and that failed: IndexError: too many "
        "indices for tensor of dimension 2. Does TakesBatches map input_ids to logits, and know every token of the "
        "probe? If not, pass Probe(batches, objective=...), or name the network inside it as the root of the component "
        "map."
    )


def test_a_token_that_the_model_does_not_know_is_an_error_that_says_so():
    model = decoder(vocab_size=5)
    ids = torch.tensor([[1, 7]])
    with pytest.raises(ProbeError, match=r"IndexError: index out of range in self\. Does Transformer map input_ids to"):
        take_snapshot(model, Probe([{"input_ids": ids, "labels": torch.tensor([[2, 3]])}]))


def test_an_error_in_an_objective_of_ones_own_is_left_as_it_is():
    def objective(model, batch):
        raise IndexError("mine")

    with pytest.raises(IndexError, match=r"^mine$"):
        take_snapshot(Channels(), channels_probe(objective), channels_map())
