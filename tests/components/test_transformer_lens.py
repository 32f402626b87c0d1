"""TransformerLens's bridge on tiny random models: every measurement against the explicit forward pass."""

import lightning as L
import pytest
import torch
from torch import nn

from dynamics import find_components, take_snapshot
from dynamics.components import Site, WeightSlice
from dynamics.errors import ComponentError
from tests.components.agreement import agree, same
from tests.components.checks import InDouble, probe
from tests.measurements.gim_models import randomised
from tests.oracles import hugging_face
from tests.oracles.transformer_lens import native

NEEDS = "needs transformer-lens and transformers (pip install 'gap-dynamics[families]')"
tf = pytest.importorskip("transformers", reason=NEEDS)
pytest.importorskip("transformer_lens", reason=NEEDS)

from transformer_lens.config import TransformerBridgeConfig  # noqa: E402
from transformer_lens.model_bridge import TransformerBridge  # noqa: E402
from transformer_lens.model_bridge.sources import build_bridge_from_module  # noqa: E402

NATIVE = {"d_model": 8, "d_head": 2, "n_heads": 4, "n_layers": 2, "n_ctx": 8, "d_vocab": 7, "d_mlp": 5, "eps": 1e-5}
KINDS = {
    "ungated, layer norm": {**NATIVE, "act_fn": "gelu", "normalization_type": "LN"},
    "gated, rms norm, groups": {
        **NATIVE,
        "act_fn": "silu",
        "normalization_type": "RMS",
        "n_key_value_heads": 2,
        "gated_mlp": True,
    },
}
GROUPED = {
    "vocab_size": 7,
    "hidden_size": 8,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def in_double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble():
            yield
    finally:
        torch.set_default_dtype(before)


def booted(**changes):
    config = TransformerBridgeConfig(**{**KINDS["ungated, layer norm"], **changes})
    return randomised(TransformerBridge.boot_native(config))


def around(model):
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config).eval()


def hugging(family="gpt2"):
    if family == "gpt2":
        config = tf.GPT2Config(vocab_size=7, n_embd=8, n_head=2, n_layer=2, n_positions=8)
        return randomised(tf.GPT2LMHeadModel(config))
    rotary = {"rope_type": "default", "rope_theta": 50.0}
    return randomised(tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED, rope_parameters=rotary)))


def state_of(bridge):
    named = nn.Module.named_parameters(bridge)
    return {name.replace("_original_component.", ""): tensor.detach() for name, tensor in named}


@pytest.mark.parametrize("kind", KINDS)
def test_a_native_bridge_equals_the_oracles(kind):
    bridge = booted(**KINDS[kind])
    agree(bridge, probe(), lambda rules: native(state_of(bridge), bridge.cfg, rules))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_bridge_around_a_hugging_face_model_equals_the_oracles(family):
    model = hugging(family)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cut = getattr(hugging_face, family)
    agree(around(model), probe(), lambda rules: cut(state, model.config, rules))


def test_components_have_the_names_of_the_bridge():
    components = find_components(around(hugging("gpt2")))
    assert components.labels == ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP")
    head = components[4]
    assert head.site == Site("blocks.1.attn.o.hook_in", "output", 4, 8)
    # The bridge splits GPT-2's fused projection into maps of the usual layout; the others keep GPT-2's own.
    assert head.value_out == (
        WeightSlice("blocks.1.attn.v._original_component.weight", 0, 4, 8),
        WeightSlice("blocks.1.attn.o._original_component.weight", 0, 4, 8),
    )
    assert components[5].site == Site("blocks.1.mlp", "output")
    assert components[5].value_out == (WeightSlice("blocks.1.mlp.out._original_component.weight", 1),)


def test_heads_that_share_keys_and_values_share_their_weights():
    components = find_components(around(hugging("llama")))
    values = [head.value_out[0] for head in components[:4]]
    assert [(v.start, v.stop) for v in values] == [(0, 2), (0, 2), (2, 4), (2, 4)]


def test_projecting_heads_one_by_one_changes_nothing():
    bridge = around(hugging("gpt2"))
    expected = take_snapshot(bridge, probe())
    bridge.set_use_attn_result(True)
    same(take_snapshot(bridge, probe()), expected)


def test_processed_weights_are_the_ones_that_are_measured():
    bridge = around(hugging("gpt2"))
    plain = take_snapshot(bridge, probe())
    bridge.enable_compatibility_mode(disable_warnings=True)
    folded = take_snapshot(bridge, probe())
    # Folding norms and biases into weights does not change what the model computes, but what its weights are.
    assert abs(folded["loss"] - plain["loss"]).max() < 1e-9
    assert abs(folded["ablation_loss"][0] - plain["ablation_loss"][0]).max() < 1e-9
    assert abs(folded["weight_norm"] - plain["weight_norm"]).min() > 1e-3
    heads = [component.kind == "head" for component in folded.components]
    assert abs(folded["gradient_norm"] - plain["gradient_norm"])[heads].min() > 1e-6


class Lit(L.LightningModule):
    def __init__(self, bridge):
        super().__init__()
        self.bridge = bridge

    def training_step(self, batch, index):
        return self.bridge(batch["input_ids"], return_type="loss")


class OwnBridge(TransformerBridge):
    pass


def test_inside_a_lightning_module_and_as_a_subclass():
    bridge = around(hugging("llama"))
    expected = take_snapshot(bridge, probe())
    assert find_components(Lit(bridge)).root == "bridge"
    same(take_snapshot(Lit(bridge), probe()), expected)
    bridge.__class__ = OwnBridge
    same(take_snapshot(bridge, probe()), expected)


def test_wrapped_bridges_are_found():
    bridge = booted()
    for wrapped, path in ((torch.compile(bridge, backend="eager"), "_orig_mod"), (nn.DataParallel(bridge), "module")):
        components = find_components(wrapped)
        assert components.root == path
        assert components[0].site.module == f"{path}.blocks.0.attn.o.hook_in"
        same(take_snapshot(wrapped, probe()), take_snapshot(bridge, probe()))


def test_attention_alone():
    assert find_components(booted(attn_only=True)).labels == tuple(f"L{i}H{h}" for i in (0, 1) for h in range(4))


def test_a_mixture_of_experts_is_refused():
    model = tf.MixtralForCausalLM(tf.MixtralConfig(**GROUPED, num_local_experts=2))
    with pytest.raises(ComponentError) as caught:
        find_components(around(model))
    assert str(caught.value) == (
        "'blocks.0.mlp' (MoEBridge) of the TransformerBridge was expected to have linear maps gate, in, out; its "
        "submodules are hook_in (HookPoint), hook_out (HookPoint), hook_router_scores (HookPoint), "
        "_original_component (MixtralSparseMoeBlock), gate (MoERouterBridge). For another kind of block, pass a "
        "ComponentMap of your own (see docs/how-to/component-map.md)."
    )
