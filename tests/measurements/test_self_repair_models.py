"""Attention self-repair on attention written in every way, and on tiny Hugging Face models, against the oracle."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.errors import MeasurementError
from dynamics.measurements.head_attention import watching_attention
from dynamics.probe import Probe
from tests.measurements.gim_models import GroupedAttention, randomised, rotate
from tests.measurements.test_self_repair import assert_same, measure
from tests.oracles import self_repair as oracle


def head_map(prefix, n_layers, n_heads, width, site, parameter):
    """Return a map of heads alone: every head's slice of the input of ``site`` in each layer."""
    components = []
    for layer in range(n_layers):
        path = prefix.format(layer)
        for head in range(n_heads):
            start, stop = head * width, (head + 1) * width
            block = WeightSlice(f"{path}.{parameter}")
            components.append(
                Component(layer, "head", head, Site(f"{path}.{site}", "input", start, stop), (block,), (block,))
            )
    return ComponentMap(components)


def expected_of(patterns, values, gradients, threshold):
    """Return counts and means by head and example from ``(examples, heads, positions, …)``, row by row."""
    counts, means = [], []
    for head in range(patterns.shape[1]):
        pairs = []
        for e in range(len(patterns)):
            # The logarithm of a softmax weight is its score, up to a constant.
            rows = [(patterns[e, head, t].log(), values[e, head]) for t in range(patterns.shape[2])]
            pairs.append(oracle.of_rows(rows, gradients[e, head], threshold))
        counts.append([count for count, _ in pairs])
        means.append([mean for _, mean in pairs])
    return np.array(counts, dtype=float), np.array(means)


# --- one attention in every way --------------------------------------------------------------------------------------


class Net(nn.Module):
    """One attention, and a logit per position."""

    def __init__(self, attention):
        super().__init__()
        self.attention, self.head = attention, nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.attention(x) + x)[..., 0]


def objective(model, batch):
    logits = model(batch)
    return F.softplus(-logits).mean(-1), (logits > 0).all(-1)


def grouped(how):
    return randomised(Net(GroupedAttention(8, how)), seed=3)


def inputs(seed=0, examples=3, length=6):
    return torch.randn(examples, length, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


GROUPED_MAP = head_map("attention", 1, 4, 2, "out", "out.weight")


@pytest.mark.parametrize("how", ["fused", "grouped", "eager", "einsum", "capped"])
def test_every_way_to_write_grouped_attention_equals_the_oracle(how):
    net, x = grouped(how), inputs()
    attention = net.attention
    with torch.no_grad():
        q, k, v = (attention._cut(p, x) for p in (attention.q, attention.k, attention.v))
        q, k = rotate(q), rotate(k)
        k, v = (torch.stack([t[:, h // 2] for h in range(4)], 1) for t in (k, v))
        scores = torch.stack([torch.stack([q[e] @ k[e].mT for e in range(3)])])[0] / 2**0.5
        if how == "capped":
            scores = torch.tanh(scores / 2) * 2
        patterns = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    z = (patterns @ v).requires_grad_()
    logits = net.head(attention.out(z.transpose(1, 2).flatten(-2)) + x)[..., 0]
    (gradients,) = torch.autograd.grad(-F.softplus(-logits).mean(-1).sum(), [z])
    expected = expected_of(patterns, v, gradients, 0.01)
    assert expected[0].sum() > 9
    assert_same(measure(net, Probe([x], objective), GROUPED_MAP), expected)


class Letters(GroupedAttention):
    """Grouped attention as einsums over key heads and their query heads, positions before heads."""

    def forward(self, x):
        q = self.q(x).unflatten(-1, (2, 2, self.size))
        k, v = (p(x).unflatten(-1, (2, self.size)) for p in (self.k, self.v))
        scores = torch.einsum("bqkgd, bskd -> bkgqs", q, k) / self.size**0.5
        z = torch.einsum("bskd,bkgqs->bqkgd", v, scores.softmax(-1))
        return self.out(z.flatten(2))


class Matrices(Letters):
    """The same with matrix products, and the values shared by broadcasting."""

    def forward(self, x):
        q = self.q(x).unflatten(-1, (2, 2, self.size)).permute(0, 2, 3, 1, 4)
        k, v = (p(x).unflatten(-1, (2, self.size)).transpose(1, 2)[:, :, None] for p in (self.k, self.v))
        z = torch.softmax(q @ k.mT / self.size**0.5, -1) @ v
        return self.out(z.permute(0, 3, 1, 2, 4).flatten(2))


class Flat(Letters):
    """The same with heads and examples in one dimension."""

    def forward(self, x):
        q, k, v = (self._cut(p, x) for p in (self.q, self.k, self.v))
        q, k, v = (t.repeat_interleave(4 // t.shape[1], 1).flatten(0, 1) for t in (q, k, v))
        z = torch.bmm(torch.softmax(torch.bmm(q, k.mT) / self.size**0.5, -1), v)
        return self.out(z.unflatten(0, (len(x), 4)).transpose(1, 2).flatten(2))


def test_layouts_agree():
    # As many positions as there are heads in a group: sizes alone do not tell the letters apart.
    probe = Probe([inputs(length=2), inputs(length=5)], objective)
    found = [measure(randomised(Net(kind(8)), seed=3), probe, GROUPED_MAP) for kind in (Matrices, Letters, Flat)]
    assert found[0][0].sum() > 9
    for other in found[1:]:
        assert_same(other, found[0])


class OneByOne(nn.Module):
    """Every head is a module of its own."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 6)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v)

    def __init__(self):
        super().__init__()
        self.heads, self.out = nn.ModuleList(self.Head() for _ in range(4)), nn.Linear(8, 8)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))


def test_heads_that_are_modules_of_their_own():
    net, x = randomised(Net(OneByOne()), seed=3), inputs()
    found = measure(net, Probe([x], objective), GROUPED_MAP)
    q, k, v = (torch.stack(t, 1) for t in zip(*(h.qkv(x).chunk(3, -1) for h in net.attention.heads), strict=True))
    patterns = (q @ k.mT / 2**0.5).softmax(-1).detach()
    z = (patterns @ v).detach().requires_grad_()
    logits = net.head(net.attention.out(z.transpose(1, 2).flatten(-2)) + x)[..., 0]
    (gradients,) = torch.autograd.grad(-F.softplus(-logits).mean(-1).sum(), [z])
    assert_same(found, expected_of(patterns, v.detach(), gradients, 0.01))


def test_heads_in_another_order_are_an_error():
    class Reordered(GroupedAttention):
        def __init__(self):
            super().__init__(8)
            self.inner, self.out = self.out, nn.Linear(8, 8)

        def forward(self, x):
            q = self._cut(self.q, x)
            return self.out(F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flip(2).flatten(-2))

    with pytest.raises(
        MeasurementError, match=r"^L0H0: the input of 'attention\.out' from 0 on was expected to be what "
    ):
        measure(randomised(Net(Reordered())), Probe([inputs()], objective), GROUPED_MAP)


# --- nn.MultiheadAttention -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_seen(batch_first, need_weights):
    module = randomised(nn.MultiheadAttention(8, 4, batch_first=batch_first))
    x = inputs()
    given = x if batch_first else x.transpose(0, 1)
    padded = torch.zeros(3, 6, dtype=torch.bool)
    padded[1, 4:] = True
    with watching_attention(module) as calls:
        module(given, given, given, key_padding_mask=padded, need_weights=need_weights)
    _, expected = module(given, given, given, key_padding_mask=padded, average_attn_weights=False)
    ((_, weights, values),) = calls[0].blocks(3, range(4))
    assert [(call.path, call.unchanged) for call in calls] == [("", True)]
    torch.testing.assert_close(weights, expected.detach())
    torch.testing.assert_close(weights @ values, calls[0].heads(3))


# --- padding ---------------------------------------------------------------------------------------------------------


class Padded(nn.Module):
    """Attention under a mask of keys: boolean, or added to the scores."""

    def __init__(self, float_mask):
        super().__init__()
        self.float_mask = float_mask
        self.attention = GroupedAttention(8)
        self.attention.forward = self.attend
        self.head = nn.Linear(8, 1)

    def attend(self, x):
        q, k, v = (self.attention._cut(p, x) for p in (self.attention.q, self.attention.k, self.attention.v))
        mask = self.mask[:, None, None]
        if self.float_mask:
            mask = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.attention.out(z.transpose(1, 2).flatten(-2))

    def forward(self, x, mask):
        self.mask = mask
        return self.head(self.attention(x) + x)[..., 0]


def masked_objective(model, batch):
    x, mask = batch
    logits = model(x, mask)
    loss = (F.softplus(-logits) * mask).sum(-1) / mask.sum(-1)
    return loss, (logits > 0).all(-1)


@pytest.mark.parametrize("float_mask", [False, True])
def test_padding_changes_nothing(float_mask):
    net, x = randomised(Padded(float_mask), seed=3), inputs()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = mask[2, :2] = False
    together = measure(net, Probe([(x, mask)], masked_objective), GROUPED_MAP)
    parts = (x[:1], x[1:2, :4], x[2:, 2:])
    alone = Probe([(part, torch.ones(part.shape[:2], dtype=torch.bool)) for part in parts], masked_objective)
    assert together[0].sum() > 9
    assert_same(together, measure(net, alone, GROUPED_MAP))


# --- Hugging Face ----------------------------------------------------------------------------------------------------


ROUNDING = {"gpt2": 1e-12, "llama": 1e-6}
"""Llama's norms, rotation and eager softmax run in single precision, whatever the model's."""


def tiny(family, attention):
    transformers = pytest.importorskip("transformers", reason="needs transformers, to build the models")
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_head=4, n_embd=8, vocab_size=11, n_positions=16, attn_implementation=attention
        )
        model = transformers.GPT2LMHeadModel(config)
        components = head_map("transformer.h.{}.attn", 2, 4, 2, "c_proj", "c_proj.weight")
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=8, intermediate_size=12,
            vocab_size=11, attn_implementation=attention,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        components = head_map("model.layers.{}.self_attn", 2, 4, 2, "o_proj", "o_proj.weight")
    return randomised(model, seed=5), components


def tokens():
    generator = torch.Generator().manual_seed(0)
    ids, labels = (torch.randint(11, (3, 7), generator=generator) for _ in range(2))
    return {"input_ids": ids, "labels": labels}


def by_hand(family, model, components, batch):
    """Patterns come from the model's own report, values from its projections, slopes from autograd at the sites."""
    values, sites, handles = [], [], []
    for layer in (0, 1):
        if family == "gpt2":
            own = model.transformer.h[layer].attn
            project, out = own.c_attn, own.c_proj
        else:
            own = model.model.layers[layer].self_attn
            project, out = own.v_proj, own.o_proj
        handles.append(project.register_forward_hook(lambda _, args, result: values.append(result.detach())))
        handles.append(out.register_forward_pre_hook(lambda _, args: sites.append(args[0])))
    result = model(input_ids=batch["input_ids"], output_attentions=True)
    for handle in handles:
        handle.remove()
    losses = F.cross_entropy(result.logits.transpose(1, 2), batch["labels"], reduction="none").mean(-1)
    gradients = torch.autograd.grad(-losses.sum(), sites)
    counts, means = [], []
    for layer in (0, 1):
        v = values[layer][..., -8:] if family == "gpt2" else values[layer].unflatten(-1, (2, 2))
        v = v.unflatten(-1, (4, 2)) if family == "gpt2" else v.repeat_interleave(2, dim=2)
        found = expected_of(
            result.attentions[layer].detach(),
            v.transpose(1, 2),
            gradients[layer].unflatten(-1, (4, 2)).transpose(1, 2),
            0.01,
        )
        counts.append(found[0])
        means.append(found[1])
    return np.concatenate(counts), np.concatenate(means)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hugging_face_models_equal_the_oracle_eager_and_fused(family):
    batch = tokens()
    model, components = tiny(family, "eager")
    expected = by_hand(family, model, components, batch)
    assert expected[0].sum() > 9
    for attention in ("eager", "sdpa"):
        model, _ = tiny(family, attention)
        assert_same(measure(model, Probe([batch]), components), expected, atol=ROUNDING[family])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padded_hugging_face_examples_equal_the_same_examples_alone(family, attention):
    model, components = tiny(family, attention)
    batch = tokens()
    batch["attention_mask"] = torch.ones(3, 7, dtype=torch.long)
    batch["attention_mask"][1, 5:] = 0
    batch["labels"][1, 5:] = -100
    alone = [{name: t[e : e + 1, : 5 if e == 1 else 7] for name, t in batch.items()} for e in range(3)]
    assert_same(
        measure(model, Probe([batch]), components), measure(model, Probe(alone), components), atol=ROUNDING[family]
    )
