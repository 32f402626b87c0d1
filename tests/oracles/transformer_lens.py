"""Cuts the native model of TransformerLens into the parts of a `FamilyOracle`.

``state`` maps the bridge's names, without ``_original_component``, to parameters; ``config`` is the bridge's.
"""

import tests.oracles.gim as gim
from tests.oracles.families import ACTIVATIONS, FamilyOracle, layer_norm, rms_norm


def native(state, config, rules=gim.OFF):
    """Cut a model whose attention has rows of heads, shared in groups, and whose MLP may be gated."""
    width, layers = config.d_head, []
    size = config.n_heads // (config.n_key_value_heads or config.n_heads)

    def norm(path):
        if config.normalization_type == "RMS":
            return rms_norm(state[f"{path}.weight"], config.eps)
        return layer_norm(state[f"{path}.weight"], state[f"{path}.bias"], config.eps)

    for index in range(config.n_layers):
        at = f"blocks.{index}"
        heads, shared = [], {}
        for h in range(config.n_heads):
            rows = slice(h * width, (h + 1) * width)
            if h % size == 0:
                group = slice(h // size * width, (h // size + 1) * width)
                shared = {
                    name: state[f"{at}.attn.{letter}.{kind}"][group].clone()
                    for letter, word in (("k", "key"), ("v", "value"))
                    for name, kind in ((word, "weight"), (f"{word}_bias", "bias"))
                }
            heads.append(
                {
                    **shared,
                    "query": state[f"{at}.attn.q.weight"][rows].clone(),
                    "query_bias": state[f"{at}.attn.q.bias"][rows],
                    "output": state[f"{at}.attn.o.weight"][:, rows].clone(),
                }
            )
        names = {"fc_in": "input", "fc_out": "output", "gate": "gate", "in": "input", "out": "output"}
        mlp = {}
        for name, word in names.items():
            if f"{at}.mlp.{name}.weight" in state:
                mlp[word] = state[f"{at}.mlp.{name}.weight"].clone()
            if f"{at}.mlp.{name}.bias" in state:
                mlp[f"{word}_bias"] = state[f"{at}.mlp.{name}.bias"]
        layers.append(
            {
                "heads": heads,
                "output_bias": state[f"{at}.attn.o.bias"],
                "mlp": mlp,
                "attention_norm": norm(f"{at}.ln1"),
                "mlp_norm": norm(f"{at}.ln2"),
            }
        )
    return FamilyOracle(
        layers,
        state["embed.weight"],
        state["unembed.weight"],
        norm("ln_final"),
        positions=state["pos_embed.weight"],
        activation=ACTIVATIONS[config.act_fn],
        rules=rules,
    )
