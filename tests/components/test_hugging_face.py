"""Hugging Face's families on tiny random models: every measurement against the explicit forward pass."""

import re
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

import dynamics
from dynamics import (
    GapTrackerCallback,
    Probe,
    Schedule,
    attribute_tokens,
    find_components,
    open_run,
    perturbation_curves,
    take_snapshot,
)
from dynamics.errors import ComponentError, ProbeError
from dynamics.measurements.interventions import reading
from tests.components.agreement import agree, equal, same
from tests.measurements.gim_models import randomised
from tests.oracles import hugging_face

tf = pytest.importorskip("transformers", reason="needs transformers (pip install 'gap-dynamics[families]')")

SIZES = {
    "vocab_size": 13,
    "hidden_size": 12,
    "intermediate_size": 7,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
GEMMA = {**SIZES, **LAYERS, "query_pre_attn_scalar": 9, "tie_word_embeddings": True}
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
    "full_attention": {"rope_type": "default", "rope_theta": 300.0},
}
ROTARY = {"rope_type": "default", "rope_theta": 50.0}
CASES = {
    "gpt2": ("GPT2", "GPT2LMHeadModel", {"vocab_size": 13, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 8}),
    "llama": (
        "Llama",
        "LlamaForCausalLM",
        {**SIZES, "attention_bias": True, "mlp_bias": True, "rope_parameters": ROTARY},
    ),
    "mistral": ("Mistral", "MistralForCausalLM", {**SIZES, "sliding_window": 3}),
    "qwen2": ("Qwen2", "Qwen2ForCausalLM", {**SIZES, **LAYERS, "use_sliding_window": True}),
    "qwen3": ("Qwen3", "Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", "Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", "Gemma3ForCausalLM", {**GEMMA, "rope_parameters": LOCAL_AND_GLOBAL}),
    "gpt_neox": (
        "GPTNeoX",
        "GPTNeoXForCausalLM",
        {
            **{name: size for name, size in SIZES.items() if name not in ("num_key_value_heads", "head_dim")},
            "num_attention_heads": 3,
            "rope_parameters": {**ROTARY, "partial_rotary_factor": 0.5},
        },
    ),
}
CUT = {"gpt2": hugging_face.gpt2, "gpt_neox": hugging_face.gpt_neox}


class InDouble(TorchFunctionMode):
    """Norms, rotations and eager softmaxes of these models step down to single precision; this keeps them in double."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        return function(*args, **kwargs)


@pytest.fixture
def in_double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble():
            yield
    finally:
        torch.set_default_dtype(before)


double = pytest.mark.usefixtures("in_double")


def model_of(family, attention="sdpa", **changes):
    config, model, options = CASES[family]
    attention = "eager" if family == "gemma2" else attention
    built = getattr(tf, model)(getattr(tf, f"{config}Config")(**{**options, **changes}, attn_implementation=attention))
    return randomised(built)


def oracle_of(family, model, rules):
    return CUT.get(family, hugging_face.llama)(model.state_dict(), model.config, rules)


def probe(seed=0):
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for examples, length in ((2, 5), (1, 4)):
        ids, labels = torch.randint(13, (2, examples, length), generator=generator)
        labels[:, 1] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return Probe(batches)


@double
@pytest.mark.parametrize("family", CASES)
def test_every_measurement_equals_the_oracles(family):
    model = model_of(family)
    agree(model, probe(), lambda rules: oracle_of(family, model, rules))


@double
@pytest.mark.parametrize("family", [family for family in CASES if family != "gemma2"])
def test_eager_attention_gives_the_same(family):
    # Gemma 2 has eager attention alone: the fused operator knows no soft cap.
    same(take_snapshot(model_of(family, "eager"), probe()), take_snapshot(model_of(family), probe()))


@pytest.mark.parametrize("family", CASES)
def test_in_single_precision_it_is_the_same_but_for_rounding(family):
    model = model_of(family)
    expected = take_snapshot(model, probe())
    found = take_snapshot(model.float(), probe())
    for name in expected:
        # Whether a row counts is decided by a threshold, which rounding may cross.
        if expected[name].dtype != bool and not name.startswith("self_repair"):
            equal(found[name], expected[name], 2e-3, 2e-3 * np.abs(expected[name]).max())


class Mine(L.LightningModule):
    """A user's module: the model under any name, a training step of its own, no forward."""

    def __init__(self, model):
        super().__init__()
        self.parts = nn.ModuleDict({"language": model})
        self.other = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        return self.parts["language"](batch["input_ids"], labels=batch["input_ids"]).loss


@double
@pytest.mark.parametrize("family", CASES)
def test_inside_a_lightning_module_in_training(family):
    model = model_of(family)
    expected = take_snapshot(model, probe())
    # Dropout, where the family has it, is off while measuring; key and value caches, or none, change nothing.
    module = Mine(model).train()
    model.config.use_cache = False
    components = find_components(module)
    assert components.root == "parts.language"
    assert components.network(module) is model
    components.check(module)
    found = take_snapshot(module, probe())
    same(found, expected, rtol=1e-12, atol=1e-13)
    assert all(m.training for m in module.modules())


@pytest.mark.parametrize("family", ["gpt2", "gemma3"])
def test_training_is_the_same_with_the_callback_and_without(family, tmp_path):
    def trained(callbacks):
        torch.manual_seed(0)
        # GPT-2 has dropout, so its training draws random numbers.
        module = Mine(model_of(family).float()).train()
        module.configure_optimizers = lambda: torch.optim.AdamW(module.parameters(), lr=1e-2)
        L.Trainer(
            max_steps=3,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, DataLoader([{"input_ids": row} for row in torch.randint(13, (12, 5))], batch_size=4))
        return module.state_dict()

    tracker = GapTrackerCallback(tmp_path / "run.h5", probe=probe(), schedule=Schedule.every(1))
    tracked, alone = trained([tracker]), trained([])
    assert all(torch.equal(tracked[name], alone[name]) for name in alone)
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 1, 2, 3]
        assert np.isfinite(run["attribution"]).all()


PATHS = {
    "gpt2": ("transformer.h.1.attn.c_proj", "transformer.h.1.mlp"),
    "gpt_neox": ("gpt_neox.layers.1.attention.dense", "gpt_neox.layers.1.mlp"),
}


@pytest.mark.parametrize("family", CASES)
def test_the_paths_and_blocks_of_the_last_layer(family):
    components = find_components(Mine(model_of(family)))
    attention, mlp = PATHS.get(family, ("model.layers.1.self_attn.o_proj", "model.layers.1.mlp"))
    *_, head, last = components
    n_heads = len(components) // 2 - 1
    assert (head.label, last.label) == (f"L1H{n_heads - 1}", "L1MLP")
    assert (head.site.module, head.site.point) == (f"parts.language.{attention}", "input")
    assert (head.site.start, head.site.stop) == (4 * n_heads - 4, 4 * n_heads)
    assert (last.site.module, last.site.point) == (f"parts.language.{mlp}", "output")
    assert len(head.value_out) == 2
    assert len(head.all_weights) == 4
    assert len(last.all_weights) == (2 if family in PATHS else 3)


def test_heads_of_a_group_share_its_key_and_value_rows():
    components = find_components(model_of("llama"))
    rows = [[(block.start, block.stop) for block in head.all_weights] for head in components[:4]]
    assert rows == [
        [(0, 4), (0, 4), (0, 4), (0, 4)],
        [(4, 8), (0, 4), (0, 4), (4, 8)],
        [(8, 12), (4, 8), (4, 8), (8, 12)],
        [(12, 16), (4, 8), (4, 8), (12, 16)],
    ]


class Headed(nn.Module):
    """The bare model with a head of the user's own."""

    def __init__(self, whole):
        super().__init__()
        self.backbone, self.out = whole.base_model, nn.Linear(12, 13, bias=False)
        self.out.weight = nn.Parameter(whole.lm_head.weight.detach().clone())

    def forward(self, input_ids):
        return self.out(self.backbone(input_ids).last_hidden_state)


@double
@pytest.mark.parametrize("family", [family for family in CASES if family != "gemma2"])
def test_the_bare_model_below_a_head_of_the_users(family):
    # Gemma 2 caps its logits in the language model's head.
    whole = model_of(family)
    headed = Headed(whole)
    assert find_components(headed).root == ""
    assert find_components(Mine(headed)).root == "parts.language"
    same(take_snapshot(Mine(headed), probe()), take_snapshot(whole, probe()), rtol=1e-12, atol=1e-13)


def test_a_bare_model_without_a_head_needs_an_objective():
    bare = model_of("llama").model
    module = Mine(bare)
    assert find_components(bare).root == ""
    assert find_components(module).root == "parts.language"
    with pytest.raises(ProbeError) as caught:
        take_snapshot(module, probe())
    assert str(caught.value) == (
        "the default objective needs logits, or an output with .logits; LlamaModel returned a BaseModelOutputWithPast "
        "without. Let Probe(batches, objective=...) go on from it to the loss."
    )


def test_a_classifier_around_the_model_is_the_network():
    _, _, options = CASES["llama"]
    model = tf.LlamaForSequenceClassification(tf.LlamaConfig(**options, num_labels=3))
    assert find_components(model).root == ""
    assert find_components(Mine(model)).root == "parts.language"

    def objective(module, batch):
        logits = module.parts["language"](batch["input_ids"]).logits
        nats = nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
        return nats, logits.argmax(-1) == batch["labels"]

    batch = {"input_ids": torch.arange(1, 11).view(2, 5), "labels": torch.tensor([0, 2])}
    assert take_snapshot(Mine(model), Probe([batch], objective))["ablation_loss"].shape == (2, 10, 2)


def test_a_subclass_of_the_users_is_recognised():
    class MyConfig(tf.LlamaConfig):
        model_type = "mine"

    class MyModel(tf.LlamaForCausalLM):
        pass

    assert len(find_components(MyModel(MyConfig(**CASES["llama"][2])))) == 10


@double
def test_labels_in_hugging_faces_convention():
    model = model_of("llama")
    ids = torch.randint(13, (3, 5), generator=torch.Generator().manual_seed(0))
    snapshot = take_snapshot(model, Probe([{"input_ids": ids, "labels": ids}], shift_labels=True), measurements=())
    with torch.no_grad():
        expected = [model(row[None], labels=row[None]).loss.item() for row in ids]
    equal(snapshot["loss"], expected)


@double
@pytest.mark.parametrize("family", CASES)
def test_padding_at_the_end_changes_nothing(family):
    (long, short), filler = probe().batches, torch.full((1, 1), 3)
    padded = {name: torch.cat([long[name], torch.cat([short[name], filler], 1)]) for name in long}
    padded["labels"][-1, -1] = -100
    padded["attention_mask"] = torch.ones_like(padded["labels"])
    padded["attention_mask"][-1, -1] = 0
    expected, found = (take_snapshot(model_of(family), p) for p in (probe(), Probe([padded])))
    for name in ("loss", "ablation_loss"):
        equal(found[name], expected[name])


OTHERS = {"Gemma": {}, "Olmo2": {}, "Granite": {}, "SmolLM3": {}}


@double
@pytest.mark.parametrize("name", OTHERS)
def test_decoders_built_like_llama_obey_what_makes_a_head_a_head(name):
    config = getattr(tf, f"{name}Config")(**SIZES, attention_bias=False)
    model, examples = randomised(getattr(tf, f"{name}ForCausalLM")(config)), probe()
    components = find_components(model)
    snapshot = take_snapshot(model, examples)
    layer, zero = model.model.layers[1], snapshot.baselines.index("zero")
    with torch.no_grad():
        for index, weight, columns in (
            (5 + 2, layer.self_attn.o_proj.weight, slice(8, 12)),
            (9, layer.mlp.down_proj.weight, slice(None)),
        ):
            kept = weight.clone()
            weight[:, columns] = 0
            equal(snapshot["ablation_loss"][zero, index], take_snapshot(model, examples, measurements=())["loss"])
            weight.copy_(kept)
        # Without the second value head, heads 2 and 3 are gone, and they alone.
        before, nothing = reading_of(model, components), torch.zeros(3, 5, 4)
        layer.self_attn.v_proj.weight[4:] = 0
        after = reading_of(model, components)
    for head in range(4):
        torch.testing.assert_close(after[5 + head], before[5 + head] if head < 2 else nothing)


def reading_of(model, components):
    with reading(model, components) as outputs:
        model(torch.arange(1, 11).repeat(2)[:15].view(3, 5) % 13)
    return [outputs.of(component).clone() for component in components]


# --- what is refused -------------------------------------------------------------------------------------------------

HOW_TO = "pass a ComponentMap of your own (see docs/how-to/component-map.md)."


def refused(model):
    with pytest.raises(ComponentError) as caught:
        find_components(model)
    return str(caught.value)


def test_a_mixture_of_experts_is_refused():
    config = tf.MixtralConfig(**SIZES, num_local_experts=2)
    assert refused(tf.MixtralForCausalLM(config)) == (
        "layer 0: model.layers.0.mlp (MixtralSparseMoeBlock) has no down_proj of its own, as a mixture of experts has "
        f"not; its submodules are gate (MixtralTopKRouter), experts (MixtralExperts). To say what to measure, {HOW_TO}"
    )


def test_a_layer_whose_mlp_has_another_name_is_refused():
    model = model_of("llama")
    layer = model.model.layers[1]
    layer.block_sparse_moe = layer.mlp
    del layer.mlp
    assert refused(model) == (
        "layer 1: model.layers.1 (LlamaDecoderLayer) has no down_proj of its own, as a mixture of experts has not; its "
        "submodules are self_attn (LlamaAttention), input_layernorm (LlamaRMSNorm), post_attention_layernorm "
        f"(LlamaRMSNorm), block_sparse_moe (LlamaMLP). To say what to measure, {HOW_TO}"
    )


def test_heads_that_were_changed_are_refused():
    model = model_of("llama")
    model.config.num_attention_heads = 2
    assert refused(Mine(model)) == (
        "'parts.language.model.layers.0.self_attn.o_proj' takes 16 numbers, but the configuration says 2 heads of 4. "
        f"For a model whose heads were changed, {HOW_TO}"
    )
    model = model_of("llama")
    model.model.layers[1].self_attn.v_proj = nn.Linear(12, 16)
    assert refused(model) == (
        "'model.layers.1.self_attn.v_proj' gives 16 numbers, but the configuration says 8: 2 key and value heads of 4. "
        f"For a model whose heads were changed, {HOW_TO}"
    )
    for family, path, what in (
        ("gpt2", "transformer.h.0.attn", "c_attn"),
        ("gpt_neox", "gpt_neox.layers.0.attention", "query_key_value"),
    ):
        model = model_of(family)
        setattr(model.get_submodule(path), what, nn.Linear(12, 24))
        assert refused(model) == (
            f"'{path}.{what}' gives 24 numbers, but the configuration says 36: query, key and value of 3 heads of 4. "
            f"For a model whose heads were changed, {HOW_TO}"
        )


class LowRank(nn.Module):
    """A layer with a low-rank update beside it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer


class Packed(nn.Linear):
    """Two weights of 4 bits to a byte."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features)
        self.weight = nn.Parameter(torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)


@pytest.mark.parametrize("kind", [LowRank, Packed])
def test_projections_that_were_wrapped_or_packed_are_refused(kind):
    model = model_of("qwen2")
    attention = model.model.layers[1].self_attn
    components = find_components(model)
    attention.q_proj = kind(attention.q_proj)
    assert refused(model) == (
        f"'model.layers.1.self_attn.q_proj' is a {kind.__name__}, which does not hold its weight as an nn.Linear does; "
        f"so it is with quantised layers, and with layers wrapped by LoRA. To say which weights to measure, {HOW_TO}"
    )
    if kind is LowRank:
        with pytest.raises(ComponentError) as caught:
            components.check(model)
        assert str(caught.value) == (
            "L1H0: the model has no weight 'model.layers.1.self_attn.q_proj.weight', which the component map names. "
            "Was the map made for another model, or the model changed since?"
        )


def test_a_projection_that_is_missing_is_refused():
    model = model_of("gpt2")
    del model.transformer.h[1].mlp.c_fc
    assert refused(model) == (
        "'transformer.h.1.mlp' (GPT2MLP) was expected to have a linear layer 'c_fc'; its submodules are c_proj, act, "
        f"dropout. For a model that was changed, {HOW_TO}"
    )


def test_linear_layers_in_place_of_conv1d_are_read_as_what_they_are():
    model = model_of("gpt2")
    attention = model.transformer.h[0].attn
    attention.c_proj = nn.Linear(12, 12)
    components = find_components(model)
    assert components[1].value_out[1].dim == 1
    assert components[5].value_out[1].dim == 0


def test_cross_attention_is_refused():
    config = tf.GPT2Config(**CASES["gpt2"][2], bos_token_id=1, eos_token_id=2, add_cross_attention=True)
    assert refused(tf.GPT2LMHeadModel(config)) == (
        "'transformer.h.0' has cross-attention too, whose heads no label names. To choose what to measure, " + HOW_TO
    )


def test_other_models_of_the_library_are_not_recognised():
    model = tf.OPTForCausalLM(
        tf.OPTConfig(
            vocab_size=13, hidden_size=8, ffn_dim=8, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=8
        )
    )
    assert refused(model).startswith(
        "no known transformer in OPTForCausalLM, whose submodules are model (OPTModel), lm_head (Linear). Looked for: "
    )


def test_the_package_does_not_need_the_library():
    source = Path(dynamics.__file__).parent
    assert not [p for p in source.rglob("*.py") if re.search(r"(import|from) transformers", p.read_text())]


def test_rotation_that_stretches_with_the_sequence_is_put_back():
    _, _, options = CASES["llama"]
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**options | {"max_position_embeddings": 4, "rope_parameters": rope}))
    ids = torch.randint(options["vocab_size"], (1, 12))
    with torch.no_grad():
        fresh = tf.LlamaForCausalLM(model.config)
        fresh.load_state_dict(model.state_dict())
        expected = fresh.eval()(ids).logits
    for _ in range(2):
        take_snapshot(model, Probe([{"input_ids": ids, "labels": ids}], shift_labels=True), measurements="clean")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids).logits, expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_self_repair_leaves_out_padding_on_the_left(attention):
    _, _, options = CASES["gpt2"]
    torch.manual_seed(0)
    model = tf.GPT2LMHeadModel(tf.GPT2Config(**options, attn_implementation=attention)).eval()
    ids = torch.randint(options["vocab_size"], (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # The first token is predicted by padding, so it is no target.
    targets = ids.masked_fill(positions == 0, -100)
    batch = {"input_ids": ids, "labels": targets, "attention_mask": mask}
    padded = Probe([{**batch, "position_ids": positions}], shift_labels=True)
    alone = Probe(
        [{"input_ids": ids[:1, 3:], "labels": ids[:1, 3:]}, {"input_ids": ids[1:], "labels": ids[1:]}],
        shift_labels=True,
    )
    found, expected = (
        take_snapshot(model, p, measurements="self_repair", self_repair_threshold=0.0) for p in (padded, alone)
    )
    heads = [component.kind == "head" for component in found.components]
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    np.testing.assert_array_equal(found["self_repair_rows"][heads], expected["self_repair_rows"][heads])
    np.testing.assert_allclose(
        found["self_repair_interaction"][heads], expected["self_repair_interaction"][heads], rtol=1e-3, atol=1e-6
    )


def test_positions_and_types_reach_the_model():
    _, _, options = CASES["gpt2"]
    torch.manual_seed(0)
    model = tf.GPT2LMHeadModel(tf.GPT2Config(**options)).eval()
    ids = torch.randint(options["vocab_size"], (2, 4))
    given = {"input_ids": ids, "position_ids": torch.tensor([[3, 2, 1, 0], [0, 0, 1, 1]])}
    with torch.no_grad():
        nats = model(**given).logits[:, -1].log_softmax(-1)[:, 2]
        plain = model(ids).logits[:, -1].log_softmax(-1)[:, 2]
    found = attribute_tokens(model, given, target=2)
    np.testing.assert_allclose(found.value, nats.numpy(), rtol=1e-5)
    assert not torch.allclose(nats, plain, rtol=1e-3)
    curves = perturbation_curves(model, found, random_orders=1)
    np.testing.assert_allclose(curves.value, nats.numpy(), rtol=1e-5)
    probe_ = Probe([{**given, "labels": torch.tensor([[-100, -100, -100, 2]] * 2)}])
    np.testing.assert_allclose(take_snapshot(model, probe_, measurements="clean")["loss"], -nats.numpy(), rtol=1e-5)
