"""GIM on models of published families, as their own packages write them: every rule acts, and the same everywhere."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamics import GIMRules, Probe, gim_backward, take_snapshot
from tests.measurements.gim_families import (
    CAUSAL,
    MIXTURES,
    TOKENS,
    MultiheadDecoder,
    at_tokens,
    bridge,
    decoder,
    decoder_by_hand,
    distance,
    gated,
    hugging_face,
    mixture,
    score,
)
from tests.oracles import gim as oracle

OFF = GIMRules(None, False, False)
ALONE = {
    "norm": GIMRules(None, True, False),
    "softmax": GIMRules(2.0, False, False),
    "products": GIMRules(None, False, True),
}


def under(model, rules):
    """Return the gradient of the score at the embedded tokens, under rules."""
    return at_tokens(model, gim_backward(model, rules))


# --- fused, eager, nn.MultiheadAttention -----------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [GIMRules(), *ALONE.values()], ids=["all", *ALONE])
def test_fused_eager_and_multihead_versions_of_our_decoder_give_the_gradient_written_by_hand(rules):
    model = decoder()
    by_hand = oracle.Rules(rules.temperature or 1.0, rules.freeze_norm, rules.split_products)
    expected = decoder_by_hand(model, by_hand)
    assert distance(under(model, rules), expected) < 1e-10
    for how in ("fused", "weights", "eager"):
        assert distance(under(MultiheadDecoder(model, how), rules), expected) < 1e-10, how


# Fused attention cannot cap scores.
BOTH_WAYS = [family for family in CAUSAL if family != "Gemma 2, capped scores"]
ALL = [*((family, "sdpa") for family in BOTH_WAYS), *((family, "eager") for family in CAUSAL)]


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_fused_and_eager_attention_of_a_hugging_face_model_give_the_same_gradients(family):
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    fused, eager = (hugging_face(family, attention) for attention in ("sdpa", "eager"))
    plain = distance(at_tokens(fused), at_tokens(eager))
    gim = distance(under(fused, GIMRules()), under(eager, GIMRules()))
    # Other families work in single precision in their norms or their eager softmax, whatever the model's dtype.
    assert max(plain, gim) < (1e-13 if family == "GPT-2" else 3e-6)


# --- every rule acts, and nothing else changes -----------------------------------------------------------------------


@pytest.mark.parametrize(("family", "attention"), ALL)
def test_every_rule_acts_and_with_all_off_nothing_does(family, attention):
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    model = hugging_face(family, attention)
    ordinary = at_tokens(model)
    with torch.no_grad():
        plain = score(model)
    for rules in ALONE.values():
        assert distance(under(model, rules), ordinary) > 1e-3
    with gim_backward(model):
        assert torch.equal(score(model), plain)
    assert torch.equal(under(model, OFF), ordinary)
    assert torch.equal(at_tokens(model), ordinary)


@pytest.mark.parametrize("family", ["Llama", "Gemma 2", "Qwen2"])
def test_hugging_face_norms_are_frozen_as_their_closed_form_says(family):
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    norm = hugging_face(family).model.norm
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    g = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with gim_backward(norm, ALONE["norm"]):
        y = norm(x)
    found, at_weight = torch.autograd.grad(y, (x, norm.weight), g)
    weight = norm.weight + 1 if family == "Gemma 2" else norm.weight
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    rms = (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    # These norms work in single precision.
    torch.testing.assert_close(found, g * weight / rms, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(at_weight, (g * x / rms).sum((0, 1)), rtol=1e-5, atol=1e-5)


def check_gates(part, before, after, dtype=torch.float64, rtol=1e-12):
    """Weights before the gate's product get half their gradient, all others their own."""
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    weights = dict(part.named_parameters())
    assert weights.keys() == {*before, *after}

    def gradients(rules):
        with gim_backward(part, rules):
            y = part(x.clone().requires_grad_())
        return dict(zip(weights, torch.autograd.grad(y.sin().sum(), weights.values()), strict=True))

    ordinary, halved = gradients(OFF), gradients(ALONE["products"])
    for name in weights:
        expected = ordinary[name] / 2 if name in before else ordinary[name]
        assert ordinary[name].abs().max() > 0, name
        torch.testing.assert_close(halved[name], expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("family", ["T5, gated", "ModernBERT"])
def test_gates_are_halved_and_the_way_down_is_not(family):
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    check_gates(*gated(family))


@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_gates_of_experts_are_halved_and_neither_the_way_down_nor_the_router_is(family, experts):
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    dtype = torch.float32 if experts == "grouped_mm" else torch.float64
    check_gates(*mixture(family, dtype, experts=experts), dtype, 1e-5 if experts == "grouped_mm" else 1e-12)


def test_the_softmax_of_mixtrals_router_is_left_alone():
    pytest.importorskip("transformers", reason="builds a Hugging Face model")
    model = hugging_face("Mixtral")
    found = []
    for rules in (OFF, ALONE["softmax"]):
        taps = []
        handle = model.model.layers[-1].mlp.register_forward_pre_hook(lambda module, args, taps=taps: taps.extend(args))
        with gim_backward(model, rules):
            value = score(model)
        handle.remove()
        # Between the last layer's experts and the score there is no attention, only the router's softmax.
        router = model.model.layers[-1].mlp.gate.weight
        found.append(torch.autograd.grad(value, (taps[0], router)))
    assert found[0][1].abs().max() > 0
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


# --- TransformerLens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["GPT-2", "Llama"])
def test_a_bridge_of_transformerlens_gives_the_gradients_of_what_it_wraps(family):
    pytest.importorskip("transformer_lens", reason="builds a TransformerLens bridge")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = bridge(family)
        plain = hugging_face(family, "eager")
        for rules in (GIMRules(), *ALONE.values()):
            assert distance(under(wrapped, rules), under(plain, rules)) < 1e-5


def test_an_ungated_mlp_is_not_halved_through_a_bridge():
    pytest.importorskip("transformer_lens", reason="builds a TransformerLens bridge")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bridge("GPT-2")
        # After the last attention only an MLP follows, so halves would show in the gradients of that MLP alone.
        weights = {name: p for name, p in model.named_parameters() if ".1." in name and ".mlp." in name}
        assert len(weights) == 4
        found = []
        for rules in (OFF, ALONE["products"]):
            with gim_backward(model, rules):
                value = score(model)
            found.append(torch.autograd.grad(value, list(weights.values())))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


class Doubled(nn.LayerNorm):
    """A norm of somebody's own, whose forward pass is not the base class's."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_subclass_of_layer_norm_keeps_its_own_forward_pass():
    model = decoder()
    norm = Doubled(16).double()
    norm.load_state_dict(model.final_norm.state_dict())
    model.final_norm = norm
    plain = score(model)
    with gim_backward(model):
        value = score(model)
    assert torch.equal(value, plain)
    # 2 LayerNorm(x) unembedded is LayerNorm(x) unembedded by twice the weights.
    twin = decoder()
    with torch.no_grad():
        twin.unembed.weight *= 2
    assert distance(under(model, GIMRules()), under(twin, GIMRules())) < 1e-12


# --- another device --------------------------------------------------------------------------------------------------


def _objective(model, batch):
    logits = model(batch["input_ids"])
    loss = F.cross_entropy(logits.mT, batch["labels"], reduction="none").mean(-1)
    return loss, (logits.argmax(-1) == batch["labels"]).all(-1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_gradients_and_snapshots_on_a_gpu_are_those_of_the_cpu(dtype, tolerance):
    model = decoder(dtype)
    here = under(model, GIMRules())
    batches = [{"input_ids": TOKENS, "labels": TOKENS.flip(-1)}]
    expected = take_snapshot(model, Probe(batches, objective=_objective))
    model.cuda()
    taps = []
    handle = model.embed.register_forward_hook(lambda module, args, output: taps.append(output))
    with gim_backward(model):
        value = score(model, TOKENS.cuda())
    handle.remove()
    (there,) = torch.autograd.grad(value, taps[0])
    assert there.is_cuda
    assert distance(there.cpu(), here) < tolerance
    on_gpu = [{name: tensor.cuda() for name, tensor in batch.items()} for batch in batches]
    found = take_snapshot(model, Probe(on_gpu, objective=_objective))
    for name in ("loss", "gradient_norm", "weight_norm", "ablation_loss", "attribution"):
        one, two = (torch.from_numpy(snapshot[name]).double() for snapshot in (found, expected))
        assert distance(one, two) < tolerance, name
