"""Token attributions and perturbation curves the slow way; shares no code with the package.

Everything takes ``target``: a function from one example's embeddings ``(positions, width)`` to a number.
"""

import torch


def gradient_times_input(target, x, start):
    """Return ``(x_t - b_t) . d target / d x_t`` by central differences, ``(positions,)``."""
    scores = torch.zeros(len(x), dtype=x.dtype)
    for t in range(len(x)):
        direction = torch.zeros_like(x)
        direction[t] = x[t] - start[t]
        step = 1e-5
        scores[t] = (target(x + step * direction) - target(x - step * direction)) / (2 * step)
    return scores


def integrated_gradients(target, x, start, points=100):
    """Return the scores by the midpoint rule along the straight path, ``(positions,)``."""
    total = torch.zeros_like(x)
    for i in range(points):
        at = (start + (i + 0.5) / points * (x - start)).detach().requires_grad_(True)
        total += torch.autograd.grad(target(at), at)[0] / points
    return ((x - start) * total).sum(-1)


def curves(target, x, start, scores, free):
    """Return comprehensiveness and sufficiency at every k, two lists of numbers."""
    order = sorted((t for t in range(len(x)) if free[t]), key=lambda t: -scores[t])
    full, without, alone = target(x), [], []
    for k in range(len(order) + 1):
        for drops, gone in ((without, order[:k]), (alone, order[k:])):
            perturbed = x.clone()
            for t in gone:
                perturbed[t] = start[t]
            drops.append(float(full - target(perturbed)))
    return without, alone
