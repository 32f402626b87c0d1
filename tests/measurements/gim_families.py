"""Tiny random models of published families, from configurations; nothing is downloaded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dynamics.model import Transformer
from tests.oracles import gim as oracle

VOCABULARY = 13
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
_NAMES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GROUPED = {**_NAMES, **_IDS, "num_key_value_heads": 2, "max_position_embeddings": 32}
_GEMMA = {**_GROUPED, "head_dim": 4, "query_pre_attn_scalar": 4}

# class, configuration class, options
CAUSAL = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {**_IDS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GEMMA, "attn_logit_softcapping": None}),
    "Gemma 2, capped scores": ("Gemma2ForCausalLM", "Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 2.0}),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA),
    "GPT-NeoX": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**_NAMES, **_IDS, "max_position_embeddings": 32},
    ),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2},
    ),
    "Qwen3-MoE": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            **_GROUPED,
            "head_dim": 4,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 1,
        },
    ),
    "OLMoE": ("OlmoeForCausalLM", "OlmoeConfig", {**_GROUPED, "num_experts": 3, "num_experts_per_tok": 2}),
}

MIXTURES = ("Mixtral", "Qwen3-MoE", "OLMoE")


def random_weights(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter random numbers large enough that attention attends and gates open; evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # Gemma's weights are distances from 1, those of other norms are scales.
            scale = parameter.ndim == 1 and name.endswith("weight") and "Gemma" not in type(module).__name__
            numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(float(scale) + 0.3 * numbers)
    return module.eval()


def hugging_face(family: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    """Return a causal language model of a family with ``sdpa`` or ``eager`` attention.

    ``options`` are added to the configuration; ``experts`` says how experts are computed (``eager``, ``batched_mm``;
    ``grouped_mm`` knows no float64).
    """
    import transformers

    build, configure, settings = CAUSAL[family]
    experts = options.pop("experts", "eager" if dtype == torch.float64 else "grouped_mm")
    settings = {**settings, **options}
    config = getattr(transformers, configure)(**settings)
    config._attn_implementation = "eager"
    if family in MIXTURES:
        config._experts_implementation = experts
    model = random_weights(getattr(transformers, build)(config)).to(dtype)
    # Gemma 2 is built only with eager attention: its fused one would ignore the cap, if there were one.
    model.config._attn_implementation = attention
    return model


def score(model: nn.Module, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    """Return the log-probability that a model gives its own inputs, shifted by one; sum over the batch."""
    output = model(tokens)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return -F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


def embedding_of(model: nn.Module) -> nn.Module:
    """Return the embedding of tokens: the first one with a row for each."""
    return next(m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == VOCABULARY)


def at_tokens(model: nn.Module, context: AbstractContextManager[Any] | None = None) -> torch.Tensor:
    """Return the gradient of the score at the embedded tokens; the forward pass runs in the context."""
    taps: list[torch.Tensor] = []
    handle = embedding_of(model).register_forward_hook(lambda module, args, output: taps.append(output))
    try:
        with nullcontext() if context is None else context:
            value = score(model)
    finally:
        handle.remove()
    return torch.autograd.grad(value, taps[0])[0]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative difference, ``||found - expected|| / ||expected||``."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def decoder(dtype: torch.dtype = torch.float64) -> Transformer:
    """Return our decoder, with random weights."""
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_ff": 24, "vocab_size": VOCABULARY, "max_length": 16}
    return random_weights(Transformer(**sizes)).to(dtype)


def decoder_by_hand(model: Transformer, rules: oracle.Rules) -> torch.Tensor:
    """Return the decoder's `at_tokens` under rules written out by hand."""
    x = model.embed.weight.detach()[TOKENS].requires_grad_()
    log_p = torch.log_softmax(oracle.decoder(model, TOKENS, rules, embedded=x), -1)[:, :-1]
    return torch.autograd.grad(log_p.gather(-1, TOKENS[:, 1:, None]).sum(), x)[0]


class MultiheadDecoder(nn.Module):
    """Our decoder's weights in ``nn.MultiheadAttention`` (``how``: fused or its eager path), or with an eager softmax.

    Args:
        model: A `dynamics.model.Transformer` without positions.
        how: ``fused``, ``weights`` (``need_weights=True``: softmax between two products), or ``eager``.
    """

    def __init__(self, model: nn.Module, how: str) -> None:
        super().__init__()
        self.model, self.how = model, how
        self.attentions = nn.ModuleList()
        for block in model.blocks:
            a = block.attention
            inner = nn.MultiheadAttention(model.d_model, model.n_heads, batch_first=True).to(a.query.weight)
            with torch.no_grad():
                inner.in_proj_weight.copy_(torch.cat([a.query.weight, a.key.weight, a.value.weight]))
                inner.in_proj_bias.copy_(torch.cat([a.query.bias, a.key.bias, a.value.bias]))
            inner.out_proj = a.output
            self.attentions.append(inner.eval())

    def _attend(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        hidden = oracle.causal(x.shape[1])
        if self.how != "eager":
            options = {"attn_mask": hidden, "need_weights": self.how == "weights"}
            return self.attentions[layer](x, x, x, **options)[0]
        a = self.model.blocks[layer].attention
        q, k, v = (p(x).unflatten(-1, (a.n_heads, -1)).transpose(1, 2) for p in (a.query, a.key, a.value))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        return a.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.model.embed(tokens)
        for layer, block in enumerate(self.model.blocks):
            x = x + self._attend(layer, block.attention_norm(x))
            x = x + block.mlp(block.mlp_norm(x))
        return self.model.unembed(self.model.final_norm(x))


Part = tuple[nn.Module, tuple[str, ...], tuple[str, ...]]


def mixture(family: str, dtype: torch.dtype = torch.float64, **options) -> Part:
    """Return a mixture of experts, with the names of its weights before the gate's product, and of the others."""
    part = hugging_face(family, dtype=dtype, **options).model.layers[0].mlp
    return part, ("experts.gate_up_proj",), ("experts.down_proj", "gate.weight")


def gated(family: str) -> Part:
    """Return a gated MLP of a family that is no causal language model, with the same names."""
    from transformers import ModernBertConfig, T5Config
    from transformers.models.modernbert.modeling_modernbert import ModernBertMLP
    from transformers.models.t5.modeling_t5 import T5DenseGatedActDense

    if family == "T5, gated":
        part = T5DenseGatedActDense(T5Config(d_model=16, d_ff=24, feed_forward_proj="gated-gelu"))
        names = ("wi_0.weight", "wi_1.weight"), ("wo.weight",)
    else:
        part = ModernBertMLP(ModernBertConfig(hidden_size=16, intermediate_size=24))
        names = ("Wi.weight",), ("Wo.weight",)
    return random_weights(part).double(), *names


def bridge(family: str) -> nn.Module:
    """Return TransformerLens' view of a Hugging Face model."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    model = hugging_face(family)
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
