"""Cuts the state dicts of Hugging Face's models into the parts of a `FamilyOracle`, by the layouts that they document.

``config`` is the model's; only numbers and names are read from it.
"""

import tests.oracles.gim as gim
from tests.oracles.families import ACTIVATIONS, FamilyOracle, layer_norm, rms_norm


def part(tensor, *ranges):
    """Return a copy of a block, of its own."""
    return tensor[tuple(slice(*pair) for pair in ranges)].detach().clone()


def gpt2(state, config, rules=gim.OFF):
    """Cut GPT-2: weights are (in, out); the columns of c_attn are all queries, all keys, all values."""
    width, d = config.n_embd // config.n_head, config.n_embd
    everything, layers = (0, d), []
    for index in range(config.n_layer):
        at = f"transformer.h.{index}"
        fused, bias = state[f"{at}.attn.c_attn.weight"], state[f"{at}.attn.c_attn.bias"]
        heads = []
        for h in range(config.n_head):
            head = {"output": part(state[f"{at}.attn.c_proj.weight"], (h * width, h * width + width), everything).T}
            for offset, name in ((0, "query"), (d, "key"), (2 * d, "value")):
                columns = (offset + h * width, offset + h * width + width)
                head[name], head[f"{name}_bias"] = part(fused, everything, columns).T, part(bias, columns)
            heads.append({name: tensor.clone() for name, tensor in head.items()})
        layers.append(
            {
                "heads": heads,
                "output_bias": state[f"{at}.attn.c_proj.bias"],
                "mlp": {
                    "input": state[f"{at}.mlp.c_fc.weight"].T.clone(),
                    "input_bias": state[f"{at}.mlp.c_fc.bias"],
                    "output": state[f"{at}.mlp.c_proj.weight"].T.clone(),
                    "output_bias": state[f"{at}.mlp.c_proj.bias"],
                },
                "attention_norm": _layer_norm(state, f"{at}.ln_1", config.layer_norm_epsilon),
                "mlp_norm": _layer_norm(state, f"{at}.ln_2", config.layer_norm_epsilon),
            }
        )
    return FamilyOracle(
        layers,
        state["transformer.wte.weight"],
        state["lm_head.weight"],
        _layer_norm(state, "transformer.ln_f", config.layer_norm_epsilon),
        positions=state["transformer.wpe.weight"],
        activation=ACTIVATIONS[config.activation_function],
        rules=rules,
    )


def gpt_neox(state, config, rules=gim.OFF):
    """Cut GPT-NeoX: the rows of query_key_value are query, key and value of head 0, then those of head 1, …."""
    width, d = config.hidden_size // config.num_attention_heads, config.hidden_size
    everything, layers = (0, d), []
    for index in range(config.num_hidden_layers):
        at = f"gpt_neox.layers.{index}"
        fused, bias = (state[f"{at}.attention.query_key_value.{name}"] for name in ("weight", "bias"))
        heads = []
        for h in range(config.num_attention_heads):
            head = {"output": part(state[f"{at}.attention.dense.weight"], everything, (h * width, h * width + width))}
            for place, name in enumerate(("query", "key", "value")):
                rows = ((3 * h + place) * width, (3 * h + place + 1) * width)
                head[name], head[f"{name}_bias"] = part(fused, rows, everything), part(bias, rows)
            heads.append(head)
        layers.append(
            {
                "heads": heads,
                "output_bias": state[f"{at}.attention.dense.bias"],
                "mlp": {
                    "input": state[f"{at}.mlp.dense_h_to_4h.weight"].clone(),
                    "input_bias": state[f"{at}.mlp.dense_h_to_4h.bias"],
                    "output": state[f"{at}.mlp.dense_4h_to_h.weight"].clone(),
                    "output_bias": state[f"{at}.mlp.dense_4h_to_h.bias"],
                },
                "attention_norm": _layer_norm(state, f"{at}.input_layernorm", config.layer_norm_eps),
                "mlp_norm": _layer_norm(state, f"{at}.post_attention_layernorm", config.layer_norm_eps),
                "theta": config.rope_parameters["rope_theta"],
            }
        )
    return FamilyOracle(
        layers,
        state["gpt_neox.embed_in.weight"],
        state["lm_head.weight"],
        _layer_norm(state, "gpt_neox.final_layer_norm", config.layer_norm_eps),
        activation=ACTIVATIONS[config.hidden_act],
        rotated=int(width * config.rope_parameters["partial_rotary_factor"]),
        parallel=config.use_parallel_residual,
        rules=rules,
    )


def llama(state, config, rules=gim.OFF):
    """Cut Llama, Mistral, Qwen2, Qwen3, Gemma 2 and Gemma 3: rows of q, k, v; columns of o; heads in groups."""
    gemma = config.model_type.startswith("gemma")
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    everything, layers = (0, config.hidden_size), []
    # The first heads share the first key and value head, and so on.
    size = config.num_attention_heads // config.num_key_value_heads

    def norm(path):
        return rms_norm(state[f"{path}.weight"], config.rms_norm_eps, offset=1.0 if gemma else 0.0)

    for index in range(config.num_hidden_layers):
        at = f"model.layers.{index}"
        shared = []
        for group in range(config.num_key_value_heads):
            rows, both = (group * width, group * width + width), {}
            for letter, name in (("k", "key"), ("v", "value")):
                both[name] = part(state[f"{at}.self_attn.{letter}_proj.weight"], rows, everything)
                if f"{at}.self_attn.{letter}_proj.bias" in state:
                    both[f"{name}_bias"] = part(state[f"{at}.self_attn.{letter}_proj.bias"], rows)
            shared += [both] * size
        heads = []
        for h, both in enumerate(shared):
            rows = (h * width, h * width + width)
            query = {"query": part(state[f"{at}.self_attn.q_proj.weight"], rows, everything)}
            if f"{at}.self_attn.q_proj.bias" in state:
                query["query_bias"] = part(state[f"{at}.self_attn.q_proj.bias"], rows)
            heads.append({**both, **query, "output": part(state[f"{at}.self_attn.o_proj.weight"], everything, rows)})
        mlp = {}
        for letter, name in (("gate", "gate"), ("up", "input"), ("down", "output")):
            mlp[name] = state[f"{at}.mlp.{letter}_proj.weight"].clone()
            if f"{at}.mlp.{letter}_proj.bias" in state:
                mlp[f"{name}_bias"] = state[f"{at}.mlp.{letter}_proj.bias"]
        layer = {"heads": heads, "mlp": mlp, "attention_norm": norm(f"{at}.input_layernorm")}
        if f"{at}.self_attn.o_proj.bias" in state:
            layer["output_bias"] = state[f"{at}.self_attn.o_proj.bias"]
        if f"{at}.pre_feedforward_layernorm.weight" in state:
            layer["after_attention"] = norm(f"{at}.post_attention_layernorm")
            layer["mlp_norm"] = norm(f"{at}.pre_feedforward_layernorm")
            layer["after_mlp"] = norm(f"{at}.post_feedforward_layernorm")
        else:
            layer["mlp_norm"] = norm(f"{at}.post_attention_layernorm")
        if f"{at}.self_attn.q_norm.weight" in state:
            layer["query_norm"], layer["key_norm"] = norm(f"{at}.self_attn.q_norm"), norm(f"{at}.self_attn.k_norm")
        kind = "sliding_attention" if config.model_type == "mistral" else "full_attention"
        kind = config.layer_types[index] if getattr(config, "layer_types", None) else kind
        if kind == "sliding_attention":
            layer["window"] = config.sliding_window
        layer["theta"] = config.rope_parameters.get(kind, config.rope_parameters)["rope_theta"]
        layers.append(layer)
    return FamilyOracle(
        layers,
        state["model.embed_tokens.weight"],
        state["lm_head.weight"],
        norm("model.norm"),
        activation=ACTIVATIONS[config.hidden_activation if gemma else config.hidden_act],
        rotated=width,
        scale=config.query_pre_attn_scalar**-0.5 if gemma else None,
        score_cap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,
        logit_cap=config.final_logit_softcapping if gemma else None,
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        rules=rules,
    )


def _layer_norm(state, path, eps):
    return layer_norm(state[f"{path}.weight"], state[f"{path}.bias"], eps)
