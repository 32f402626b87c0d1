"""What GIM does at each kind of operator: follow provenance, and put a rule where one applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dynamics.measurements import gim_reach as reach
from dynamics.measurements.gim_attention import FusedAttention, FusedCall
from dynamics.measurements.gim_rules import Product, Softmax, freeze_operand, freeze_scale
from dynamics.measurements.gim_trace import (
    ACTIVATION,
    CONSTANT,
    Trace,
    covers_last,
    merged,
    option,
    tensors_in,
)

if TYPE_CHECKING:
    from dynamics.measurements.gim_mode import GIMMode

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Handler = Callable[["GIMMode", str, Any, Arguments, Options], Any]


def _settle(mode: GIMMode, result: Any, trace: Trace) -> Any:
    """Give the tensors of a result a trace, and return the result."""
    if isinstance(result, Tensor):
        mode.traces.set(result, trace)
    elif isinstance(result, (tuple, list)):
        for tensor in tensors_in(result):
            mode.traces.set(tensor, trace)
    return result


def elementwise(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Run an operator of no special meaning: what it makes descends from all that it takes."""
    custom = reach.custom_operator(func)
    tensors = list(tensors_in(args)) + (list(tensors_in(kwargs)) if kwargs else [])
    traces = [mode.trace(tensor) for tensor in tensors]
    result = func(*args, **kwargs)
    if not isinstance(result, (Tensor, tuple, list)):
        return result
    if custom is not None and (mode.tempers or mode.split_products):
        active = sum(t.data and x.is_floating_point() for t, x in zip(traces, tensors, strict=True))
        if active > 1:
            what = f"the custom operator {custom} combines {active} activations"
            raise reach.unreachable(mode.where, what, "attention")
    return _settle(mode, result, merged(traces)) if tensors else result


def _assign(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """``x[index] = value``: x descends from both."""
    traces = [mode.trace(tensor) for tensor in tensors_in(args)]
    result = func(*args, **kwargs)
    mode.traces.set(args[0], merged(traces))
    return result


def _reset(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Reductions, losses, convolutions, other norms: the result is an activation with a provenance of its own."""
    data = any(mode.trace(tensor).data for tensor in tensors_in((args, kwargs)))
    return _settle(mode, func(*args, **kwargs), ACTIVATION if data else CONSTANT)


def _cast(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Casts and views keep the identity of an activation."""
    x = args[0]
    trace = mode.trace(x)
    if not trace.data:
        return elementwise(mode, name, func, args, kwargs)
    family = mode.traces.family(x, trace)
    return _settle(mode, func(*args, **kwargs), replace(mode.trace(x), family=family))


def _part(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Slices and chunks: parts of one linear image are images of their own (fused gate and up)."""
    x = args[0]
    trace = mode.trace(x)
    if not trace.data and isinstance(x, Tensor) and x.ndim > 2:
        # Rows of a table are an embedding, an activation; matrices picked out of a stack are an expert's weights.
        return _settle(mode, func(*args, **kwargs), CONSTANT)
    if not trace.images:
        return elementwise(mode, name, func, args, kwargs)
    result = func(*args, **kwargs)
    trace = merged([trace])
    key = repr([id(a) if isinstance(a, Tensor) else a for a in (*args[1:], *sorted(kwargs.items()))])
    for index, tensor in enumerate(tensors_in(result)):
        images = frozenset((image, name, key, index) for image in trace.images)
        mode.traces.set(tensor, replace(trace, images=images))
    return result


# --- contractions: scores, attention, linear maps --------------------------------------------------------------------


def _factors(name: str, args: Arguments, kwargs: Options) -> tuple[list[Tensor], bool]:
    """Return the factors of a matrix product, and whether its first input is a summand."""
    tensors = list(tensors_in((args, {k: v for k, v in kwargs.items() if k not in ("out", "bias", "offs")})))
    if name in ("addmm", "baddbmm", "addbmm", "addmv"):
        return tensors[1:3], True
    return (tensors if name == "einsum" else tensors[:2]), False


def _contract(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    factors, summand = _factors(name, args, kwargs)
    traces = []
    for index, factor in enumerate(factors):
        # A weight made by something that no operator was seen to do is still a weight.
        unseen = name == "linear" and index == 1 and mode.traces.get(factor) is None
        traces.append(CONSTANT if unseen else mode.trace(factor))
    active = [i for i, trace in enumerate(traces) if trace.data]
    result = func(*args, **kwargs)
    if not active:
        return _settle(mode, result, CONSTANT)
    if len(active) == 1:
        x, trace = factors[active[0]], traces[active[0]]
        for gate in trace.gates:
            mode.note("product")
            if mode.split_products:
                gate.halve()
        family = mode.traces.family(x, trace)
        return _settle(mode, result, Trace(True, images=frozenset({object()}), sources=frozenset({family})))
    product = Product(result.grad_fn, summand)
    softmaxes = [softmax for i in active for softmax in traces[i].softmaxes]
    if not softmaxes:
        return _settle(mode, result, Trace(True, products=(product,)))
    # A softmax over query x key that meets a third activation: attention.
    mode.note("attention")
    mode.note("product")
    for softmax in softmaxes:
        if mode.tempers:
            softmax.temper(mode.temperature)
        if mode.split_products:
            for scores in softmax.products:
                scores.halve()
    if mode.split_products:
        product.halve()
    return _settle(mode, result, ACTIVATION)


def _softmax(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    scores: Tensor = option(args, kwargs, 0, "input", "self")
    products = mode.trace(scores).products
    if not products:
        return _reset(mode, name, func, args, kwargs)
    dim = option(args, kwargs, 1, "dim")
    if dim is None:  # deprecated, but PyTorch still guesses
        dim = 0 if scores.ndim in (0, 1, 3) else 1
    result = func(*args, **kwargs)
    if result.grad_fn is not None and not type(result.grad_fn).__name__.startswith("Softmax"):
        what = f"its softmax has a backward of another kind ({type(result.grad_fn).__name__})"
        raise reach.unreachable(mode.where, what, "attention")
    # The cast comes first, as in the forward pass.
    softmax = Softmax(result.grad_fn, scores.detach().to(result.dtype), dim, products)
    return _settle(mode, result, Trace(True, softmaxes=(softmax,)))


def _fused(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    query, key, value = (option(args, kwargs, i, n) for i, n in enumerate(("query", "key", "value")))
    mask = option(args, kwargs, 3, "attn_mask")
    mode.note("attention")
    mode.note("product")
    inputs = [tensor for tensor in (query, key, value, mask) if tensor is not None]
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if not differentiable or not (mode.tempers or mode.split_products):
        return _settle(mode, func(*args, **kwargs), ACTIVATION)
    for tensor in inputs:
        if tensor.is_nested or type(tensor) not in (Tensor, torch.nn.Parameter):
            kind = "nested tensors" if tensor.is_nested else f"a {type(tensor).__name__}"
            what = f"scaled_dot_product_attention is called with {kind}; pass plain tensors"
            raise reach.unreachable(mode.where, what, "attention")
    # Copies off the graph that need gradients as the originals do: PyTorch picks the same kernel for them.
    shadows = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in (query, key, value, mask)]
    rest = {
        "dropout_p": option(args, kwargs, 4, "dropout_p", default=0.0),
        "is_causal": option(args, kwargs, 5, "is_causal", default=False),
        "scale": kwargs.get("scale"),
        **({"enable_gqa": True} if kwargs.get("enable_gqa") else {}),
    }
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
    return _settle(mode, FusedAttention.apply(query, key, value, mask, call), ACTIVATION)


def _accept() -> None:
    """Let a backward run anywhere: nothing is recomputed for it."""


# --- norms -----------------------------------------------------------------------------------------------------------


def _norm(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    x = option(args, kwargs, 0, "input")
    shape = option(args, kwargs, 1, "normalized_shape")
    weight = option(args, kwargs, 2, "weight")
    centred = name == "layer_norm"
    eps = option(args, kwargs, 4, "eps", default=1e-5) if centred else option(args, kwargs, 3, "eps")
    if eps is None:  # rms_norm's own default
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    trace = mode.trace(x)
    mode.note("norm")

    def norm(data: Tensor) -> Tensor:
        if args:
            return func(data, *args[1:], **kwargs)
        return func(**{**kwargs, "input": data})

    result = freeze_scale(norm, x, weight, len(shape), eps, centred) if mode.freeze_norm else norm(x)
    # Some MLPs normalise their hidden layer: a gate's product stays one.
    return _settle(mode, result, Trace(trace.data, gates=trace.gates))


def _moment(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Means and sums of squares, variances and 2-norms along the last dimension: the scale of a norm, perhaps."""
    x = option(args, kwargs, 0, "input", "self", "x")
    trace = mode.trace(x)
    is_power = name in ("norm", "vector_norm")
    dim = option(args, kwargs, 2 if is_power else 1, "dim", "axis")
    if not trace.data or not covers_last(dim, x.ndim):
        return _reset(mode, name, func, args, kwargs)
    if is_power and option(args, kwargs, 1, "p", "ord", default=2) not in (2, 2.0, "fro", None):
        return _reset(mode, name, func, args, kwargs)
    if name in ("mean", "sum"):
        made = ACTIVATION
        if trace.square_of is not None:
            made = Trace(True, scale_of=trace.square_of)
        elif name == "mean":
            made = Trace(True, mean_of=mode.traces.family(x, trace))
        return _settle(mode, func(*args, **kwargs), made)
    family = mode.traces.family(x, trace)
    result = func(*args, **kwargs)
    if isinstance(result, Tensor):
        return _settle(mode, result, Trace(True, scale_of=family))
    mode.traces.set(result[0], Trace(True, scale_of=family))
    mode.traces.set(result[1], Trace(True, mean_of=family))
    return result


def _power(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    x = option(args, kwargs, 0, "input", "self")
    trace = mode.trace(x) if isinstance(x, Tensor) else CONSTANT
    if not trace.data or (name == "pow" and option(args, kwargs, 1, "exponent") not in (2, 2.0)):
        return elementwise(mode, name, func, args, kwargs)
    family = mode.traces.family(x, trace)
    return _settle(mode, func(*args, **kwargs), replace(merged([trace]), square_of=family))


def _subtract(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    x, other = args[0], option(args, kwargs, 1, "other")
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        trace, mean = mode.trace(x), mode.trace(other)
        if trace.family is not None and mean.mean_of is trace.family:
            return _settle(mode, func(*args, **kwargs), replace(merged([trace]), family=trace.family))
    return elementwise(mode, name, func, args, kwargs)


# --- elementwise products: a norm's scale, a gate --------------------------------------------------------------------


def _multiply(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    a, b = args[0], option(args, kwargs, 1, "other")
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return elementwise(mode, name, func, args, kwargs)
    traces = mode.trace(a), mode.trace(b)
    for index in (1, 0) if name == "mul" else (1,):
        scale, x = traces[index], traces[1 - index]
        if scale.scale_of is not None and scale.scale_of is x.family:
            result = func(*args, **kwargs)
            mode.note("norm")
            if mode.freeze_norm and result.grad_fn is not None:
                if not type(result.grad_fn).__name__.startswith(("Mul", "Div")):
                    what = f"its scale enters through {type(result.grad_fn).__name__}, in place on a view"
                    raise reach.unreachable(mode.where, what, "norm")
                freeze_operand(result.grad_fn, index)
            return _settle(mode, result, replace(merged([x]), scale_of=None))
    if name == "mul" and a is b and traces[0].data:
        family = mode.traces.family(a, traces[0])
        return _settle(mode, func(*args, **kwargs), replace(merged(traces[:1]), square_of=family))
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
    return _settle(mode, result, made)


def _glu(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    trace = mode.trace(option(args, kwargs, 0, "input", "self"))
    result = func(*args, **kwargs)
    made = merged([trace])
    if trace.images:
        made = replace(made, gates=(*made.gates, Product(result.grad_fn)))
    return _settle(mode, result, made)


def _names(handler: Handler, names: str) -> Mapping[str, Handler]:
    return dict.fromkeys(names.split(), handler)


HANDLERS: dict[str, Handler] = {
    **_names(_fused, "scaled_dot_product_attention"),
    **_names(_softmax, "softmax"),
    **_names(
        _contract,
        "matmul mm bmm mv dot inner tensordot linear einsum addmm baddbmm addbmm addmv grouped_mm grouped_mm_fallback",
    ),
    **_names(_norm, "layer_norm rms_norm"),
    **_names(_moment, "mean sum var std var_mean std_mean norm vector_norm"),
    **_names(_power, "pow square"),
    **_names(_subtract, "sub"),
    **_names(_multiply, "mul div"),
    **_names(_glu, "glu"),
    **_names(
        _cast,
        "to float double half bfloat16 type type_as contiguous clone alias view view_as reshape flatten unflatten "
        "unsqueeze squeeze expand expand_as",
    ),
    **_names(
        _part,
        "getitem select narrow index_select chunk unsafe_chunk split unsafe_split split_with_sizes tensor_split unbind",
    ),
    **_names(_assign, "setitem"),
    **_names(
        _reset,
        "max min amax amin aminmax prod cumsum cumprod logsumexp log_softmax cross_entropy nll_loss kl_div mse_loss "
        "group_norm batch_norm instance_norm local_response_norm conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d bilinear cosine_similarity pairwise_distance cdist argmax argmin",
    ),
}
"""What is done at an operator, by its plain name; any other is `elementwise`."""
