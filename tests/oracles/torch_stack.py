"""PyTorch's encoder and decoder layers written out, one head at a time, from the state dict of a network around them.

The interface is that of `DecoderOracle`. With ``rules`` the backward pass follows GIM.
"""

import torch

import tests.oracles.gim as gim
from tests.oracles.families import ACTIVATIONS

NAMES = ("query", "key", "value")


class StackOracle:
    """A network with ``embed``, perhaps ``source`` (the embedding of the memory), a ``stack`` and ``unembed``.

    Args:
        state: Its state dict.
        n_heads: Heads of each attention.
        layers: The parts in the order they run: pairs of a path (``"stack.layers.0"``) and a kind, ``"encoder"`` (reads
            the embedding, or with a decoder after it the source), or ``"decoder"``.
        norm_first: Whether norms come before the sublayers.
        activation: Name of the MLP's.
        causal: Whether positions see only those before them; the source and the memory are seen whole.
        norms: Paths of the norms at the end of the encoder and of the decoder, or ``None``.
        rules: Of the backward pass.
    """

    def __init__(self, state, n_heads, layers, norm_first, activation, causal=True, norms=(None, None), rules=gim.OFF):
        self.state, self.n_heads, self.layers, self.norm_first = state, n_heads, layers, norm_first
        self.activation, self.causal, self.norms, self.rules = ACTIVATIONS[activation], causal, norms, rules
        self.both = {kind for _, kind in layers} == {"encoder", "decoder"}
        self.own, self.value_out, self.labels, self.rows = {}, {}, [], {}
        for index, (path, kind) in enumerate(layers):
            blocks = ["self_attn"] if kind == "encoder" else ["self_attn", "multihead_attn"]
            for place, block in enumerate(blocks):
                for head in range(n_heads):
                    matrices = self._cut(f"{path}.{block}", head)
                    self._add(f"L{index}H{place * n_heads + head}", matrices, ("value", "output"))
            ends = {"input": state[f"{path}.linear1.weight"], "output": state[f"{path}.linear2.weight"]}
            self._add(f"L{index}MLP", {name: tensor.clone() for name, tensor in ends.items()}, ("output",))

    def _cut(self, path, head):
        output = self.state[f"{path}.out_proj.weight"]
        d, width = len(output), len(output) // self.n_heads
        rows = [head * width + i for i in range(width)]
        matrices = {"output": output[:, rows].clone()}
        for place, name in enumerate(NAMES):
            fused = self.state.get(f"{path}.in_proj_weight")
            single = self.state.get(f"{path}.{name[0]}_proj_weight")
            own = fused[[place * d + row for row in rows]] if single is None else single[rows]
            matrices[name] = own.clone()
        return {name: matrices[name] for name in (*NAMES, "output")}

    def _add(self, label, matrices, value_out):
        for matrix in matrices.values():
            matrix.requires_grad_(True)
        self.own[label], self.value_out[label] = matrices, value_out
        self.labels.append(label)

    def weights(self, label, which):
        names = self.value_out[label] if which == "value_out" else self.own[label]
        return [self.own[label][name] for name in names]

    def _norm(self, x, path):
        weight, bias = self.state[f"{path}.weight"], self.state.get(f"{path}.bias")
        return gim.layer_norm(x, weight, bias, 1e-5, self.rules)

    def _attention(self, x, read, path, layer, first, causal, pass_on):
        update = self.state.get(f"{path}.out_proj.bias", 0.0)
        for head in range(self.n_heads):
            label = f"L{layer}H{first + head}"
            own, width = self.own[label], len(self.own[label]["query"])
            biases = self.state.get(f"{path}.in_proj_bias", torch.zeros(3 * width * self.n_heads, dtype=x.dtype))
            biases = dict(zip(NAMES, biases.chunk(3), strict=True))
            query, key, value = (
                (rows @ own[name].T + biases[name][head * width : (head + 1) * width])[None]
                for rows, name in ((x, "query"), (read, "key"), (read, "value"))
            )
            masked = gim.causal(len(x)) if causal else None
            rows = self.rows[label] = []
            z = pass_on(label, gim.attention(query, key, value, self.rules, masked=masked, rows=rows)[0])
            update = update + z @ own["output"].T
        return update

    def _mlp(self, x, path, layer, pass_on):
        own = self.own[f"L{layer}MLP"]
        hidden = self.activation(x @ own["input"].T + self.state.get(f"{path}.linear1.bias", 0.0))
        return pass_on(f"L{layer}MLP", hidden @ own["output"].T + self.state.get(f"{path}.linear2.bias", 0.0))

    def _layer(self, x, memory, path, kind, layer, causal, pass_on):
        sublayers = [lambda y: self._attention(y, y, f"{path}.self_attn", layer, 0, causal, pass_on)]
        if kind == "decoder":
            cross = f"{path}.multihead_attn"
            sublayers.append(lambda y: self._attention(y, memory, cross, layer, self.n_heads, False, pass_on))
        sublayers.append(lambda y: self._mlp(y, path, layer, pass_on))
        for number, sublayer in enumerate(sublayers, start=1):
            norm = f"{path}.norm{number}"
            x = x + sublayer(self._norm(x, norm)) if self.norm_first else self._norm(x + sublayer(x), norm)
        return x

    def run(self, ids, change=None):
        """Return logits ``(positions, vocabulary)`` and every component's output for one example's tokens.

        ``change[label]`` maps a component's output ``(positions, width)`` to what takes its place.
        """
        change, outputs = change or {}, {}

        def pass_on(label, z):
            outputs[label] = change[label](z) if label in change else z
            return outputs[label]

        def through(x, kind, causal, norm):
            for layer, (path, of) in enumerate(self.layers):
                if of == kind:
                    x = self._layer(x, memory, path, kind, layer, causal, pass_on)
            return x if norm is None else self._norm(x, norm)

        x, memory = self.state["embed.weight"][ids], None
        if "source.weight" in self.state:
            # What is read across: the tokens backwards, and the first once more, so that the lengths differ.
            memory = self.state["source.weight"][torch.cat([ids.flip(0), ids[:1]])]
        if self.both:
            memory = through(memory, "encoder", False, self.norms[0])
        kind = "decoder" if memory is not None else "encoder"
        x = through(x, kind, self.causal, self.norms[1])
        return x @ self.state["unembed.weight"].T, outputs
