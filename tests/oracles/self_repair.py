"""Attention self-repair by hand: scores are taken out of a row, the softmax is made anew, one row at a time."""

import torch

from tests.oracles.decoder import softmax
from tests.oracles.measurements import examples, output_and_gradient, score


def output(scores, values, removed=()):
    """Return what a row makes of its values without some of its positions; nothing at all makes 0."""
    left = [j for j in range(len(scores)) if j not in removed and scores[j] > -torch.inf]
    if not left:
        return torch.zeros_like(values[0])
    pattern = softmax(torch.stack([scores[j] for j in left]))
    return sum(p * values[j] for p, j in zip(pattern, left, strict=True))


def interaction(scores, values, gradient, threshold):
    """Return a row's interaction, or ``None`` if fewer than two positions contribute more than the threshold."""
    seen = [j for j in range(len(scores)) if scores[j] > -torch.inf]
    pattern = softmax(torch.stack([scores[j] for j in seen])) if seen else []
    contributions = [p * (gradient @ values[j]) for p, j in zip(pattern, seen, strict=True)]
    if sum(c > threshold for c in contributions) < 2:
        return None
    first, second = sorted(seen, key=lambda j: (-scores[j].item(), j))[:2]

    def effect(*removed):
        return gradient @ (output(scores, values) - output(scores, values, removed))

    return effect(first, second) - effect(first) - effect(second)


def of_rows(rows, gradients, threshold):
    """Return the number of rows that count and their mean interaction, from (scores, values) of each row."""
    found = [interaction(*row, g, threshold) for row, g in zip(rows, gradients, strict=True)]
    found = [value.item() for value in found if value is not None]
    return len(found), sum(found) / len(found) if found else float("nan")


def self_repair(oracle, batches, threshold):
    """Return counts and mean interactions by component and example; NaN for MLPs."""
    counts, means = [], []
    for label in oracle.labels:
        pairs = []
        for ids, labels in examples(batches):
            _, gradient = output_and_gradient(oracle, ids, labels, label)
            is_head = label in oracle.rows
            pairs.append(of_rows(oracle.rows[label], gradient, threshold) if is_head else (float("nan"),) * 2)
        counts.append([count for count, _ in pairs])
        means.append([mean for _, mean in pairs])
    return tuple(torch.tensor(rows, dtype=torch.float64).numpy() for rows in (counts, means))


def slope_by_differences(oracle, ids, labels, label, t, direction, step=1e-5):
    """Return the derivative of log p as the output of a head at position t moves along a direction."""

    def moved(by):
        def change(z):
            return torch.cat([z[:t], (z[t] + by * direction)[None], z[t + 1 :]])

        return -score(oracle, ids, labels, {label: change})[0]

    with torch.no_grad():
        return ((moved(step) - moved(-step)) / (2 * step)).item()
