"""GIM on whole modules, written as real models are, against the rules written out by hand; all in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamics import GIMRules, gim_backward
from dynamics.model import Transformer
from tests.measurements.gim_models import (
    CUTS,
    GLU,
    HAND_WRITTEN_NORMS,
    ClippedMLP,
    FusedMLP,
    GatedMLP,
    GemmaBlock,
    GroupedAttention,
    LlamaBlock,
    LowRankMLP,
    Mixture,
    StackedMixture,
    randomised,
)
from tests.oracles import gim as oracle

SWITCHES = [
    {"temperature": t, "freeze_norm": n, "split_products": s}
    for t, n, s in itertools.product((1.0, 3.0), (False, True), (False, True))
]
OFF = GIMRules(None, False, False)


def random(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def backward(model, run, x, rules):
    """Return the output and the gradients at ``x`` and at all parameters that have one."""
    x = x.clone().requires_grad_()
    if rules is None:
        output = run(x)
    else:
        with gim_backward(model, rules):
            output = run(x)
    wanted = {"x": x, **dict(model.named_parameters())}
    found = torch.autograd.grad(
        (output * random(*output.shape, seed=9)).sum(), list(wanted.values()), allow_unused=True
    )
    return output.detach(), {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def close(left, right, rtol=1e-10):
    assert left.keys() == right.keys()
    for name in left:
        scale = right[name].abs().max().item() + 1e-30
        assert (left[name] - right[name]).abs().max().item() <= rtol * scale + 1e-13, name


def check(model, x, rules, by_hand=None):
    """Compare with the oracle; the forward pass, and with the rules off the gradients, must be PyTorch's to the bit."""
    output, gradients = backward(model, model, x, GIMRules(**rules))
    plain, ordinary = backward(model, model, x, None)
    assert torch.equal(output, plain)
    hand = by_hand or model.by_hand
    expected_output, expected = backward(model, lambda x: hand(x, oracle.Rules(**rules)), x, None)
    torch.testing.assert_close(output, expected_output, rtol=1e-10, atol=1e-12)
    close(gradients, expected)
    _, off = backward(model, model, x, OFF)
    assert off.keys() == ordinary.keys()
    assert all(torch.equal(off[name], ordinary[name]) for name in off)
    return gradients, ordinary


def only(**on):
    """Return the rules with all but some switched off."""
    return {"temperature": 1.0, "freeze_norm": False, "split_products": False, **on}


@pytest.mark.parametrize("rules", SWITCHES, ids=str)
def test_our_decoder(rules):
    torch.manual_seed(0)
    model = randomised(Transformer(n_layers=2, n_heads=3, d_model=12, d_ff=10, vocab_size=7))
    ids = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(3))

    class FromEmbeddings(nn.Module):
        """The decoder as a function of its embeddings, at which the gradient is read too."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            handle = model.embed.register_forward_hook(lambda *_: x)
            try:
                return model(ids)
            finally:
                handle.remove()

        def by_hand(self, x, rules):
            return oracle.decoder(model, ids, rules, embedded=x)

    gradients, ordinary = check(FromEmbeddings(), model.embed.weight.detach()[ids], rules)
    assert len(gradients) == 2 * 16 + 3 + 1
    changed = any(not torch.equal(gradients[name], ordinary[name]) for name in gradients)
    assert changed == (rules != only())


@pytest.mark.parametrize("rules", SWITCHES, ids=str)
@pytest.mark.parametrize("how", ["fused", "grouped", "eager", "einsum"])
def test_a_llama_block(how, rules):
    check(randomised(LlamaBlock(how=how)), random(2, 5, 8), rules)


@pytest.mark.parametrize("rules", SWITCHES, ids=str)
def test_a_gemma_block(rules):
    check(randomised(GemmaBlock()), random(2, 5, 8), rules)


def test_all_ways_to_compute_attention_give_the_same_gradients():
    models = {how: randomised(GroupedAttention(8, how)) for how in ("fused", "grouped", "eager", "einsum")}
    rules = GIMRules(freeze_norm=False)
    results = {how: backward(model, model, random(2, 5, 8), rules)[1] for how, model in models.items()}
    for how in models:
        close(results[how], results["fused"])


@pytest.mark.parametrize("kind", HAND_WRITTEN_NORMS)
def test_hand_written_norms(kind):
    gradients, ordinary = check(randomised(kind(6)), random(2, 3, 6), only(freeze_norm=True))
    assert not torch.allclose(gradients["x"], ordinary["x"])
    torch.testing.assert_close(gradients["weight"], ordinary["weight"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm(affine, bias):
    class Subclass(nn.LayerNorm):
        pass

    for kind in (nn.LayerNorm, Subclass):
        model = randomised(kind(6, elementwise_affine=affine, bias=bias))

        def by_hand(x, rules, model=model):
            return oracle.norm(model, x, rules)

        gradients, ordinary = check(model, random(2, 3, 6), only(freeze_norm=True), by_hand)
        assert not torch.allclose(gradients["x"], ordinary["x"])
        assert all(torch.equal(gradients[name], ordinary[name]) for name in gradients if name != "x")


@pytest.mark.parametrize("eps", [None, 0.1])
@pytest.mark.parametrize("affine", [False, True])
def test_rms_norm(eps, affine):
    model = randomised(nn.RMSNorm(6, eps=eps, elementwise_affine=affine))
    used = torch.finfo(torch.float64).eps if eps is None else eps

    def by_hand(x, rules):
        return oracle.rms_norm(x, model.weight, used, rules)

    gradients, ordinary = check(model, random(2, 3, 6), only(freeze_norm=True), by_hand)
    assert all(torch.equal(gradients[name], ordinary[name]) for name in gradients if name != "x")


def test_a_norm_over_two_dimensions():
    model = randomised(nn.LayerNorm((3, 6)))

    def by_hand(x, rules):
        flat = oracle.layer_norm(x.flatten(1), model.weight.flatten(), model.bias.flatten(), model.eps, rules)
        return flat.view_as(x)

    check(model, random(2, 3, 6), only(freeze_norm=True), by_hand)


MLPS = {
    "separate": GatedMLP,
    "gelu": lambda width: GatedMLP(width, act=F.gelu),
    "no nonlinearity": lambda width: GatedMLP(width, act=lambda y: y),
    "glu": GLU,
    "clipped": ClippedMLP,
    "low rank": LowRankMLP,
    "mixture": Mixture,
    "stacked mixture": StackedMixture,
    "norm in between": lambda width: FusedMLP(width, CUTS["chunk"], norm=True),
    **{f"fused, {name}": lambda width, cut=cut: FusedMLP(width, cut) for name, cut in CUTS.items()},
}


@pytest.mark.parametrize("kind", MLPS.values(), ids=MLPS)
def test_gated_mlps(kind):
    model = randomised(kind(6))
    gradients, ordinary = check(model, random(2, 3, 6), only(split_products=True))
    assert not torch.allclose(gradients["x"], ordinary["x"])


class Untouched(nn.Module):
    """An attention sublayer, then a module whose products are none of the rules' business."""

    def __init__(self, tail):
        super().__init__()
        self.attention, self.tail = GroupedAttention(8), tail

    def forward(self, x):
        return self.tail(self.attention(x))

    def by_hand(self, x, rules):
        return self.tail(self.attention.by_hand(x, rules))


class Tail(nn.Module):
    """Three linear maps and a function of their images."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


OTHER_PRODUCTS = {
    "a swish by hand": lambda m, x: m.b((y := m.a(x)) * torch.sigmoid(1.7 * y)),
    "a swish of a slice": lambda m, x: m.b(torch.cat([(y := m.a(x))[..., :8] * y[..., :8].sigmoid()], -1)),
    "gelu by hand": lambda m, x: m.b(0.5 * (y := m.a(x)) * (1 + torch.tanh(0.8 * (y + 0.04 * y**3)))),
    "gated output without a way down": lambda m, x: m.a(x) * torch.sigmoid(m.b(x)),
    "gated residual stream": lambda m, x: m.c(x * torch.sigmoid(m.b(x))),
    "one gate for the whole vector": lambda m, x: m.c(m.a(x) * torch.sigmoid(m.b(x)[..., :1])),
    "gates of different inputs": lambda m, x: m.c(m.a(x) * m.b(torch.tanh(x))),
    "softmax of a linear map": lambda m, x: m.c(torch.softmax(m.a(x), -1)) @ m.b.weight,
    "softmax of a router that weighs activations": lambda m, x: torch.softmax(m.a(x)[..., :4], -1) @ m.c(x),
    "softmax of scores that weighs nothing": lambda m, x: torch.softmax(m.a(x) @ m.b(x).mT, -1),
    "scores without a softmax": lambda m, x: (m.a(x) @ m.b(x).mT) @ m.c(x),
    "router": lambda m, x: torch.softmax(m.a(x), -1) * m.b(x),
    "log-probabilities": lambda m, x: F.log_softmax(m.a(x) @ m.b(x).mT, -1) @ m.c(x),
}


@pytest.mark.parametrize("function", OTHER_PRODUCTS.values(), ids=OTHER_PRODUCTS)
def test_other_softmaxes_and_products_are_left_alone(function):
    model = randomised(Untouched(Tail(function)))
    check(model, random(2, 4, 8), only(temperature=2.0, split_products=True))


@pytest.mark.parametrize("where", ["outside", "in a module of its own", "in the model"])
def test_a_softmax_in_the_loss_is_left_alone(where):
    def loss(logits):
        p = torch.softmax(logits, -1)
        return (F.cross_entropy(logits[:, 0], torch.tensor([1, 2])) + (p * p).sum() + p.logsumexp(-1).sum()).view(1)

    attention = randomised(GroupedAttention(8))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return loss(attention(x)) if where == "in the model" else attention(x)

    model, head = Model(), nn.Module()
    head.forward = loss
    after = {"outside": loss, "in a module of its own": head, "in the model": lambda y: y}[where]
    rules = only(temperature=2.0, split_products=True)
    found = backward(model, lambda x: after(model(x)), random(2, 4, 8), GIMRules(**rules))[1]
    expected = backward(model, lambda x: loss(attention.by_hand(x, oracle.Rules(**rules))), random(2, 4, 8), None)[1]
    close(found, expected)


# --- nn.MultiheadAttention -------------------------------------------------------------------------------------------

LENGTH = 4
FLOAT_MASK = random(LENGTH, LENGTH, seed=5)
PADDING = torch.tensor([[False] * LENGTH, [False, False, False, True]])
MASKS = {
    "none": ({}, None, None),
    "boolean": ({"attn_mask": oracle.causal(LENGTH)}, oracle.causal(LENGTH), None),
    "float": ({"attn_mask": FLOAT_MASK}, None, FLOAT_MASK),
    "padding": ({"key_padding_mask": PADDING}, PADDING[:, None, None], None),
    "both": (
        {"key_padding_mask": PADDING, "attn_mask": oracle.causal(LENGTH)},
        PADDING[:, None, None] | oracle.causal(LENGTH),
        None,
    ),
    "causal": ({"attn_mask": oracle.causal(LENGTH), "is_causal": True}, oracle.causal(LENGTH), None),
}


class SelfAttention(nn.Module):
    """``nn.MultiheadAttention`` attending to itself."""

    def __init__(self, need_weights, options, masked, added, **kinds):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, **kinds)
        self.options = {"need_weights": need_weights, **options}
        self.masked, self.added = masked, added

    def forward(self, x):
        first = x if self.inner.batch_first else x.transpose(0, 1)
        y = self.inner(first, first, first, **self.options)[0]
        return y if self.inner.batch_first else y.transpose(0, 1)

    def by_hand(self, x, rules):
        m = self.inner
        weights = m.in_proj_weight.chunk(3)
        biases = m.in_proj_bias.chunk(3) if m.in_proj_bias is not None else (0.0,) * 3
        q, k, v = (oracle.heads(x @ w.T + b, 2) for w, b in zip(weights, biases, strict=True))
        z = oracle.attention(q, k, v, rules, masked=self.masked, bias=self.added)
        return oracle.linear(m.out_proj, torch.cat(z.unbind(-3), -1))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention(mask, need_weights):
    for batch_first, bias in ((True, True), (False, False)):
        model = randomised(SelfAttention(need_weights, *MASKS[mask], batch_first=batch_first, bias=bias))
        gradients, ordinary = check(model, random(2, LENGTH, 6), only(temperature=2.0, split_products=True))
        assert not torch.allclose(gradients["x"], ordinary["x"])


def test_multihead_attention_across_two_sequences_of_different_width():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(6, 2, kdim=3, vdim=3, batch_first=True)

        def forward(self, x):
            query, memory = x.split((6, 3), -1)
            return self.inner(query, memory, memory)[0]

        def by_hand(self, x, rules):
            m, (query, memory) = self.inner, x.split((6, 3), -1)
            weights = (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)
            sides = zip((query, memory, memory), weights, m.in_proj_bias.chunk(3), strict=True)
            q, k, v = (oracle.heads(side @ w.T + b, 2) for side, w, b in sides)
            z = oracle.attention(q, k, v, rules)
            return oracle.linear(m.out_proj, torch.cat(z.unbind(-3), -1))

    check(randomised(Cross()), random(2, LENGTH, 9), only(temperature=2.0, split_products=True))


@pytest.mark.parametrize("norm_first", [False, True])
def test_pytorchs_encoder_layer(norm_first):
    layer = randomised(nn.TransformerEncoderLayer(6, 2, 5, dropout=0.1, batch_first=True, norm_first=norm_first))
    attention = randomised(SelfAttention(False, {}, None, None, batch_first=True))
    attention.inner = layer.self_attn

    def by_hand(x, rules):
        def feed(y):
            return oracle.linear(layer.linear2, torch.relu(oracle.linear(layer.linear1, y)))

        one, two = (lambda y, n=n: oracle.norm(n, y, rules) for n in (layer.norm1, layer.norm2))
        if norm_first:
            x = x + attention.by_hand(one(x), rules)
            return x + feed(two(x))
        x = one(x + attention.by_hand(x, rules))
        return two(x + feed(x))

    for rules in SWITCHES:
        check(layer, random(2, LENGTH, 6), rules, by_hand)
