"""How provenance passes through operators of no special meaning: elementwise functions, casts, views, parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dynamics.measurements import gim_reach as reach
from dynamics.measurements.gim_trace import ACTIVATION, CONSTANT, Trace, merged, tensors_in

if TYPE_CHECKING:
    from dynamics.measurements.gim_mode import GIMMode

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Handler = Callable[["GIMMode", str, Any, Arguments, Options], Any]
"""``handler(mode, name, function, args, kwargs)`` runs an operator and returns its result."""


def settle(mode: GIMMode, result: Any, trace: Trace) -> Any:
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
    tensors = tensors_in(args) + (tensors_in(kwargs) if kwargs else [])
    traces = [mode.trace(tensor) for tensor in tensors]
    result = func(*args, **kwargs)
    if not isinstance(result, (Tensor, tuple, list)):
        return result
    if custom is not None and (mode.tempers or mode.split_products):
        active = sum(t.data and x.is_floating_point() for t, x in zip(traces, tensors, strict=True))
        if active > 1:
            what = f"the custom operator {custom} combines {active} activations"
            raise reach.unreachable(mode.where, what, "attention")
    return settle(mode, result, merged(traces)) if tensors else result


def assign(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """``x[index] = value``: x descends from both."""
    traces = [mode.trace(tensor) for tensor in tensors_in(args)]
    result = func(*args, **kwargs)
    mode.traces.set(args[0], merged(traces))
    return result


def reset(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Reductions, losses, convolutions, other norms: the result is an activation with a provenance of its own."""
    data = any(mode.trace(tensor).data for tensor in tensors_in((args, kwargs)))
    return settle(mode, func(*args, **kwargs), ACTIVATION if data else CONSTANT)


def cast(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Casts and views keep the identity of an activation."""
    x = args[0]
    trace = mode.trace(x)
    if not trace.data:
        return elementwise(mode, name, func, args, kwargs)
    family = mode.traces.family(x, trace)
    return settle(mode, func(*args, **kwargs), replace(mode.trace(x), family=family))


def part(mode: GIMMode, name: str, func: Any, args: Arguments, kwargs: Options) -> Any:
    """Slices and chunks: parts of one linear image are images of their own (fused gate and up)."""
    x = args[0]
    trace = mode.trace(x)
    if not trace.data and isinstance(x, Tensor) and x.ndim > 2:
        # Rows of a table are an embedding, an activation; matrices picked out of a stack are an expert's weights.
        return settle(mode, func(*args, **kwargs), CONSTANT)
    if not trace.images:
        return elementwise(mode, name, func, args, kwargs)
    result = func(*args, **kwargs)
    trace = merged([trace])
    key = repr([id(a) if isinstance(a, Tensor) else a for a in (*args[1:], *sorted(kwargs.items()))])
    for index, tensor in enumerate(tensors_in(result)):
        images = frozenset((image, name, key, index) for image in trace.images)
        mode.traces.set(tensor, replace(trace, images=images))
    return result
