"""Slow references for every measurement, on top of a `DecoderOracle`; one example at a time."""

import numpy as np
import torch
from scipy.integrate import simpson
from scipy.special import roots_legendre

from tests.oracles.decoder import log_softmax


def examples(batches):
    for batch in batches:
        yield from zip(batch["input_ids"], batch["labels"], strict=True)


def score(oracle, ids, labels, change=None):
    """Return loss and exact match of one example."""
    logits, _ = oracle.run(ids, change)
    nats, match = [], True
    for position, label in enumerate(labels.tolist()):
        if label != -100:
            nats.append(-log_softmax(logits[position])[label])
            match = match and max(range(logits.shape[1]), key=lambda v, p=position: logits[p, v].item()) == label
    return sum(nats) / len(nats), match


def scores(oracle, batches, change=None):
    """Return losses and exact matches, ``(examples,)`` each."""
    with torch.no_grad():
        pairs = [score(oracle, ids, labels, change) for ids, labels in examples(batches)]
    return torch.stack([loss for loss, _ in pairs]).numpy(), [match for _, match in pairs]


def mean_outputs(oracle, batches):
    """Return each component's output averaged over all positions of all examples, by label."""
    with torch.no_grad():
        outputs = [oracle.run(ids)[1] for ids, _ in examples(batches)]
    return {
        label: sum(z[label].sum(0) for z in outputs) / sum(len(z[label]) for z in outputs) for label in oracle.labels
    }


def constant(value):
    """Return a change that puts ``value`` in place of a component's output at every position."""
    return lambda z: torch.stack([value] * len(z))


def baseline_constants(oracle, batches, baseline):
    means = mean_outputs(oracle, batches)
    return means if baseline == "mean" else {label: torch.zeros_like(mean) for label, mean in means.items()}


def ablated_scores(oracle, batches, baseline, ablated):
    """Return losses and exact matches with a set of components ablated together."""
    constants = baseline_constants(oracle, batches, baseline)
    return scores(oracle, batches, {label: constant(constants[label]) for label in ablated})


def kept_scores(oracle, batches, order):
    """Return losses and exact matches for k = 0 .. n, with all but the first k labels of an order mean-ablated."""
    return [ablated_scores(oracle, batches, "mean", order[k:]) for k in range(len(order) + 1)]


def gradient_norms(oracle, batches, weights):
    """Return ``||grad L_b|| / sqrt(number of weights)`` by component and batch, by autograd on the oracle's leaves."""
    rows = []
    for label in oracle.labels:
        leaves, row = oracle.weights(label, weights), []
        for batch in batches:
            losses = [score(oracle, ids, labels)[0] for ids, labels in examples([batch])]
            gradients = torch.autograd.grad(sum(losses) / len(losses), leaves)
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            row.append(((flat**2).sum() / len(flat)) ** 0.5)
        rows.append(torch.stack(row))
    return torch.stack(rows).numpy()


def batch_loss(oracle, batch):
    with torch.no_grad():
        losses = [score(oracle, ids, labels)[0] for ids, labels in examples([batch])]
    return (sum(losses) / len(losses)).item()


def gradient_norm_by_differences(oracle, batch, label, weights, step=1e-5):
    """Return one entry of `gradient_norms` from central differences, weight by weight."""
    total, count = 0.0, 0
    for leaf in oracle.weights(label, weights):
        flat = leaf.detach().view(-1)
        for i in range(len(flat)):
            kept = flat[i].item()
            flat[i] = kept + step
            above = batch_loss(oracle, batch)
            flat[i] = kept - step
            below = batch_loss(oracle, batch)
            flat[i] = kept
            total, count = total + ((above - below) / (2 * step)) ** 2, count + 1
    return (total / count) ** 0.5


def output_and_gradient(oracle, ids, labels, label):
    """Return a component's output on one example and d log p / d output, ``(positions, width)`` each."""
    kept = {}

    def leaf(z):
        kept["z"] = z.detach().clone().requires_grad_(True)
        return kept["z"]

    loss, _ = score(oracle, ids, labels, {label: leaf})
    (gradient,) = torch.autograd.grad(-loss, [kept["z"]])
    return kept["z"].detach(), gradient


def attributions(oracle, batches):
    """Return ``sum (z - mean) . d log p / d z`` by component and example, one component and example at a time."""
    means = mean_outputs(oracle, batches)
    rows = []
    for label in oracle.labels:
        row = []
        for ids, labels in examples(batches):
            z, gradient = output_and_gradient(oracle, ids, labels, label)
            row.append(((z - means[label]) * gradient).sum())
        rows.append(torch.stack(row))
    return torch.stack(rows).numpy()


def attributions_by_differences(oracle, batches, step=1e-5):
    """Return the derivative of log p at t = 0 when ``z + t (z - mean)`` takes the place of z."""
    means = mean_outputs(oracle, batches)
    rows = []
    for label in oracle.labels:
        row = []
        for ids, labels in examples(batches):
            with torch.no_grad():
                above, below = (
                    score(oracle, ids, labels, {label: lambda z, t=t, mean=means[label]: z + t * (z - mean)})[0]
                    for t in (step, -step)
                )
            row.append((below - above) / (2 * step))
        rows.append(torch.stack(row))
    return torch.stack(rows).numpy()


def gated_slopes(oracle, ids, labels, means, gate):
    """Return d log p / d s_i of one example by component, where s pulls outputs to their means and every s_i = gate."""
    gates = {label: torch.tensor(gate, dtype=torch.float64, requires_grad=True) for label in oracle.labels}
    pulled = {label: lambda z, label=label: means[label] + gates[label] * (z - means[label]) for label in oracle.labels}
    loss, _ = score(oracle, ids, labels, pulled)
    return np.array(torch.autograd.grad(-loss, list(gates.values())))


def integrated_gradients(oracle, batches, points=41):
    """Return the integral of `gated_slopes` over the gate from 0 to 1 by component and example, by Simpson's rule."""
    means = mean_outputs(oracle, batches)
    way = np.linspace(0, 1, points)
    columns = [
        simpson([gated_slopes(oracle, ids, labels, means, float(gate)) for gate in way], x=way, axis=0)
        for ids, labels in examples(batches)
    ]
    return np.stack(columns, axis=1)


def integrated_gradients_at(oracle, batches, steps):
    """Return `integrated_gradients` by a Gauss-Legendre sum of so many points: for whatever is not smooth."""
    means = mean_outputs(oracle, batches)
    nodes, weights = roots_legendre(steps)
    columns = [
        sum(w / 2 * gated_slopes(oracle, ids, labels, means, (1 + x) / 2) for x, w in zip(nodes, weights, strict=True))
        for ids, labels in examples(batches)
    ]
    return np.stack(columns, axis=1)


def weight_norms(oracle, weights):
    """Return ``||theta||`` of every component."""
    return [
        sum(w.item() ** 2 for leaf in oracle.weights(label, weights) for w in leaf.detach().flatten()) ** 0.5
        for label in oracle.labels
    ]


def greedy_decode(model, prompt, n_tokens):
    """Write ``n_tokens`` tokens after a prompt, each the arg-max given all before; one forward pass per token."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(n_tokens):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]
