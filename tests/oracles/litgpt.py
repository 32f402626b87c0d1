"""Cuts litgpt's `GPT` into the parts of a `FamilyOracle`; only numbers and names are read from its ``config``."""

import tests.oracles.gim as gim
from tests.oracles.families import ACTIVATIONS, FamilyOracle, layer_norm, rms_norm


def gpt(state, config, rules=gim.OFF):
    """Cut the model: the rows of qkv are all queries, then all keys, then all values; heads share in groups."""
    width, groups, layers = config.head_size, config.n_query_groups, []

    def norm(path):
        if config.norm_class_name == "RMSNorm":
            offset = float(config.name.lower().startswith("gemma"))
            return rms_norm(state[f"{path}.weight"], config.norm_eps, offset)
        return layer_norm(state[f"{path}.weight"], state[f"{path}.bias"], config.norm_eps)

    def add(parts, word, path, rows=slice(None)):
        parts[word] = state[f"{path}.weight"][rows].clone()
        if f"{path}.bias" in state:
            parts[f"{word}_bias"] = state[f"{path}.bias"][rows]

    for index in range(config.n_layer):
        at = f"transformer.h.{index}"
        shared = []
        for group in range(groups):
            both = {}
            for word, before in (("key", config.n_head), ("value", config.n_head + groups)):
                first = (before + group) * width
                add(both, word, f"{at}.attn.qkv", slice(first, first + width))
            shared += [both] * (config.n_head // groups)
        heads = []
        for h, both in enumerate(shared):
            rows, head = slice(h * width, (h + 1) * width), dict(both)
            add(head, "query", f"{at}.attn.qkv", rows)
            head["output"] = state[f"{at}.attn.proj.weight"][:, rows].clone()
            heads.append(head)
        mlp = {}
        gated = f"{at}.mlp.fc_1.weight" in state
        for word, name in (
            (("gate", "fc_1"), ("input", "fc_2"), ("output", "proj"))
            if gated
            else (
                ("input", "fc"),
                ("output", "proj"),
            )
        ):
            add(mlp, word, f"{at}.mlp.{name}")
        layer = {"heads": heads, "mlp": mlp, "attention_norm": norm(f"{at}.norm_1"), "theta": config.rope_base}
        layer["mlp_norm"] = norm(f"{at}.norm_1" if config.shared_attention_norm else f"{at}.norm_2")
        if f"{at}.attn.proj.bias" in state:
            layer["output_bias"] = state[f"{at}.attn.proj.bias"]
        if config.post_attention_norm:
            layer["after_attention"] = norm(f"{at}.post_attention_norm")
        if config.post_mlp_norm:
            layer["after_mlp"] = norm(f"{at}.post_mlp_norm")
        layers.append(layer)
    act = {"LLaMAMLP": "silu", "GptNeoxMLP": "gelu", "GemmaMLP": "gelu_new"}[config.mlp_class_name]
    return FamilyOracle(
        layers,
        state["transformer.wte.weight"],
        state["lm_head.weight"],
        norm("transformer.ln_f"),
        activation=ACTIVATIONS["gelu_new" if config.gelu_approximate == "tanh" else act],
        rotated=config.rope_n_elem,
        scale=None if config.attention_scores_scalar is None else config.attention_scores_scalar**-0.5,
        score_cap=config.attention_logit_softcapping,
        logit_cap=config.final_logit_softcapping,
        embedding_scale=config.n_embd**0.5 if config.scale_embeddings else 1.0,
        parallel=config.parallel_residual,
        rules=rules,
    )
