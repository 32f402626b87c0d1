"""Tiny planted models whose losses, ablations and attributions are known in closed form."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.model import Transformer
from dynamics.probe import Probe
from tests.strategies import float64

EPSILON = 1e-5
"""What LayerNorm adds to the variance."""


@dataclass(frozen=True)
class Planted:
    """A planted head: from the mean m of the signs so far it makes ``z = gain * m + bias``, and adds ``out * z``."""

    gain: float = 1.0
    bias: float = 0.25
    out: float = 1.0


@dataclass(frozen=True)
class Majority:
    """One layer of heads that vote, at the last position, on which of two tokens came more often.

    Token 0 is the sign +1, token 1 the sign -1, token 2 means "undecided". Dimensions 0 and 1 of the residual stream
    hold the sign as (s, -s), dimensions 2 and 3 the vote as (a, -a): its mean is always 0, so that the final LayerNorm
    gives ``v = a / sqrt((1 + a ** 2) / 2 + epsilon)``. The logits are ``scale * v``, ``-scale * v`` and
    ``scale * threshold``. Every sequence has a 2 : 1 majority, so m = 1/3 or -1/3 at the last position.
    """

    heads: tuple[Planted, Planted, Planted, Planted]
    threshold: float
    scale: float = 5.0

    def model(self) -> Transformer:
        with float64():
            model = Transformer(n_layers=1, n_heads=4, d_model=4, d_ff=1, vocab_size=3, max_length=8)
        block = model.blocks[0]
        attention = block.attention
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            for norm in (block.attention_norm, block.mlp_norm):
                norm.weight.fill_(1.0)
            model.embed.weight[0] = torch.tensor([1.0, -1.0, 0.0, 0.0])
            model.embed.weight[1] = torch.tensor([-1.0, 1.0, 0.0, 0.0])
            for h, head in enumerate(self.heads):
                # Queries and keys are zero: attention is uniform, and z is the mean over the positions so far.
                attention.value.weight[h, 0] = head.gain * math.sqrt(0.5 + EPSILON)
                attention.value.bias[h] = head.bias
                attention.output.weight[2, h] = head.out
                attention.output.weight[3, h] = -head.out
            offset = sum(head.out * head.bias for head in self.heads)
            attention.output.bias[2] = -offset
            attention.output.bias[3] = offset
            model.final_norm.weight[2:] = 1.0
            model.final_norm.bias[0] = 1.0
            model.unembed.weight[0, 2] = self.scale
            model.unembed.weight[1, 2] = -self.scale
            model.unembed.weight[2, 0] = self.scale * self.threshold
        return model.eval()

    @staticmethod
    def probe() -> Probe:
        """Return both tokens' majorities in equal number, at two lengths: in the mean over the probe m is 0."""
        batches = []
        for pattern in ([1, 0, 0], [0, 1, 0, 1, 0, 0]):
            ids = torch.tensor([pattern, [1 - token for token in pattern]])
            labels = torch.full_like(ids, -100)
            labels[:, -1] = torch.tensor([0, 1])
            batches.append({"input_ids": ids, "labels": labels})
        return Probe(batches)

    signs = np.array([1.0, -1.0, 1.0, -1.0])
    """The answer of each probe example, as a sign."""

    def vote(self, ablated=(), baseline="mean"):
        """Return a for each example, with some heads' z replaced."""
        votes = []
        for sign in self.signs:
            a = 0.0
            for h, head in enumerate(self.heads):
                z = head.gain * sign / 3 + head.bias
                if h in ablated:
                    z = head.bias if baseline == "mean" else 0.0
                a += head.out * (z - head.bias)
            votes.append(a)
        return np.array(votes)

    def _logits(self, votes):
        v = votes / np.sqrt((1 + votes**2) / 2 + EPSILON)
        return np.stack([self.scale * v, -self.scale * v, np.full_like(v, self.scale * self.threshold)], axis=-1)

    def loss(self, ablated=(), baseline="mean"):
        """Return the loss of each example, in nats."""
        logits = self._logits(self.vote(ablated, baseline))
        answers = np.where(self.signs > 0, logits[:, 0], logits[:, 1])
        return np.log(np.exp(logits).sum(-1)) - answers

    def exact_match(self, ablated=(), baseline="mean"):
        """Return whether the answer is each example's largest logit."""
        return self._logits(self.vote(ablated, baseline)).argmax(-1) == np.where(self.signs > 0, 0, 1)

    def attribution(self):
        """Return ``(z - mean) . d log p / d z`` of each head and example; only the last position enters the loss."""
        a = self.vote()
        logits = self._logits(a)
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        slope_v = self.scale * (self.signs - (p[:, 0] - p[:, 1]))
        slope_a = slope_v * (0.5 + EPSILON) / ((1 + a**2) / 2 + EPSILON) ** 1.5
        return np.stack([head.out * slope_a * head.gain * self.signs / 3 for head in self.heads])


_OFF = Planted(gain=0.7, bias=0.3, out=0.0)
DEAD_AND_CRITICAL = Majority((Planted(gain=1.5), _OFF, _OFF, _OFF), threshold=0.3)
"""Head 0 carries the answer alone; head 1 reads the input but writes nothing."""
REDUNDANT = Majority((Planted(), Planted(gain=0.5, bias=-1.0, out=2.0), _OFF, _OFF), threshold=0.3)
"""Heads 0 and 1 each suffice."""
AND_PAIR = Majority((Planted(), Planted(gain=2.0, bias=0.5, out=0.5), _OFF, _OFF), threshold=0.6)
"""Heads 0 and 1 are needed together."""


WITHOUT_ATTENTION = ("weight_norm", "gradient_norm", "attribution", "ablation")
"""The measurements that can be taken of a model whose "heads" are no attention."""


class Channels(nn.Module):
    """No transformer at all: two "heads" that scale the input, and an "MLP" that returns a tuple.

    ``output = sum over positions of (h0 + h1 + mlp)`` with ``h_i = a_i x`` and ``mlp = b x + c``.
    """

    def __init__(self, a=(2.0, -0.5), b=0.25, c=3.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([a], dtype=torch.float64).T)
        self.mix = nn.Identity()
        self.side = Side(b, c)

    def forward(self, x):
        z = self.mix(x[..., None] * self.scale.flatten())
        side, _ = self.side(x)
        return (z.sum(-1) + side[..., 0]).sum(-1)


class Side(nn.Module):
    def __init__(self, b, c):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([[b]], dtype=torch.float64))
        self.constant = nn.Parameter(torch.tensor([c], dtype=torch.float64))

    def forward(self, x):
        return x[..., None] * self.slope + self.constant, "not a tensor"


def channels_map(**changes):
    """Return the component map of `Channels`; keywords replace the field of every site."""
    blocks = [WeightSlice("scale", 0, 0, 1), WeightSlice("scale", 0, 1, 2), WeightSlice("side.slope")]
    sites = [Site("mix", "input", 0, 1), Site("mix", "input", 1, 2), Site("side", "output", 0, 1)]
    kinds = [("head", 0), ("head", 1), ("mlp", None)]
    return ComponentMap(
        [
            Component(0, kind, head, Site(**{**vars(site), **changes}), (block,), (block,))
            for (kind, head), site, block in zip(kinds, sites, blocks, strict=True)
        ]
    )


def squared_error(model, batch):
    """An objective for batches ``(x, y)``: half the squared error, and whether it is below 1/2."""
    x, y = batch
    error = model(x) - y
    return error**2 / 2, error.abs() < 1


def channels_probe(objective=squared_error):
    """Return two batches of unequal size and length, as plain tuples."""
    x1 = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
    x2 = torch.tensor([[1.0, -1.0, 4.0]], dtype=torch.float64)
    return Probe([(x1, torch.tensor([11.5, 4.0, 14.0]).double()), (x2, torch.tensor([10.0]).double())], objective)
