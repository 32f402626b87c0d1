from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynamics import take_snapshot
from dynamics.errors import MeasurementError
from dynamics.measurements.derivatives import derivatives
from dynamics.model import Transformer
from tests.callbacks.matrix import VOCAB, small_probe

REFUSED = (
    "the model uses reentrant activation checkpointing, which hides what it runs from torch.autograd.grad; "
    "checkpoint with use_reentrant=False (in transformers: gradient_checkpointing_enable("
    'gradient_checkpointing_kwargs={"use_reentrant": False})).'
)


def test_derivatives_leave_nothing_behind_and_run_no_hooks():
    x, y, unused = (torch.tensor(value, requires_grad=True) for value in (3.0, 5.0, 7.0))
    ran = []
    x.register_post_accumulate_grad_hook(ran.append)
    found = derivatives(x * x * y, [x, y, unused])
    assert [None if gradient is None else gradient.item() for gradient in found] == [30.0, 9.0, None]
    assert x.grad is None
    assert ran == []


def test_other_errors_pass():
    x = torch.tensor(3.0, requires_grad=True)
    total = x * x
    derivatives(total, [x])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        derivatives(total, [x])


def checkpointed(blocks: tuple[int, ...], reentrant: bool) -> nn.Module:
    torch.manual_seed(1)
    model = Transformer(n_layers=2, n_heads=2, d_model=8, d_ff=16, vocab_size=VOCAB)
    for index in blocks:
        block = model.blocks[index]
        block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=reentrant)
    return model


# PyTorch's remark on the passes without gradients, which such checkpoints don't like.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
# Behind a checkpoint gradients are missing; through one, PyTorch refuses. Both happen with one of two blocks.
@pytest.mark.parametrize("blocks", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("measurement", "method"),
    [("gradient_norm", "gradient"), ("attribution", "gradient"), ("attribution", "gim"), ("attribution", "ig"),
     ("self_repair", "gradient"), ("all", "gim")],
)  # fmt: skip
def test_reentrant_checkpointing_is_refused_by_name(blocks, measurement, method):
    with pytest.raises(MeasurementError) as error:
        take_snapshot(checkpointed(blocks, True), small_probe(), measurements=measurement, methods=method)
    assert str(error.value) == REFUSED


def test_the_other_kind_gives_the_gradients_of_the_plain_model():
    plain, other = (take_snapshot(checkpointed(blocks, False), small_probe()) for blocks in ((), (0, 1)))
    for name in plain:
        torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(plain[name]), equal_nan=True)
