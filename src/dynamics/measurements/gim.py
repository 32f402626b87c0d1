"""GIM: the backward pass with interactions corrected for, as a context around forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn

from dynamics.errors import MeasurementError
from dynamics.measurements.gim_mode import GIMMode
from dynamics.measurements.gim_reach import running_eagerly


@dataclass(frozen=True)
class GIMRules:
    """The three backward rules of GIM, "Gradient Interaction Modifications" (arXiv 2505.17630), each with a switch.

    1. Temperature-adjusted softmax gradient (TSG), in attention: with ``p_T = softmax(s / T)`` over the scores ``s``,
       ``grad_s = p_T * (g - sum(g * p_T))``. There is no factor 1/T, and masked positions get exactly 0. What the
       values receive still comes from the pattern of the forward pass (T = 1).
    2. Normalisation freeze: LayerNorm and RMSNorm treat their scale (sigma, rms) as a constant. The subtraction of the
       mean stays in the graph, and the norm's own parameters get their ordinary gradients.
    3. Gradient norm (uniform rule): at a product of two quantities that both depend on the input, each side receives
       half the gradient: attention pattern x value, query x key, and gate x up in gated MLPs.

    Attributes:
        temperature: T of rule 1; ``None`` or 1 switches it off.
        freeze_norm: Rule 2.
        split_products: Rule 3. An ungated MLP holds no such product, so there it changes nothing.

    Raises:
        MeasurementError: If the temperature is not a positive number.
    """

    temperature: float | None = 2.0
    freeze_norm: bool = True
    split_products: bool = True

    def __post_init__(self) -> None:
        value = self.temperature
        if value is None:
            return
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise MeasurementError(
                f"temperature must be a positive number, or None to switch the rule off; got {value!r}."
            )


@contextmanager
def gim_backward(model: nn.Module, rules: GIMRules | None = None) -> Iterator[None]:
    """Let forward passes of ``model`` that run inside have their backward pass follow the rules of GIM.

    The forward pass is plain PyTorch: the same operators on the same numbers. Run the forward pass inside; the backward
    pass may follow inside or later, except under activation checkpointing, where it must run inside.

    Acted on, inside the forward of ``model`` or of any of its submodules: ``F.scaled_dot_product_attention``, a softmax
    whose scores are a product of two activations and which is multiplied with a third, ``nn.MultiheadAttention``;
    ``F.layer_norm``, ``F.rms_norm``, and any activation times (or over) a function of its own mean square, variance or
    2-norm along the last dimension; the product of two different linear images of one activation that goes on to
    another linear map (gate x up), also in mixtures of experts, and ``F.glu`` there. Everything else keeps its ordinary
    gradient: softmaxes of losses, metrics and routers, and all other products.

    The context holds for the thread that opens it. In a nested one for the same model, the inner rules win. Modules
    wrapped by ``torch.compile`` run uncompiled inside.

    Args:
        model: The model, or a module (such as a LightningModule) that holds it.
        rules: Which rules, and how; default: all three with T = 2.

    Yields:
        Nothing.

    Raises:
        MeasurementError: At the end, if a rule that is on found nothing to act on in the forward passes that ran; at
            once, with the module's name, if something cannot be reached: a custom attention kernel, an operator that
            hides a product of activations, a scripted module; in the backward pass, if fused attention drops weights at
            random, if the forward pass ran outside, or if second derivatives are asked for.
    """
    rules = GIMRules() if rules is None else rules
    mode = GIMMode(model, rules.temperature, rules.freeze_norm, rules.split_products)
    with ExitStack() as stack:
        stack.enter_context(running_eagerly(model))
        stack.enter_context(mode.listening())
        stack.enter_context(mode)
        yield
    _check_found(mode)


def _check_found(mode: GIMMode) -> None:
    """Raise for every rule that is on and found nothing to act on in the forward passes that ran."""
    name = type(mode.model).__name__
    if not mode.on:
        return
    if not mode.forwards:
        # Contexts around or inside may have seen the forward pass instead.
        if mode.backwards and not mode.shadowed:
            raise MeasurementError(
                f"a backward pass ran inside gim_backward, but no forward pass of {name} did, so no rule could act. "
                "Run the forward pass inside the context too."
            )
        return
    missing = []
    if mode.tempers and not mode.found["attention"]:
        missing.append(
            "no attention whose softmax to temper (looked for scaled_dot_product_attention, a softmax between two "
            "products of activations, nn.MultiheadAttention; off: temperature=None)"
        )
    if mode.freeze_norm and not mode.found["norm"]:
        missing.append(
            "no norm to freeze (looked for layer_norm, rms_norm, and an activation times a function of its own mean "
            "square; off: freeze_norm=False)"
        )
    if mode.split_products and not mode.found["product"]:
        missing.append(
            "no product to split (looked for query x key and pattern x value in attention, gate x up in gated MLPs; "
            "off: split_products=False)"
        )
    if missing:
        raise MeasurementError(f"gim_backward found nothing to act on in {name}: {'; '.join(missing)}.")
