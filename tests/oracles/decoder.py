"""A slow forward pass of our decoder, from its raw weights: one example, one head, one query position at a time."""

import math

import torch


def layer_norm(x, gain, bias):
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred**2).sum(-1, keepdim=True) / x.shape[-1]
    return centred / (variance + 1e-5) ** 0.5 * gain + bias


def softmax(x):
    exponential = (x - x.max()).exp()
    return exponential / exponential.sum()


def log_softmax(x):
    shifted = x - x.max()
    return shifted - shifted.exp().sum().log()


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def sinusoid(position, width):
    values = []
    for i in range(width):
        angle = position / 10_000 ** ((i - i % 2) / width)
        values.append(math.sin(angle) if i % 2 == 0 else math.cos(angle))
    return torch.tensor(values, dtype=torch.float64)


def rotate(x, position):
    """Turn each pair (x[2j], x[2j + 1]) by the angle ``position / 10000 ** (2j / width)``."""
    width, out = len(x), []
    for j in range(0, width, 2):
        angle = position / 10_000 ** (j / width)
        cos, sin = math.cos(angle), math.sin(angle)
        out += [x[j] * cos - x[j + 1] * sin, x[j] * sin + x[j + 1] * cos]
    return torch.stack(out)


class DecoderOracle:
    """The decoder in evaluation mode, with a leaf of its own for every weight matrix of every component.

    ``own[label]`` holds a component's weight matrices by name, ``value_out[label]`` the names of those that count as
    "value and output" weights. ``rows[label]`` holds scores and values of each query position of the last run.
    """

    def __init__(self, model):
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.state, self.n_heads, self.positions = state, model.n_heads, model.positions
        self.n_layers, self.d_model = model.n_layers, state["embed.weight"].shape[1]
        width = self.d_model // self.n_heads
        self.own, self.value_out, self.labels, self.rows = {}, {}, [], {}
        for layer in range(self.n_layers):
            for head in range(self.n_heads):
                rows = range(head * width, (head + 1) * width)
                label, path = f"L{layer}H{head}", f"blocks.{layer}.attention"
                self.own[label] = {
                    "query": torch.stack([state[f"{path}.query.weight"][r] for r in rows]),
                    "key": torch.stack([state[f"{path}.key.weight"][r] for r in rows]),
                    "value": torch.stack([state[f"{path}.value.weight"][r] for r in rows]),
                    "output": torch.stack([state[f"{path}.output.weight"][:, r] for r in rows], dim=1),
                }
                self.value_out[label] = ("value", "output")
                self.labels.append(label)
            label, path = f"L{layer}MLP", f"blocks.{layer}.mlp"
            self.own[label] = {"input": state[f"{path}.input.weight"], "output": state[f"{path}.output.weight"]}
            self.value_out[label] = ("output",)
            self.labels.append(label)
        for matrices in self.own.values():
            for matrix in matrices.values():
                matrix.requires_grad_(True)

    def weights(self, label, which):
        names = self.value_out[label] if which == "value_out" else self.own[label]
        return [self.own[label][name] for name in names]

    def _embed(self, ids):
        rows = []
        for position, token in enumerate(ids.tolist()):
            row = self.state["embed.weight"][token]
            if self.positions == "learned":
                row = row + self.state["position_table.weight"][position]
            if self.positions == "sinusoidal":
                row = row + sinusoid(position, self.d_model)
            rows.append(row)
        return torch.stack(rows)

    def _head(self, x, layer, head):
        own, path = self.own[f"L{layer}H{head}"], f"blocks.{layer}.attention"
        width = len(own["query"])
        bias = {
            name: self.state[f"{path}.{name}.bias"][head * width : (head + 1) * width]
            for name in ("query", "key", "value")
        }
        query, key, value = ([own[n] @ row + bias[n] for row in x] for n in ("query", "key", "value"))
        if self.positions == "rotary":
            query = [rotate(row, position) for position, row in enumerate(query)]
            key = [rotate(row, position) for position, row in enumerate(key)]
        out, self.rows[f"L{layer}H{head}"] = [], []
        for t in range(len(x)):
            scores = torch.stack([query[t] @ key[s] / math.sqrt(width) for s in range(t + 1)])
            pattern = softmax(scores)
            self.rows[f"L{layer}H{head}"].append((scores.detach(), torch.stack(value[: t + 1]).detach()))
            out.append(sum(pattern[s] * value[s] for s in range(t + 1)))
        return torch.stack(out)

    def run(self, ids, change=None):
        """Return logits ``(positions, vocabulary)`` and every component's output for one example's tokens.

        ``change[label]`` maps a component's output ``(positions, width)`` to what takes its place.
        """
        change, outputs = change or {}, {}

        def pass_on(label, z):
            outputs[label] = change[label](z) if label in change else z
            return outputs[label]

        x = self._embed(ids)
        for layer in range(self.n_layers):
            path = f"blocks.{layer}"
            normed = layer_norm(
                x, self.state[f"{path}.attention_norm.weight"], self.state[f"{path}.attention_norm.bias"]
            )
            update = self.state[f"{path}.attention.output.bias"]
            for head in range(self.n_heads):
                label = f"L{layer}H{head}"
                update = update + pass_on(label, self._head(normed, layer, head)) @ self.own[label]["output"].T
            x = x + update
            normed = layer_norm(x, self.state[f"{path}.mlp_norm.weight"], self.state[f"{path}.mlp_norm.bias"])
            label = f"L{layer}MLP"
            own = self.own[label]
            hidden = gelu(normed @ own["input"].T + self.state[f"{path}.mlp.input.bias"])
            x = x + pass_on(label, hidden @ own["output"].T + self.state[f"{path}.mlp.output.bias"])
        x = layer_norm(x, self.state["final_norm.weight"], self.state["final_norm.bias"])
        return x @ self.state["unembed.weight"].T, outputs
