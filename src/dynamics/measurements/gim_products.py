"""Products of activations: scores, attention and gates, and the linear maps between them (rules 1 and 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dynamics.measurements import gim_reach as reach
from dynamics.measurements.attention_calls import eager_attention, fused_attention
from dynamics.measurements.gim_attention import FusedAttention, FusedCall
from dynamics.measurements.gim_flow import Arguments, Options, elementwise, reset, settle
from dynamics.measurements.gim_norms import scaled
from dynamics.measurements.gim_rules import Product, Softmax
from dynamics.measurements.gim_trace import ACTIVATION, CONSTANT, Trace, merged, option, tensors_in

if TYPE_CHECKING:
    from dynamics.measurements.gim_mode import GIMMode


def _factors(name: str, args: Arguments, kwargs: Options) -> tuple[list[Tensor], bool]:
    """Return the factors of a matrix product, and whether its first input is a summand."""
    tensors = tensors_in((args, {k: v for k, v in kwargs.items() if k not in ("out", "bias", "offs")}))
    if name in ("addmm", "baddbmm", "addbmm", "addmv"):
        return tensors[1:3], True
    return (tensors if name == "einsum" else tensors[:2]), False


def contract(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Matrix products: a linear map of one activation, or a product of two: scores, then attention."""
    factors, summand = _factors(name, args, kwargs)
    traces = []
    for index, factor in enumerate(factors):
        # A weight made by something that no operator was seen to do is still a weight.
        unseen = name == "linear" and index == 1 and mode.traces.get(factor) is None
        traces.append(CONSTANT if unseen else mode.trace(factor))
    active = [i for i, trace in enumerate(traces) if trace.data]
    result = func(*args, **kwargs)
    if not active:
        return settle(mode, result, CONSTANT)
    if len(active) == 1:
        x, trace = factors[active[0]], traces[active[0]]
        for gate in trace.gates:
            mode.note("product")
            if mode.split_products:
                gate.halve()
        family = mode.traces.family(x, trace)
        return settle(mode, result, Trace(True, images=frozenset({object()}), sources=frozenset({family})))
    product = Product(result.grad_fn, summand)
    softmaxes = [softmax for i in active for softmax in traces[i].softmaxes]
    if not softmaxes:
        return settle(mode, result, Trace(True, products=(product,)))
    # A softmax over query x key that meets a third activation: attention.
    mode.note("attention")
    mode.note("product")
    if mode.observer is not None and not summand:
        patterns = [bool(trace.softmaxes) for trace in traces]
        for attention in eager_attention(mode.path, name, args, factors, patterns, result):
            mode.observer(attention)
    for softmax in softmaxes:
        if mode.tempers:
            softmax.temper(mode.temperature)
        if mode.split_products:
            for scores in softmax.products:
                scores.halve()
    if mode.split_products:
        product.halve()
    return settle(mode, result, ACTIVATION)


def softmax(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """A softmax over scores may be attention; any other is left alone."""
    scores: Tensor = option(args, kwargs, 0, "input", "self")
    products = mode.trace(scores).products
    if not products:
        return reset(mode, name, func, args, kwargs)
    dim = option(args, kwargs, 1, "dim")
    if dim is None:  # deprecated, but PyTorch still guesses
        dim = 0 if scores.ndim in (0, 1, 3) else 1
    result = func(*args, **kwargs)
    if result.grad_fn is not None and not type(result.grad_fn).__name__.startswith("Softmax"):
        what = f"its softmax has a backward of another kind ({type(result.grad_fn).__name__})"
        raise reach.unreachable(mode.where, what, "attention")
    # The cast comes first, as in the forward pass.
    softmax = Softmax(result.grad_fn, scores.detach().to(result.dtype), dim, products)
    return settle(mode, result, Trace(True, softmaxes=(softmax,)))


def fused(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Fused attention: PyTorch's operator on copies off the graph, and a node with the rules in its backward."""
    query, key, value = (option(args, kwargs, i, n) for i, n in enumerate(("query", "key", "value")))
    mask = option(args, kwargs, 3, "attn_mask")
    mode.note("attention")
    mode.note("product")
    inputs = [tensor for tensor in (query, key, value, mask) if tensor is not None]
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    rest = {
        "dropout_p": option(args, kwargs, 4, "dropout_p", default=0.0),
        "is_causal": option(args, kwargs, 5, "is_causal", default=False),
        "scale": kwargs.get("scale"),
        **({"enable_gqa": True} if kwargs.get("enable_gqa") else {}),
    }
    if not differentiable or not (mode.tempers or mode.split_products):
        result = func(*args, **kwargs)
        if mode.observer is not None and not any(tensor.is_nested for tensor in inputs):
            mode.observer(fused_attention(mode.path, query, key, value, mask, result, **rest))
        return settle(mode, result, ACTIVATION)
    for tensor in inputs:
        if tensor.is_nested or type(tensor) not in (Tensor, torch.nn.Parameter):
            kind = "nested tensors" if tensor.is_nested else f"a {type(tensor).__name__}"
            what = f"scaled_dot_product_attention is called with {kind}; pass plain tensors"
            raise reach.unreachable(mode.where, what, "attention")
    # Copies off the graph that need gradients as the originals do: PyTorch picks the same kernel for them.
    shadows = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in (query, key, value, mask)]
    call = FusedCall(
        value=func(*shadows, **rest).detach(),
        scale=rest["scale"],
        causal=rest["is_causal"],
        grouped=bool(kwargs.get("enable_gqa")),
        dropout=rest["dropout_p"],
        temperature=mode.temperature,
        share=0.5 if mode.split_products else 1.0,
        where=mode.where,
        refuse=mode.require_inside if reach.in_checkpoint() else _accept,
    )
    return settle(mode, FusedAttention.apply(query, key, value, mask, call), ACTIVATION)


def _accept() -> None:
    """Let a backward run anywhere: nothing is recomputed for it."""


def multiply(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Elementwise products and quotients: a norm's last step, a square, gate x up, or nothing special."""
    a, b = args[0], option(args, kwargs, 1, "other")
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return elementwise(mode, name, func, args, kwargs)
    norm = scaled(mode, name, func, args, kwargs, (a, b))
    if norm is not None:
        return norm
    traces = mode.trace(a), mode.trace(b)
    if name == "mul" and a is b and traces[0].data:
        family = mode.traces.family(a, traces[0])
        return settle(mode, func(*args, **kwargs), replace(merged(traces[:1]), square_of=family))
    if not (traces[0].data and traces[1].data):
        return elementwise(mode, name, func, args, kwargs)
    shape = a.shape
    result = func(*args, **kwargs)
    made = replace(merged(traces), gates=traces[0].gates + traces[1].gates)
    # Gate x up: two different linear images of one activation. x * sigmoid(x), one image twice, is a nonlinearity.
    one, two = traces[0].images, traces[1].images
    different = one and two and not one & two and traces[0].sources & traces[1].sources
    if name == "mul" and different and shape == b.shape:
        made = replace(made, gates=(*made.gates, Product(result.grad_fn)))
    return settle(mode, result, made)


def glu(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Both halves of ``F.glu``'s input are sides of a gate, if they are a linear image."""
    trace = mode.trace(option(args, kwargs, 0, "input", "self"))
    result = func(*args, **kwargs)
    made = merged([trace])
    if trace.images:
        made = replace(made, gates=(*made.gates, Product(result.grad_fn)))
    return settle(mode, result, made)
