"""The rules of GIM on single operators, in closed form, and the context that switches them on."""

import copy
import gc
import math
import sys
import threading
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dynamics import GIMRules, gim_backward
from dynamics.errors import MeasurementError
from dynamics.measurements import gim_attention
from dynamics.model import Transformer
from tests.measurements.gim_models import Apply, GatedMLP, GroupedAttention, LlamaBlock, randomised
from tests.oracles import gim as oracle

ATTENTION = GIMRules(freeze_norm=False)
OFF = GIMRules(None, False, False)


def random(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients(function, inputs, cotangent, rules):
    """Return the gradients of a function, run as a model, at its inputs."""
    inputs = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    model = Apply(function)
    with gim_backward(model, rules):
        output = model(*inputs)
    return torch.autograd.grad(output, [t for t in inputs if t.requires_grad], cotangent, allow_unused=True)


def fused(**options):
    return lambda q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


def eager(q, k, v, mask=None, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores if mask is None else scores + mask).softmax(-1) @ v


# --- the rules in closed form ----------------------------------------------------------------------------------------


def attention_by_formula(q, k, v, g, temperature, share, scale, allowed, bias):
    """The gradients of rules 1 and 3, entry by entry, for one head: ``(queries, d)``."""
    n, m = len(q), len(k)
    dq, dk, dv, db = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros(n, m).double()
    for i in range(n):
        keys = [j for j in range(m) if allowed[i, j]]
        scores = {j: float(q[i] @ k[j]) * scale + float(bias[i, j]) for j in keys}

        def softmax(t, scores=scores):
            top = max(scores.values())
            weights = {j: math.exp((s - top) / t) for j, s in scores.items()}
            return {j: w / sum(weights.values()) for j, w in weights.items()}

        plain, tempered = softmax(1.0), softmax(temperature)
        for j in keys:
            dv[j] += share * plain[j] * g[i]
        to_pattern = {j: share * float(g[i] @ v[j]) for j in keys}
        mean = sum(tempered[j] * to_pattern[j] for j in keys)
        for j in keys:
            to_score = tempered[j] * (to_pattern[j] - mean)
            db[i, j] = to_score
            dq[i] += share * to_score * scale * k[j]
            dk[j] += share * to_score * scale * q[i]
    return dq, dk, dv, db


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from((1.0, 0.5, 2.0, 7.0)),
    st.booleans(),
    st.sampled_from((None, 0.3)),
    st.sampled_from(("none", "causal", "boolean", "float", "float and forbidden")),
    st.integers(0, 2**16),
)
def test_attention_has_the_gradients_of_the_formula(n, m, d, temperature, split, scale, mask, seed):
    q, k, v, g = random(n, d, seed=seed), random(m, d, seed=seed + 1), random(m, 2, seed=seed + 2), random(n, 2, seed=3)
    allowed, bias = torch.ones(n, m).bool(), torch.zeros(n, m).double()
    if mask in ("boolean", "float and forbidden"):
        allowed = random(n, m, seed=seed + 3) > 0
        allowed[:, 0] = True
    if mask == "causal":
        allowed = allowed.tril()
    if mask.startswith("float"):
        bias = random(n, m, seed=seed + 4)
    tensor = {"boolean": allowed, "float": bias, "float and forbidden": bias.masked_fill(~allowed, -torch.inf)}.get(
        mask
    )
    rules = GIMRules(temperature, False, split)
    if temperature == 1.0 and not split:
        rules = OFF
    used = d**-0.5 if scale is None else scale
    expected = attention_by_formula(q, k, v, g, temperature, 0.5 if split else 1.0, used, allowed, bias)
    inputs = [q, k, v] if tensor is None else [q, k, v, tensor]
    found = gradients(fused(scale=scale, is_causal=mask == "causal"), inputs, g, rules)
    also = gradients(
        lambda q, k, v, mask=None: eager(q, k, v, mask, scale),
        [q, k, v, torch.where(allowed, bias, -torch.inf)],
        g,
        rules,
    )
    for wanted, one, two in zip(expected, (*found, also[3])[:4], also, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(two, wanted, rtol=1e-10, atol=1e-13)
    # Nothing, not even a rounding error, goes through a masked score.
    assert (also[3][~allowed] == 0).all()


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 2**16))
def test_grouped_queries_share_the_gradients_of_their_keys_and_values(examples, keys, group, length, is_causal, seed):
    q, g = (random(examples, keys * group, length, 2, seed=seed + i) for i in range(2))
    k, v = (random(examples, keys, length, 2, seed=seed + i) for i in (2, 3))
    found = gradients(fused(enable_gqa=True, is_causal=is_causal), (q, k, v), g, ATTENTION)
    masked = oracle.causal(length) if is_causal else None
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = torch.autograd.grad(oracle.attention(*inputs, oracle.Rules(), masked=masked), inputs, g)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


def test_masks_and_keys_that_are_broadcast_get_the_sum():
    q, g = random(2, 3, 4, 2), random(2, 3, 4, 2, seed=2)
    k, v, mask = random(1, 3, 5, 2, seed=3), random(2, 3, 5, 2, seed=4), random(1, 1, 1, 5, seed=5)
    found = gradients(fused(), (q, k, v, mask), g, ATTENTION)
    inputs = [t.clone().requires_grad_() for t in (q, k, v, mask)]
    y = oracle.attention(inputs[0], inputs[1].expand(2, -1, -1, -1), inputs[2], oracle.Rules(), bias=inputs[3])
    for one, two in zip(found, torch.autograd.grad(y, inputs, g), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


def test_queries_and_keys_that_examples_share_get_the_sum():
    q, k, g = random(1, 4, 2), random(1, 5, 2, seed=2), random(3, 4, 2, seed=3)
    v = random(3, 5, 2, seed=4)
    found = gradients(fused(), (q, k, v), g, ATTENTION)
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    y = oracle.attention(inputs[0].expand(3, -1, -1), inputs[1].expand(3, -1, -1), inputs[2], oracle.Rules())
    for one, two in zip(found, torch.autograd.grad(y, inputs, g), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("keys", [5, 11])
@pytest.mark.parametrize("with_mask", [False, True])
def test_blocks_of_queries_give_what_all_at_once_give(monkeypatch, is_causal, keys, with_mask):
    if is_causal and with_mask:
        return
    inputs = [random(2, 11, 3), random(2, keys, 3, seed=2), random(2, keys, 3, seed=3)]
    inputs += [random(1, 11, keys, seed=4)] if with_mask else []
    g = random(2, 11, 3, seed=5)
    expected = gradients(fused(is_causal=is_causal), inputs, g, ATTENTION)
    monkeypatch.setitem(gim_attention._SCORES_AT_ONCE, "cpu", 3 * 2 * keys)
    found = gradients(fused(is_causal=is_causal), inputs, g, ATTENTION)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_a_pattern_that_weighs_two_kinds_of_values_halves_its_scores_once():
    inputs = [random(4, 3, seed=i) for i in range(4)]

    def attend(half, softmax):
        def attend(q, k, v, w):
            pattern = softmax(half(q) @ half(k).mT)
            return half(pattern) @ half(v) + half(pattern) @ half(w)

        return attend

    found = gradients(attend(lambda t: t, lambda s: s.softmax(-1)), inputs, random(4, 3, seed=9), ATTENTION)
    leaves = [t.clone().requires_grad_() for t in inputs]
    by_hand = attend(lambda t: oracle.half(t, oracle.Rules()), lambda s: oracle._Tempered.apply(s, 2.0))
    expected = torch.autograd.grad(by_hand(*leaves), leaves, random(4, 3, seed=9))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


def test_a_bias_that_baddbmm_adds_to_the_scores_is_no_side_of_the_product():
    q, k, v, bias, g = (random(2, 4, 4, seed=i) for i in range(5))
    found = gradients(
        lambda q, k, v, bias: torch.baddbmm(bias, q, k.mT, alpha=0.5).softmax(-1) @ v, (q, k, v, bias), g, ATTENTION
    )
    leaves = [t.clone().requires_grad_() for t in (q, k, v, bias)]
    y = oracle.attention(*leaves[:3], oracle.Rules(), bias=leaves[3], scale=0.5)
    for one, two in zip(found, torch.autograd.grad(y, leaves, g), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


def test_a_row_that_sees_nothing_passes_nothing_on():
    mask = torch.tensor([[True, True], [False, False]])
    q, k, v, g = (random(1, 2, 2, seed=i) for i in range(4))
    found = gradients(fused(), (q, k, v, mask), g, ATTENTION)
    assert (found[0][0, 1] == 0).all()
    assert all(torch.isfinite(t).all() for t in found)


def test_an_eager_row_that_sees_nothing_passes_nothing_on():
    mask = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]).double()
    q, k, v, g = (random(1, 2, 2, seed=i) for i in range(4))

    def attend(q, k, v):
        return torch.nan_to_num((q @ k.mT + mask).softmax(-1)) @ v

    found = gradients(attend, (q, k, v), g, ATTENTION)
    expected = gradients(lambda q, k, v: eager(q, k, v, scale=1.0), (q[:, :1], k, v), g[:, :1], ATTENTION)
    assert (found[0][0, 1] == 0).all()
    for one, two in zip((found[0][:, :1], *found[1:]), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


@given(st.integers(2, 6), st.floats(0.2, 9), st.floats(-5, 5), st.integers(0, 2**16))
def test_tempered_gradients_of_a_row_sum_to_zero_and_ignore_a_shift_of_the_scores(m, temperature, shift, seed):
    # Queries and keys of width 1: scores q k, with q = 1; the gradient at the keys is the gradient at the scores.
    q, k, v, g = torch.ones(1, 1).double(), random(m, 1, seed=seed), random(m, 3, seed=seed + 1), random(1, 3)
    rules = GIMRules(temperature, False, False) if temperature != 1 else OFF
    for attend in (fused(scale=1.0), lambda q, k, v: eager(q, k, v, scale=1.0)):
        first = gradients(attend, (q, k, v), g, rules)[1]
        torch.testing.assert_close(first.sum(), torch.zeros(()).double(), rtol=0, atol=1e-14)
        torch.testing.assert_close(gradients(attend, (q, k + shift, v), g, rules)[1], first, rtol=1e-10, atol=1e-14)


def closed_repair(a, c, m, t):
    """Ordinary and tempered gradient at one of two equal scores a beside m zeros; values c, c, 0 …."""
    ordinary, tempered = (c * e * m / (2 * e + m) ** 2 for e in (math.exp(a), math.exp(a / t)))
    return ordinary, tempered


@given(st.floats(0.1, 12), st.floats(-2, 2), st.integers(1, 10), st.floats(1.1, 6))
def test_self_repair_has_its_closed_forms(a, c, m, temperature):
    q = torch.ones(1, 1).double()
    k = torch.tensor([a, a] + [0.0] * m, dtype=torch.float64)[:, None]
    v = torch.tensor([c, c] + [0.0] * m, dtype=torch.float64)[:, None]
    for attend in (fused(scale=1.0), lambda q, k, v: eager(q, k, v, scale=1.0)):
        found = [
            gradients(attend, (q, k, v), q, rules)[1][0, 0].item()
            for rules in (OFF, GIMRules(temperature, False, False))
        ]
        torch.testing.assert_close(found, list(closed_repair(a, c, m, temperature)), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("a", "ordinary", "tempered"), [(4, 0.0318, 0.1139), (8, 6.69e-4, 0.0318), (1, 0.1205, 0.1033)]
)
def test_self_repair_at_the_numbers_of_the_paper_toy(a, ordinary, tempered):
    assert closed_repair(a, 1, 8, 2) == pytest.approx((ordinary, tempered), rel=5e-3)


@given(st.integers(2, 6), st.booleans(), st.integers(0, 2**16))
def test_a_frozen_norm_is_a_linear_map(d, centred, seed):
    x, g, w, b = random(1, d, seed=seed), random(1, d, seed=seed + 1), random(d, seed=2), random(d, seed=3)
    rules = GIMRules(None, True, False)
    if centred:
        found = gradients(lambda x, w, b: F.layer_norm(x, (d,), w, b), (x, w, b), g, rules)
        sigma = (x.var(correction=0) + 1e-5).sqrt()
        matrix = (torch.eye(d, dtype=torch.float64) - 1 / d) @ torch.diag(w) / sigma
        own = ((g * (x - x.mean()) / sigma)[0], g[0])
    else:
        found = gradients(lambda x, w: F.rms_norm(x, (d,), w, 1e-6), (x, w), g, rules)
        rms = (x.pow(2).mean() + 1e-6).sqrt()
        matrix, own = torch.diag(w) / rms, ((g * x / rms)[0],)
    torch.testing.assert_close(found[0][0], matrix @ g[0], rtol=1e-10, atol=1e-13)
    for one, two in zip(found[1:], own, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


@given(st.integers(1, 4), st.integers(0, 2**16))
def test_halves_make_gradient_times_input_complete_for_a_pure_product(d, seed):
    model = GatedMLP(d, act=lambda y: y)
    model.up.bias = model.down.bias = None
    model = randomised(model, seed)
    x = random(3, d, seed=seed + 1).requires_grad_()
    with gim_backward(model, GIMRules(None, False, True)):
        f = model(x).sum()
    (g,) = torch.autograd.grad(f, x)
    torch.testing.assert_close((x * g).sum(), f, rtol=1e-10, atol=1e-12)


# --- the context -----------------------------------------------------------------------------------------------------


def decoder(dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    model = Transformer(**{"n_layers": 2, "n_heads": 2, "d_model": 8, "d_ff": 6, "vocab_size": 7, **sizes})
    return randomised(model).to(dtype)


IDS = torch.tensor([[0, 3, 5, 1], [6, 2, 2, 4]])


def loss_of(model):
    return F.cross_entropy(model(IDS).flatten(0, 1).float(), IDS.flatten())


def at_parameters(model, rules=None):
    """Return the loss and the gradients at the parameters."""
    if rules is None:
        loss = loss_of(model)
    else:
        with gim_backward(model, rules):
            loss = loss_of(model)
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_forward_pass_and_the_rules_switched_off_are_plain_pytorch_to_the_bit(dtype):
    model = decoder(dtype)
    plain, ordinary = at_parameters(model)
    loss, off = at_parameters(model, OFF)
    assert torch.equal(loss, plain)
    assert equal(off, ordinary)
    loss, gim = at_parameters(model, GIMRules())
    assert torch.equal(loss, plain)
    assert all(g.dtype == dtype for g in gim)
    reference = at_parameters(model.double(), GIMRules())[1]
    error = max((g - r).abs().max() / (r.abs().max() + 1e-3) for g, r in zip(gim, reference, strict=True))
    assert error < {torch.float16: 3e-2, torch.bfloat16: 0.2, torch.float32: 1e-5, torch.float64: 1e-6}[dtype]


@pytest.mark.parametrize("how", ["fused", "grouped", "eager", "capped"])
def test_half_precision_of_an_eager_model_with_casts(how):
    exact, model = (randomised(LlamaBlock(how=how)) for _ in range(2))
    model = model.to(torch.bfloat16)
    found = []
    for m in (exact, model):
        x = random(2, 4, 8, dtype=next(m.parameters()).dtype).requires_grad_()
        with gim_backward(m, GIMRules()):
            y = m(x)
        assert torch.equal(y, m(x))
        found.append(torch.autograd.grad(y.sum(), x)[0].double())
    assert (found[0] - found[1]).norm() < 0.05 * found[0].norm()


def test_mixed_precision_keeps_the_forward_bits_and_comes_close():
    model = decoder(torch.float32)
    exact = at_parameters(model, GIMRules())[1]
    with torch.autocast("cpu", torch.bfloat16):
        plain = loss_of(model)
        with gim_backward(model, GIMRules()):
            loss = loss_of(model)
    assert torch.equal(loss, plain)
    found = torch.autograd.grad(loss, list(model.parameters()))
    for g, r in zip(found, exact, strict=True):
        assert (g - r).norm() < 0.15 * r.norm() + 0.02


def test_a_backward_pass_inside_mixed_precision_keeps_the_rules_in_single_precision():
    q, k, v = (random(2, 3, 4, seed=i, dtype=torch.float32).requires_grad_() for i in range(3))
    model = Apply(lambda q, k, v: F.layer_norm(F.scaled_dot_product_attention(q, k, v), (4,)))
    with gim_backward(model):
        y = model(q, k, v)
    g = random(2, 3, 4, dtype=torch.float32)
    expected = torch.autograd.grad(y, (q, k, v), g, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y, (q, k, v), g)
    assert equal(found, expected)


def test_backward_inside_outside_and_twice_is_the_same():
    model = decoder()
    expected = at_parameters(model, GIMRules())[1]
    with gim_backward(model):
        loss = loss_of(model)
        inside = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward(retain_graph=True)
    outside = torch.autograd.grad(loss, list(model.parameters()))
    assert equal(inside, expected)
    assert equal(outside, expected)
    assert equal([p.grad for p in model.parameters()], expected)


def everything_held(model):
    """Return the attributes of all modules, and what their dictionaries of hooks and weights hold."""
    return [
        {key: list(value.items()) if isinstance(value, dict) else value for key, value in vars(m).items()}
        for m in model.modules()
    ]


def test_the_weights_their_ties_the_optimizer_and_the_state_dict_are_untouched():
    model = decoder()
    model.unembed.weight = model.embed.weight
    model.blocks[1].mlp_norm = model.blocks[0].mlp_norm
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    before = [(name, id(p), p.requires_grad) for name, p in model.named_parameters(remove_duplicate=False)]
    hooks = everything_held(model)
    with gim_backward(model):
        loss_of(model).backward()
        assert list(model.state_dict()) == list(twin.state_dict())
    assert before == [(name, id(p), p.requires_grad) for name, p in model.named_parameters(remove_duplicate=False)]
    assert hooks == everything_held(model)
    assert equal(model.state_dict().values(), twin.state_dict().values())
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step()
    assert model.unembed.weight is model.embed.weight
    assert not equal(model.state_dict().values(), twin.state_dict().values())


def test_a_shared_norm_is_frozen_under_both_its_names():
    model, other = decoder(), decoder()
    model.blocks[1].mlp_norm = model.blocks[0].mlp_norm
    other.blocks[1].mlp_norm.load_state_dict(other.blocks[0].mlp_norm.state_dict())
    shared, apart = (torch.autograd.grad(loss, m.embed.weight)[0] for m in (model, other) for loss in [_gim_loss(m)])
    torch.testing.assert_close(shared, apart, rtol=1e-12, atol=1e-15)


def _gim_loss(model):
    with gim_backward(model):
        return loss_of(model)


def test_frozen_parameters_do_not_hide_attention():
    model = decoder().requires_grad_(False)
    expected = at_parameters(decoder(), GIMRules())
    handle = model.blocks[0].mlp.register_forward_hook(lambda m, i, y: y + leaf)
    leaf = torch.zeros(2, 4, 8).double().requires_grad_()
    try:
        with gim_backward(model):
            loss = loss_of(model)
    finally:
        handle.remove()
    # At the output bias's place the gradients of all positions meet.
    bias = [name for name, _ in model.named_parameters()].index("blocks.0.mlp.output.bias")
    (found,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(found.sum((0, 1)), expected[1][bias], rtol=1e-12, atol=1e-15)


def test_inputs_may_come_in_any_container():
    @dataclass
    class Batch:
        x: torch.Tensor

    model = randomised(GroupedAttention(8, "eager"))
    x = random(2, 4, 8).requires_grad_()
    expected = torch.autograd.grad(_run(model, x, ATTENTION).sum(), x)[0]
    unpack = {
        "mapping": (lambda b: b["a"][0], {"a": [x]}),
        "dataclass": (lambda b: b.x, Batch(x)),
        "nested": (lambda b: b[1][0].x, (None, (Batch(x),))),
    }
    for get, batch in unpack.values():
        outer = Apply(lambda batch, get=get: model(get(batch)))
        outer.model = model
        with gim_backward(outer, ATTENTION):
            y = outer(batch)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


def test_values_that_need_a_gradient_beside_a_pattern_that_needs_none_get_their_half():
    for how in ("fused", "eager", "grouped"):
        model = randomised(GroupedAttention(8, how)).requires_grad_(False)
        model.v.requires_grad_(True)
        x = random(2, 4, 8)
        full, halved = (
            torch.autograd.grad(y.sum(), model.v.weight)[0]
            for rules in (OFF, ATTENTION)
            for y in [_run(model, x, rules)]
        )
        torch.testing.assert_close(halved, full / 2, rtol=1e-12, atol=1e-15)


def _run(model, x, rules):
    with gim_backward(model, rules):
        return model(x)


def test_it_undoes_itself_after_an_exception_wherever_it_comes_from():
    model = decoder()
    ordinary, expected = at_parameters(model)[1], at_parameters(model, GIMRules())[1]
    hooks = everything_held(model)

    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    for module in (model, model.blocks[1].attention, model.blocks[0].mlp.output, None):
        handle = None if module is None else module.register_forward_hook(stop)
        with pytest.raises(StopError), gim_backward(model):  # noqa: PT012 - from the forward pass, or after it
            loss_of(model)
            stop()
        if handle is not None:
            handle.remove()
        assert hooks == everything_held(model)
        assert not torch.overrides._get_current_function_mode_stack()
        assert equal(at_parameters(model)[1], ordinary)
        assert equal(at_parameters(model, GIMRules())[1], expected)


def test_a_forward_that_fails_half_way_leaves_the_context_usable():
    model = decoder()
    expected = at_parameters(model, GIMRules())[1]
    with gim_backward(model):
        with pytest.raises(IndexError):
            model(torch.tensor([[99]]))
        handle = model.blocks[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(IDS)
        handle.remove()
        loss = loss_of(model)
    assert equal(torch.autograd.grad(loss, list(model.parameters())), expected)


def test_a_forward_that_fails_half_way_does_not_blur_what_is_input_in_the_next():
    model = randomised(LlamaBlock(how="eager"))
    x = random(2, 4, 8).requires_grad_()
    expected = torch.autograd.grad(_run(model, x, GIMRules()).sum(), x)[0]
    with gim_backward(model):
        handle = model.mlp.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(random(2, 4, 8))
        handle.remove()
        y = model(x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


@pytest.mark.parametrize("inner", [OFF, GIMRules(3.0, False, True), GIMRules(None, True, False)])
def test_in_nested_contexts_the_inner_rules_win(inner):
    model = decoder()
    expected_inner, expected_outer = at_parameters(model, inner)[1], at_parameters(model, GIMRules())[1]
    with gim_backward(model):
        with gim_backward(model, inner):
            loss = loss_of(model)
            assert equal(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True), expected_inner)
        assert equal(torch.autograd.grad(loss, list(model.parameters())), expected_inner)
        # The outer rules are back.
        assert equal(torch.autograd.grad(loss_of(model), list(model.parameters())), expected_outer)


def test_an_outer_context_keeps_its_own_model_and_may_leave_all_to_the_inner_one():
    first, second = decoder(), decoder(n_layers=1)
    expected = [at_parameters(first, GIMRules())[1], at_parameters(second, GIMRules(5.0))[1]]
    with gim_backward(first), gim_backward(second, GIMRules(5.0)):
        one, two = loss_of(first), loss_of(second)
    assert equal(torch.autograd.grad(one, list(first.parameters())), expected[0])
    assert equal(torch.autograd.grad(two, list(second.parameters())), expected[1])
    with gim_backward(first), gim_backward(first, OFF):
        loss_of(first).backward()


@pytest.mark.parametrize("outer_rules", [GIMRules(), OFF])
def test_a_model_inside_a_model_can_have_rules_of_its_own(outer_rules):
    whole = nn.Sequential(randomised(LlamaBlock()), randomised(LlamaBlock(how="eager"), 1))
    x = random(2, 4, 8).requires_grad_()
    y = _run(whole[0], x, outer_rules)
    z = _run(whole[1], y, GIMRules(5.0))
    expected = torch.autograd.grad(z.sum(), x)[0]
    with gim_backward(whole, outer_rules), gim_backward(whole[1], GIMRules(5.0)):
        z = whole(x)
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], expected)


def test_only_the_thread_that_opened_it_is_affected():
    model = decoder()
    ordinary, expected = at_parameters(model)[1], at_parameters(model, GIMRules())[1]
    found, barrier = {}, threading.Barrier(3, timeout=20)

    def work(name, rules):
        barrier.wait()
        found[name] = [at_parameters(model, rules)[1] for _ in range(40)]

    threads = [
        threading.Thread(target=work, args=args)
        for args in (("plain", None), ("gim", GIMRules()), ("hot", GIMRules(6.0)))
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # contexts open and close in the middle of each other's forward passes
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    hot = at_parameters(model, GIMRules(6.0))[1]
    assert all(equal(g, ordinary) for g in found["plain"])
    assert all(equal(g, expected) for g in found["gim"])
    assert all(equal(g, hot) for g in found["hot"])


def test_a_thread_that_runs_the_model_while_the_context_is_open_gets_ordinary_gradients():
    model = decoder()
    ordinary, expected = at_parameters(model)[1], at_parameters(model, GIMRules())[1]
    found = []
    with gim_backward(model):
        thread = threading.Thread(target=lambda: found.append(at_parameters(model)[1]))
        thread.start()
        thread.join()
        loss = loss_of(model)
    assert equal(found[0], ordinary)
    assert equal(torch.autograd.grad(loss, list(model.parameters())), expected)


def test_it_works_under_other_modes_and_with_hooks_of_others():
    class Spy(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Spy.seen += 1
            return func(*args, **(kwargs or {}))

    model = decoder()
    expected = at_parameters(model, GIMRules())[1]
    handle = model.blocks[0].register_forward_hook(lambda m, i, y: y * 1.0)
    with torch.device("cpu"), Spy(), gim_backward(model), Spy():
        loss = loss_of(model)
    handle.remove()
    assert equal(torch.autograd.grad(loss, list(model.parameters())), expected)
    assert Spy.seen > 100


def test_a_graph_that_is_dropped_is_freed():
    model = randomised(LlamaBlock(how="eager"))
    x = random(2, 4, 8).requires_grad_()
    seen = []
    handle = model.attention.q.register_forward_hook(lambda m, i, y: seen.append(weakref.ref(y)))
    gc.disable()
    try:
        with gim_backward(model):
            y = model(x)
            del y
            assert seen[0]() is None
    finally:
        gc.enable()
        handle.remove()


# --- activation checkpointing ----------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Two Llama blocks whose activations, or those of a part that is no module, are computed again."""

    def __init__(self, how, part, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(randomised(LlamaBlock(how=how), seed) for seed in range(2))
        self.part, self.reentrant = part, reentrant

    def forward(self, x):
        for block in self.blocks:
            function = block if self.part == "module" else lambda x, block=block: block(x)
            if self.part == "method":

                def function(x, block=block):
                    return block.forward(x)

            x = checkpoint(function, x, use_reentrant=self.reentrant)
        return x * 1.0


@pytest.mark.parametrize("how", ["fused", "eager"])
@pytest.mark.parametrize("part", ["module", "lambda", "method"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_follow_the_rules_inside_the_context(how, part, reentrant):
    model = Checkpointed(how, part, reentrant)
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model):
        y = x
        for block in model.blocks:
            y = block(y)
    wanted = [x, *model.parameters()]
    expected = torch.autograd.grad(y.sum(), wanted)
    with gim_backward(model):
        model(x).sum().backward()
    assert equal([t.grad for t in wanted], expected)


@pytest.mark.parametrize("how", ["fused", "eager"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_outside_the_context_are_an_error_or_exact(how, reentrant):
    model = Checkpointed(how, "module", reentrant)
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model):
        expected = x
        for block in model.blocks:
            expected = block(expected)
        y = model(x)
    if how == "eager" and not reentrant:
        # The graph was built under the rules, and what is computed again are its saved tensors alone.
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])
        return
    with pytest.raises((MeasurementError, torch.utils.checkpoint.CheckpointError)) as caught:
        y.sum().backward()
    if reentrant:
        assert str(caught.value) == (
            "Checkpointed recomputes activations in its backward pass (activation checkpointing), which ran outside "
            "gim_backward; run forward and backward inside the context."
        )
