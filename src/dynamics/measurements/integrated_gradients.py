"""Integrated gradients: attributions averaged along the way from all components ablated to the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.attribution import attribution
from dynamics.measurements.interventions import changed
from dynamics.measurements.scorer import Scorer

STEPS = 8
"""Default number of points on the way."""


def check_steps(steps: int) -> int:
    """Return the number of steps, or raise a `MeasurementError` unless it is a whole number of at least 1."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise MeasurementError(f"ig_steps must be a whole number, at least 1; got {steps!r}.")
    return int(steps)


def integrated_gradients(
    score: Scorer, components: ComponentMap, means: Sequence[Tensor], steps: int = STEPS
) -> Tensor:
    """Return ``A_i(e) = integral over a from 0 to 1 of d log p / d s_i at s_1 = ... = s_n = a``.

    The gates s let every component's output shrink to its mean, ``z_i -> mean_i + s_i (z_i - mean_i)``, while
    everything downstream responds. The corners of the cube of gates are the mean ablations: all 1 is the whole model,
    s_i = 0 alone is the ablation behind C_i, all 0 is the model without any component. Integrated gradients
    (Sundararajan et al. 2017, arXiv 1703.01365) along the diagonal are therefore complete:

        sum over i of A_i(e) = log p(whole model) - log p(all components mean-ablated)

    Attribution patching (`attribution`) is the integrand at a = 1. The integral is taken by Gauss-Legendre quadrature,
    exact for integrands that are polynomials of degree below ``2 * steps``.

    Args:
        score: The bound objective.
        components: The components.
        means: Mean output of each component, ``(width,)`` each.
        steps: Points of the quadrature; each costs a forward and a backward pass.

    Returns:
        ``(components, examples)``, nats. Positive: the component supports the answer.

    Raises:
        MeasurementError: If the loss has no gradient, a component's output does not enter it, or ``steps`` is below 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(check_steps(steps))
    total: Tensor | None = None
    for gate, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        pulls = [lambda z, mean=mean, gate=gate: torch.lerp(mean.expand_as(z), z, gate) for mean in means]
        with changed(score.model, components, pulls):
            # There z' - mean = a (z - mean), and the derivative with respect to the gate takes z - mean.
            share = attribution(score, components, means) * (weight / gate)
        total = share if total is None else total + share
    assert total is not None
    return total
