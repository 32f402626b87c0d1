"""One explicit decoder with the options of many families, from weights that were cut by hand, one head at a time.

The interface is that of `DecoderOracle`: ``labels``, ``weights(label, which)``, ``run(ids, change)``. With ``rules``
the backward pass follows GIM, so `measurements.attributions` of such an oracle are GIM's.
"""

import math

import torch

import tests.oracles.gim as gim


def silu(x):
    return x / (1 + torch.exp(-x))


def gelu(x):
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "relu": torch.relu}


def layer_norm(weight, bias, eps):
    return lambda x, rules: gim.layer_norm(x, weight, bias, eps, rules)


def rms_norm(weight, eps, offset=0.0):
    return lambda x, rules: gim.rms_norm(x, weight + offset, eps, rules)


def no_norm(x, rules):
    return x


def turn(x, width, theta):
    """Rotate the first ``width`` entries of each row, ``x[j]`` with ``x[j + width / 2]``, by position and pair."""
    pairs = width // 2
    angle = torch.tensor([[t / theta ** (2 * j / width) for j in range(pairs)] for t in range(len(x))])
    angle = angle.to(x)
    one, two, rest = x[:, :pairs], x[:, pairs:width], x[:, width:]
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin(), rest], -1)


def capped(x, cap):
    return x if cap is None else cap * torch.tanh(x / cap)


class FamilyOracle:
    """A decoder out of parts.

    Args:
        layers: One dictionary each. ``heads``: a list of dictionaries with the matrices ``query``, ``key``, ``value``
            ``(width, d_model)`` and ``output`` ``(d_model, width)``, and vectors ``query_bias``, … or nothing; heads
            that share a key and value head hold the same tensors. ``mlp``: ``input`` and perhaps ``gate`` ``(d_ff,
            d_model)``, ``output`` ``(d_model, d_ff)``, and ``input_bias``, …. ``output_bias`` of the attention.
            ``attention_norm`` and ``mlp_norm``, before a sublayer; ``query_norm``, ``key_norm``, of each head;
            ``after_attention``, ``after_mlp``, between a sublayer and the residual stream. ``theta`` of the rotation;
            ``window``: how many positions a query sees, itself included.
        embedding: ``(vocabulary, d_model)``.
        unembedding: ``(vocabulary, d_model)``.
        final_norm: The norm before it.
        positions: Learned table, or ``None``.
        activation: Of the MLP, on the gate if there is one.
        rotated: How many entries of queries and keys are rotated; 0: none.
        scale: Of the scores; default: one over the root of the head's width.
        score_cap: Soft cap of the scores, or ``None``.
        logit_cap: Soft cap of the logits, or ``None``.
        embedding_scale: Factor of the embeddings.
        parallel: Attention and MLP both read the residual stream as it enters the layer.
        rules: Of the backward pass.
    """

    def __init__(
        self,
        layers,
        embedding,
        unembedding,
        final_norm,
        positions=None,
        activation=gelu,
        rotated=0,
        scale=None,
        score_cap=None,
        logit_cap=None,
        embedding_scale=1.0,
        parallel=False,
        rules=gim.OFF,
    ):
        self.layers, self.embedding, self.unembedding, self.final_norm = layers, embedding, unembedding, final_norm
        self.positions, self.activation, self.rotated, self.scale = positions, activation, rotated, scale
        self.score_cap, self.logit_cap, self.embedding_scale = score_cap, logit_cap, embedding_scale
        self.parallel, self.rules = parallel, rules
        self.own, self.value_out, self.labels, self.rows = {}, {}, [], {}
        for index, layer in enumerate(layers):
            for number, head in enumerate(layer["heads"]):
                names = ("query", "key", "value", "output")
                self._add(f"L{index}H{number}", {name: head[name] for name in names}, ("value", "output"))
            matrices = {name: layer["mlp"][name] for name in ("gate", "input", "output") if name in layer["mlp"]}
            self._add(f"L{index}MLP", matrices, ("output",))

    def _add(self, label, matrices, value_out):
        for matrix in matrices.values():
            matrix.requires_grad_(True)
        self.own[label], self.value_out[label] = matrices, value_out
        self.labels.append(label)

    def weights(self, label, which):
        names = self.value_out[label] if which == "value_out" else self.own[label]
        return [self.own[label][name] for name in names]

    def _head(self, x, layer, head, label):
        query, key, value = (x @ head[name].T + head.get(f"{name}_bias", 0.0) for name in ("query", "key", "value"))
        query = layer.get("query_norm", no_norm)(query, self.rules)
        key = layer.get("key_norm", no_norm)(key, self.rules)
        if self.rotated:
            query, key = (turn(rows, self.rotated, layer["theta"]) for rows in (query, key))
        before = torch.arange(len(x))[:, None] - torch.arange(len(x))[None]
        masked = (before < 0) | (before >= layer.get("window", len(x)))
        one = (rows[None] for rows in (query, key, value))
        rows = self.rows[label] = []
        options = {"masked": masked, "scale": self.scale, "softcap": self.score_cap, "rows": rows}
        return gim.attention(*one, self.rules, **options)[0]

    def _mlp(self, x, mlp):
        hidden = x @ mlp["input"].T + mlp.get("input_bias", 0.0)
        if "gate" in mlp:
            gate = self.activation(x @ mlp["gate"].T + mlp.get("gate_bias", 0.0))
            hidden = gim.gated(gate, hidden, self.rules)
        else:
            hidden = self.activation(hidden)
        return hidden @ mlp["output"].T + mlp.get("output_bias", 0.0)

    def run(self, ids, change=None):
        """Return logits ``(positions, vocabulary)`` and every component's output for one example's tokens.

        ``change[label]`` maps a component's output ``(positions, width)`` to what takes its place.
        """
        change, outputs = change or {}, {}

        def pass_on(label, z):
            outputs[label] = change[label](z) if label in change else z
            return outputs[label]

        x = self.embedding[ids] * self.embedding_scale
        if self.positions is not None:
            x = x + self.positions[: len(ids)]
        for index, layer in enumerate(self.layers):
            entering = x
            normed, update = layer["attention_norm"](x, self.rules), layer.get("output_bias", 0.0)
            for number, head in enumerate(layer["heads"]):
                label = f"L{index}H{number}"
                z = pass_on(label, self._head(normed, layer, head, label))
                update = update + z @ head["output"].T
            x = x + layer.get("after_attention", no_norm)(update, self.rules)
            normed = layer["mlp_norm"](entering if self.parallel else x, self.rules)
            z = pass_on(f"L{index}MLP", self._mlp(normed, layer["mlp"]))
            x = x + layer.get("after_mlp", no_norm)(z, self.rules)
        logits = self.final_norm(x, self.rules) @ self.unembedding.T
        return capped(logits, self.logit_cap), outputs
