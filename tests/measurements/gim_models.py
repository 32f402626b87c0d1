"""Tiny modules written the ways that real models are, each with its forward under the rules in the oracle's words."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.oracles import gim as oracle


def randomised(module, seed=0):
    """Return the module in float64 and evaluation mode, with every parameter random."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            centre = float(parameter.ndim == 1 and name.endswith("weight"))
            parameter.copy_(centre + 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


class Apply(nn.Module):
    """A function as a module, so that its operators run inside a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


# --- norms -----------------------------------------------------------------------------------------------------------


class LlamaNorm(nn.Module):
    """Hugging Face's LlamaRMSNorm in words of our own: cast up, scale, cast down, weight."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(dtype)

    def by_hand(self, x, rules):
        return oracle.rms_norm(x, self.weight, self.eps, rules)


class GemmaNorm(LlamaNorm):
    """Gemma's: the weight is stored as its distance from 1."""

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return (self._norm(x.double()) * (1.0 + self.weight.double())).type_as(x)

    def by_hand(self, x, rules):
        return oracle.rms_norm(x, 1 + self.weight, self.eps, rules)


class PowerNorm(LlamaNorm):
    """``mean(x * x) ** -0.5``, in place."""

    def forward(self, x):
        scale = torch.mean(x * x, dim=-1, keepdim=True).add_(self.eps) ** -0.5
        x = x.clone()
        x *= scale
        return x * self.weight


class RootNorm(LlamaNorm):
    """The length of the vector instead of its mean square; a quotient."""

    def forward(self, x):
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.shape[-1]
        return x / (square + self.eps).sqrt() * self.weight


class SumNorm(LlamaNorm):
    """A square that is summed, and the scale first."""

    def forward(self, x):
        inverse = 1 / torch.sqrt(torch.square(x).sum(dim=-1, keepdim=True) / x.shape[-1] + self.eps)
        return inverse * x * self.weight


class CentredNorm(LlamaNorm):
    """A LayerNorm by hand."""

    def forward(self, x):
        x = x - x.mean(dim=-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight

    def by_hand(self, x, rules):
        return oracle.layer_norm(x, self.weight, None, self.eps, rules)


class VarianceNorm(CentredNorm):
    """A LayerNorm by hand from ``var``."""

    def forward(self, x):
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + self.eps) * self.weight


class PairNorm(CentredNorm):
    """A LayerNorm by hand from ``var_mean``."""

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return (x - mean).div((variance + self.eps).sqrt()).mul(self.weight)


class UnitNorm(LlamaNorm):
    """``F.normalize`` times the root of the width, as some write RMSNorm."""

    def forward(self, x):
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.weight

    def by_hand(self, x, rules):
        return oracle.rms_norm(x, self.weight, 0.0, rules)


HAND_WRITTEN_NORMS = (
    LlamaNorm,
    GemmaNorm,
    PowerNorm,
    RootNorm,
    SumNorm,
    CentredNorm,
    VarianceNorm,
    PairNorm,
    UnitNorm,
)


# --- MLPs ------------------------------------------------------------------------------------------------------------


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, width, hidden=7, act=F.silu):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden)
        self.down, self.act = nn.Linear(hidden, width), act

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))

    def by_hand(self, x, rules):
        gate, up = oracle.linear(self.gate, x), oracle.linear(self.up, x)
        return oracle.linear(self.down, oracle.gated(self.act(gate), up, rules))


class FusedMLP(nn.Module):
    """One projection for both, cut in two by ``cut``; a norm and dropout before the way down."""

    def __init__(self, width, cut, norm=False):
        super().__init__()
        self.both, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.cut, self.norm, self.dropout = cut, LlamaNorm(width) if norm else None, nn.Dropout(0.5)

    def forward(self, x):
        gate, up = self.cut(self.both(x))
        hidden = up * F.gelu(gate)
        return self.down(self.dropout(hidden if self.norm is None else self.norm(hidden)))

    def by_hand(self, x, rules):
        gate, up = self.cut(oracle.linear(self.both, x))
        hidden = oracle.gated(F.gelu(gate), up, rules)
        return oracle.linear(self.down, hidden if self.norm is None else self.norm.by_hand(hidden, rules))


CUTS = {
    "chunk": lambda y: y.chunk(2, dim=-1),
    "split": lambda y: torch.split(y, y.shape[-1] // 2, dim=-1),
    "slices": lambda y: (y[..., : y.shape[-1] // 2], y[..., y.shape[-1] // 2 :]),
    "every other": lambda y: (y[..., ::2], y[..., 1::2]),
    "unbind": lambda y: y.unflatten(-1, (2, -1)).unbind(-2),
    "narrow": lambda y: (y.narrow(-1, 0, y.shape[-1] // 2), y.narrow(-1, y.shape[-1] // 2, y.shape[-1] // 2)),
}


class GLU(nn.Module):
    """``F.glu``, in an MLP."""

    def __init__(self, width):
        super().__init__()
        self.both, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        return self.down(F.glu(self.both(x)))

    def by_hand(self, x, rules):
        up, gate = oracle.linear(self.both, x).chunk(2, -1)
        return oracle.linear(self.down, oracle.gated(torch.sigmoid(gate), up, rules))


class ClippedMLP(nn.Module):
    """A gate with a hand-made swish and a shifted up, as in GPT-OSS."""

    def __init__(self, width):
        super().__init__()
        self.both, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        both = self.both(x)
        gate, up = both[..., ::2].clamp(max=1.0), both[..., 1::2].clamp(-1.0, 1.0)
        return self.down((up + 1) * (gate * torch.sigmoid(1.7 * gate)))

    def by_hand(self, x, rules):
        both = oracle.linear(self.both, x)
        gate, up = both[..., ::2].clamp(max=1.0), both[..., 1::2].clamp(-1.0, 1.0)
        return oracle.linear(self.down, oracle.gated(gate * torch.sigmoid(1.7 * gate), up + 1, rules))


class LowRankMLP(GatedMLP):
    """Each projection with a low-rank update beside it."""

    def __init__(self, width):
        super().__init__(width)
        self.a = nn.ModuleList(nn.Linear(width, 2, bias=False) for _ in range(2))
        self.b = nn.ModuleList(nn.Linear(2, 7, bias=False) for _ in range(2))

    def forward(self, x):
        gate, up = (base(x) + b(a(x)) * 0.5 for base, a, b in zip((self.gate, self.up), self.a, self.b, strict=True))
        return self.down(self.act(gate) * up)

    def by_hand(self, x, rules):
        gate, up = (
            oracle.linear(base, x) + oracle.linear(b, oracle.linear(a, x)) * 0.5
            for base, a, b in zip((self.gate, self.up), self.a, self.b, strict=True)
        )
        return oracle.linear(self.down, oracle.gated(self.act(gate), up, rules))


class Mixture(nn.Module):
    """Experts of separate modules, the best two of three for each token, their shares from a router's softmax."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(GatedMLP(width) for _ in range(3))

    def forward(self, x):
        share, chosen = torch.topk(F.softmax(self.router(x), dim=-1), 2, dim=-1)
        share = share / share.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            *where, slot = torch.where(chosen == index)
            where = tuple(where)
            result = result.index_put(where, expert(x[where]) * share[(*where, slot)][:, None], accumulate=True)
        return result

    def by_hand(self, x, rules):
        share = torch.softmax(oracle.linear(self.router, x), dim=-1)
        smallest = share.argmin(-1, keepdim=True)
        share = share.scatter(-1, smallest, 0.0)
        share = share / share.sum(-1, keepdim=True)
        return sum(share[..., i, None] * expert.by_hand(x, rules) for i, expert in enumerate(self.experts))


class StackedMixture(nn.Module):
    """Experts in one stack of matrices; each token's own are picked out and applied in one batched product."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.router = nn.Linear(width, 3)
        self.both = nn.Parameter(torch.zeros(3, width, 2 * width))
        self.bias = nn.Parameter(torch.zeros(3, 2 * width))
        self.down = nn.Parameter(torch.zeros(3, width, width))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        share, chosen = torch.softmax(self.router(tokens), -1).max(-1)
        both = torch.bmm(tokens.unsqueeze(1), self.both[chosen]).squeeze(1) + self.bias[chosen]
        gate, up = both.chunk(2, -1)
        out = torch.bmm((F.silu(gate) * up).unsqueeze(1), self.down[chosen]).squeeze(1)
        return (out * share.unsqueeze(-1)).view_as(x)

    def by_hand(self, x, rules):
        share = torch.softmax(oracle.linear(self.router, x), -1)
        result = []
        for token, weights in zip(x.flatten(0, 1), share.flatten(0, 1), strict=True):
            e = int(weights.argmax())
            gate, up = (token @ self.both[e] + self.bias[e]).chunk(2, -1)
            result.append(oracle.gated(F.silu(gate), up, rules) @ self.down[e] * weights[e])
        return torch.stack(result).view_as(x)


# --- attention and blocks --------------------------------------------------------------------------------------------


def rotate(x):
    """Turn pairs by an angle that grows with the position."""
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.linspace(1, 0.3, x.shape[-1] // 2).to(x)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class GroupedAttention(nn.Module):
    """Llama's attention: rotary, two query heads to a key head; ``how`` says by which operators.

    ``fused``, ``grouped`` (the fused operator repeats keys and values itself), ``eager`` (softmax in single precision
    unless the model is double), ``capped`` (eager, Gemma's score soft cap), ``einsum``.
    """

    def __init__(self, width, how="fused", heads=4, norm=None):
        super().__init__()
        self.heads, self.how, self.size = heads, how, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = (norm(self.size) if norm else None for _ in range(2))

    def _cut(self, projection, x):
        return projection(x).unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self._cut(projection, x) for projection in (self.q, self.k, self.v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q), rotate(k)
        if self.how == "grouped":
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(len(x), self.heads, -1, self.size) for t in (k, v))
            masked = oracle.causal(x.shape[1])
            if self.how == "fused":
                z = F.scaled_dot_product_attention(q, k, v, attn_mask=~masked)
            elif self.how == "einsum":
                scores = torch.einsum("bhqd,bhkd->bhqk", q, k).div(self.size**0.5).masked_fill_(masked, -torch.inf)
                z = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)
            else:
                scores = torch.matmul(q, k.transpose(2, 3)) * self.size**-0.5
                if self.how == "capped":
                    scores = torch.tanh(scores / 2.0) * 2.0
                scores = scores + torch.zeros_like(scores[0, 0]).masked_fill(masked, torch.finfo(x.dtype).min)
                wide = torch.float64 if x.dtype == torch.float64 else torch.float32
                pattern = F.softmax(scores, dim=-1, dtype=wide).to(q.dtype)
                z = torch.matmul(F.dropout(pattern, 0.5, training=self.training), v)
        return self.out(z.transpose(1, 2).flatten(-2))

    def by_hand(self, x, rules):
        q, k, v = (
            oracle.heads(oracle.linear(projection, x), projection.weight.shape[0] // self.size)
            for projection in (self.q, self.k, self.v)
        )
        if self.q_norm is not None:
            q, k = self.q_norm.by_hand(q, rules), self.k_norm.by_hand(k, rules)
        cap = 2.0 if self.how == "capped" else None
        masked = oracle.causal(x.shape[1])
        z = oracle.attention(rotate(q), rotate(k), v, rules, masked=masked, softcap=cap)
        return oracle.linear(self.out, torch.cat(z.unbind(-3), -1))


class LlamaBlock(nn.Module):
    """Norm, attention, norm, gated MLP."""

    def __init__(self, width=8, how="fused", norm=LlamaNorm, mlp=GatedMLP):
        super().__init__()
        self.norm_1, self.norm_2 = norm(width), norm(width)
        self.attention, self.mlp = GroupedAttention(width, how), mlp(width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))

    def by_hand(self, x, rules):
        x = x + self.attention.by_hand(self.norm_1.by_hand(x, rules), rules)
        return x + self.mlp.by_hand(self.norm_2.by_hand(x, rules), rules)


class GemmaBlock(nn.Module):
    """Norms before and after each sublayer, norms of queries and keys, soft-capped scores."""

    def __init__(self, width=8, how="capped"):
        super().__init__()
        self.norms = nn.ModuleList(GemmaNorm(width) for _ in range(4))
        self.attention = GroupedAttention(width, how, norm=GemmaNorm)
        self.mlp = GatedMLP(width, act=lambda y: F.gelu(y, approximate="tanh"))

    def forward(self, x):
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        return x + self.norms[3](self.mlp(self.norms[2](x)))

    def by_hand(self, x, rules):
        norms = [norm.by_hand for norm in self.norms]
        x = x + norms[1](self.attention.by_hand(norms[0](x, rules), rules), rules)
        return x + norms[3](self.mlp.by_hand(norms[2](x, rules), rules), rules)
