"""What a forward pass may change of a model, and what measuring must therefore put back."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from dynamics import Probe, take_snapshot
from dynamics.measurements.held_still import held_still
from tests.strategies import decoder, probe


class Caching(nn.Module):
    """Keeps what it saw, as rotary embeddings that stretch with the longest sequence do."""

    def __init__(self):
        super().__init__()
        self.longest = 0
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        if x.shape[-1] > self.longest:
            self.longest = x.shape[-1]
            self.scale = torch.full((3,), 1.0 / self.longest)
            self.seen = True
        return x


def test_attributes_that_a_forward_pass_sets_are_put_back():
    module = Caching()
    buffer = module.scale
    with held_still(module):
        module(torch.zeros(2, 5))
        assert (module.longest, module.seen) == (5, True)
    assert module.longest == 0
    assert not hasattr(module, "seen")
    assert module.scale is buffer
    assert buffer.tolist() == [1, 1, 1]


class Merging(nn.Linear):
    """A layer whose train() and eval() change its weights, as LoRA layers do that merge theirs."""

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.merged = not mode
            self.weight.data += 0.1 if self.merged else -0.1
        return self


def test_modules_that_work_in_train_and_eval_are_left_alone():
    module = nn.Sequential(Merging(2, 2), nn.Dropout()).train()
    before = module[0].weight.clone()
    with held_still(module):
        assert not any(part.training for part in module.modules())
        assert torch.equal(module[0].weight, before)
    assert all(part.training for part in module.modules())
    assert torch.equal(module[0].weight, before)
    assert module[0].merged is False


def test_embeddings_that_shorten_their_rows_keep_them():
    model = decoder()
    model.embed.max_norm = 0.5
    before = model.embed.weight.detach().clone()
    fixed = Probe([{"input_ids": torch.tensor([[0, 1, 2]]), "labels": torch.tensor([[1, 2, 3]])}])
    take_snapshot(model, fixed, measurements=("gradient_norm", "attribution"))
    assert torch.equal(model.embed.weight, before)
    assert before.norm(dim=-1).max() > 0.5


@pytest.mark.parametrize("odd", [torch.eye(3).to_sparse(), torch.empty(2, device="meta")])
def test_a_buffer_that_cannot_be_compared_does_not_stop_the_rest(odd):
    module = nn.BatchNorm1d(2)
    module.register_buffer("odd", odd)
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    with held_still(module):
        module.running_mean += 1
        torch.rand(1), np.random.rand(), random.random()
    assert module.odd is odd
    assert module.running_mean.tolist() == [0, 0]
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tobytes() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_numbers_do_not_depend_on_what_was_measured_before():
    model = decoder()
    fixed = probe(model)
    first = take_snapshot(model, fixed, measurements="ablation")
    take_snapshot(model, probe(model, seed=1, sizes=((2, 7),)), measurements="ablation")
    again = take_snapshot(model, fixed, measurements="ablation")
    assert all((again[name] == first[name]).all() for name in first)
