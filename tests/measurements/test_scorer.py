from dataclasses import replace

import pytest
import torch

from dynamics import take_snapshot
from dynamics.errors import ProbeError
from tests.cases import Channels, channels_map, channels_probe, squared_error

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
