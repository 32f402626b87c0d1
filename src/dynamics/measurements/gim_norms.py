"""Norms, as PyTorch's operators and as written by hand (rule 2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dynamics.measurements import gim_reach as reach
from dynamics.measurements.gim_flow import Arguments, Options, elementwise, reset, settle
from dynamics.measurements.gim_rules import freeze_operand, freeze_scale
from dynamics.measurements.gim_trace import ACTIVATION, CONSTANT, Trace, covers_last, merged, option

if TYPE_CHECKING:
    from dynamics.measurements.gim_mode import GIMMode


def norm_layer(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """``layer_norm`` and ``rms_norm``."""
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
    return settle(mode, result, Trace(trace.data, gates=trace.gates))


def moment(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Means and sums of squares, variances and 2-norms along the last dimension: the scale of a norm, perhaps."""
    x = option(args, kwargs, 0, "input", "self", "x")
    trace = mode.trace(x)
    is_power = name in ("norm", "vector_norm")
    dim = option(args, kwargs, 2 if is_power else 1, "dim", "axis")
    if not trace.data or not covers_last(dim, x.ndim):
        return reset(mode, name, func, args, kwargs)
    if is_power and option(args, kwargs, 1, "p", "ord", default=2) not in (2, 2.0, "fro", None):
        return reset(mode, name, func, args, kwargs)
    if name in ("mean", "sum"):
        made = ACTIVATION
        if trace.square_of is not None:
            made = Trace(True, scale_of=trace.square_of)
        elif name == "mean":
            made = Trace(True, mean_of=mode.traces.family(x, trace))
        return settle(mode, func(*args, **kwargs), made)
    family = mode.traces.family(x, trace)
    result = func(*args, **kwargs)
    if isinstance(result, Tensor):
        return settle(mode, result, Trace(True, scale_of=family))
    mode.traces.set(result[0], Trace(True, scale_of=family))
    mode.traces.set(result[1], Trace(True, mean_of=family))
    return result


def power(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Squares, of which a norm takes the mean."""
    x = option(args, kwargs, 0, "input", "self")
    trace = mode.trace(x) if isinstance(x, Tensor) else CONSTANT
    if not trace.data or (name == "pow" and option(args, kwargs, 1, "exponent") not in (2, 2.0)):
        return elementwise(mode, name, func, args, kwargs)
    family = mode.traces.family(x, trace)
    return settle(mode, func(*args, **kwargs), replace(merged([trace]), square_of=family))


def subtract(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """An activation less its own mean is still that activation to a norm."""
    x, other = args[0], option(args, kwargs, 1, "other")
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        trace, mean = mode.trace(x), mode.trace(other)
        if trace.family is not None and mean.mean_of is trace.family:
            return settle(mode, func(*args, **kwargs), replace(merged([trace]), family=trace.family))
    return elementwise(mode, name, func, args, kwargs)


def scaled(
    mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options, factors: tuple[Tensor, Tensor]
) -> Tensor | None:
    """Run a product or quotient of an activation and its own scale, a norm by hand; ``None`` if it is none."""
    traces = mode.trace(factors[0]), mode.trace(factors[1])
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
            return settle(mode, result, replace(merged([x]), scale_of=None))
    return None
