"""litgpt's GPT on tiny random models: every measurement against the explicit forward pass.

litgpt and transformers cannot share an environment: `make test-litgpt` runs this file in one of its own.
"""

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
from tests.oracles.litgpt import gpt

litgpt = pytest.importorskip("litgpt", reason="needs litgpt, in an environment of its own: make test-litgpt")

SIZES = {"block_size": 8, "vocab_size": 7, "padded_vocab_size": 7, "n_layer": 2, "n_embd": 8, "intermediate_size": 5}
LLAMA = {
    **SIZES,
    "n_head": 4,
    "n_query_groups": 2,
    "rotary_percentage": 1.0,
    "parallel_residual": False,
    "bias": False,
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "LLaMAMLP",
    "rope_base": 50,
}
GEMMA = {
    **LLAMA,
    "name": "Gemma-2-tiny",
    "mlp_class_name": "GemmaMLP",
    "gelu_approximate": "tanh",
    "head_size": 4,
    "n_query_groups": 1,
    "scale_embeddings": True,
    "attention_scores_scalar": 9,
    "attention_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "post_attention_norm": True,
    "post_mlp_norm": True,
}
KINDS = {
    "gpt-neox": {**SIZES, "n_head": 2, "rotary_percentage": 0.5, "rope_base": 50},
    "phi": {**SIZES, "n_head": 2, "rotary_percentage": 0.5, "shared_attention_norm": True, "gelu_approximate": "tanh"},
    "llama": LLAMA,
    "gemma": GEMMA,
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


def model_of(kind="llama", **changes):
    return randomised(litgpt.GPT(litgpt.Config(**{**KINDS[kind], **changes})))


@pytest.mark.parametrize("kind", KINDS)
def test_every_measurement_equals_the_oracles(kind):
    model = model_of(kind)
    agree(model, probe(), lambda rules: gpt(model.state_dict(), model.config, rules))


def test_components_of_grouped_queries():
    components = find_components(model_of("llama"))
    assert components.labels == tuple(f"L{i}{part}" for i in (0, 1) for part in (*(f"H{h}" for h in range(4)), "MLP"))
    head = components[8]
    assert head.site == Site("transformer.h.1.attn.proj", "input", 6, 8)
    # Four queries of two rows, then two keys, then two values; heads 2 and 3 use the second of each.
    rows = [WeightSlice("transformer.h.1.attn.qkv.weight", 0, start, start + 2) for start in (6, 10, 14)]
    out = WeightSlice("transformer.h.1.attn.proj.weight", 1, 6, 8)
    assert head.all_weights == (*rows, out)
    assert head.value_out == (rows[2], out)
    mlp = components[9]
    assert mlp.site == Site("transformer.h.1.mlp", "output")
    assert [w.parameter.rpartition("mlp.")[2] for w in mlp.all_weights] == ["fc_1.weight", "fc_2.weight", "proj.weight"]


class Lit(L.LightningModule):
    def __init__(self, gpt):
        super().__init__()
        self.gpt = gpt

    def training_step(self, batch, index):
        return self.gpt(batch["input_ids"]).sum()


class OwnGPT(litgpt.GPT):
    pass


def test_inside_a_lightning_module_and_as_a_subclass():
    model = model_of()
    expected = take_snapshot(model, probe())
    assert find_components(Lit(model)).root == "gpt"
    same(take_snapshot(Lit(model), probe()), expected)
    own = randomised(OwnGPT(model.config))
    same(take_snapshot(own, probe()), expected)


def test_wrapped_models_are_found():
    model = model_of()
    for wrapped, path in ((torch.compile(model, backend="eager"), "_orig_mod"), (nn.DataParallel(model), "module")):
        components = find_components(wrapped)
        assert components.root == path
        assert components[0].site.module == f"{path}.transformer.h.0.attn.proj"
        same(take_snapshot(wrapped, probe()), take_snapshot(model, probe()))


HOW_TO = "For another kind of block, pass a ComponentMap of your own (see docs/how-to/component-map.md)."


def test_a_mixture_of_experts_is_refused():
    with pytest.raises(ComponentError) as caught:
        find_components(model_of(mlp_class_name="LLaMAMoE", n_expert=2, n_expert_per_token=1, moe_intermediate_size=3))
    assert str(caught.value) == (
        "'transformer.h.0.mlp' (LLaMAMoE) of litgpt's GPT was expected to be an MLP with fc, or fc_1 and fc_2, and "
        f"proj; its submodules are gate (Linear), experts (ModuleList). {HOW_TO}"
    )


def test_latent_attention_is_refused():
    latent = {"q_lora_rank": 3, "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2, "v_head_dim": 2}
    with pytest.raises(ComponentError) as caught:
        find_components(model_of(latent_attention=latent, n_query_groups=4))
    assert str(caught.value) == (
        "'transformer.h.0.attn' (MultiheadLatentAttention) of litgpt's GPT was expected to be attention with qkv and "
        "proj; its submodules are q_a_proj (Linear), q_a_norm (RMSNorm), q_b_proj (Linear), kv_a_proj_with_mqa "
        f"(Linear), kv_a_norm (RMSNorm), kv_b_proj (Linear), proj (Linear). {HOW_TO}"
    )
