"""Where a tensor comes from: the provenance by which GIM tells attention, norms and gates from everything else."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from dynamics.measurements.gim_rules import Product, Softmax

Family = object
"""Identity of an activation, shared by its casts and views and by what is left after its mean is subtracted."""

NONE: frozenset[Any] = frozenset()


@dataclass(frozen=True)
class Trace:
    """What is known of a tensor.

    Attributes:
        data: Whether it depends on the model's input (an activation), rather than on parameters and constants alone.
        given: Whether it came into the model from outside, with whatever graph it has there.
        family: Its identity; ``None`` until something asks for it.
        square_of: The family of which it is the elementwise square.
        mean_of: The family of which it is the mean along the last dimension.
        scale_of: The family of whose second moment along the last dimension it is a function.
        products: Products of two activations that it descends from without another contraction: scores, perhaps.
        softmaxes: Softmaxes over such scores that it descends from: an attention pattern, perhaps.
        images: The linear images (or parts of one) that it descends from elementwise.
        sources: Of which families these are images.
        gates: Products of two images that it descends from: the hidden layer of a gated MLP, perhaps.
    """

    data: bool
    given: bool = False
    family: Family | None = None
    square_of: Family | None = None
    mean_of: Family | None = None
    scale_of: Family | None = None
    products: tuple[Product, ...] = ()
    softmaxes: tuple[Softmax, ...] = ()
    images: frozenset[Any] = NONE
    sources: frozenset[Family] = NONE
    gates: tuple[Product, ...] = ()


CONSTANT = Trace(data=False)
ACTIVATION = Trace(data=True)
INPUT = Trace(data=True, given=True)

# A residual stream gathers the images of all layers; nothing that is one gate's side descends from so many.
_MOST_IMAGES = 16


def merged(traces: Iterable[Trace]) -> Trace:
    """Return the trace of an elementwise (or reordering) function of several tensors."""
    active = [trace for trace in traces if trace.data]
    if not active:
        return CONSTANT
    if len(active) == 1:
        one = active[0]
        if not (one.products or one.softmaxes or one.images or one.scale_of or one.gates):
            return ACTIVATION
        return replace(one, given=False, family=None, square_of=None, mean_of=None)
    products = tuple({id(p): p for trace in active for p in trace.products}.values())
    softmaxes = tuple({id(s): s for trace in active for s in trace.softmaxes}.values())
    images = NONE.union(*(trace.images for trace in active))
    sources = NONE.union(*(trace.sources for trace in active))
    if len(images) > _MOST_IMAGES:
        images = sources = NONE
    return Trace(True, products=products, softmaxes=softmaxes, images=images, sources=sources)


class Traces:
    """The traces of the tensors of one forward pass, by identity; they vanish with the tensors."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Tensor], Trace]] = {}

    def get(self, tensor: Tensor) -> Trace | None:
        """Return the trace of a tensor that an operator was seen to make or take."""
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def set(self, tensor: Tensor, trace: Trace) -> None:
        """Remember the trace of a tensor."""
        key = id(tensor)
        entries = self._entries
        entries[key] = (weakref.ref(tensor, lambda _: entries.pop(key, None)), trace)

    def family(self, tensor: Tensor, trace: Trace) -> Family:
        """Return the family of a tensor, and let it have one."""
        if trace.family is None:
            trace = replace(trace, family=object())
            self.set(tensor, trace)
        return trace.family

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists, mappings and dataclasses, such as batches and models' outputs."""
    found: list[Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _gather(item, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            _gather(item, found)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _gather(getattr(value, field.name), found)


@lru_cache(maxsize=4096)
def operator_name(function: Any) -> str:
    """Return the plain name of an operator: ``mul`` for ``torch.mul``, ``Tensor.mul_``, ``*``, ``aten::mul.Tensor``."""
    name = getattr(function, "__name__", None) or str(function)
    name = name.split(".")[0].strip("_")
    for prefix in ("special_", "linalg_"):
        name = name.removeprefix(prefix)
    return _SYNONYMS.get(name, name)


_SYNONYMS = {
    "imul": "mul",
    "rmul": "mul",
    "multiply": "mul",
    "itruediv": "div",
    "truediv": "div",
    "divide": "div",
    "true_divide": "div",
    "rmatmul": "matmul",
    "isub": "sub",
    "subtract": "sub",
    "ipow": "pow",
}


def option(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: int, *names: str, default: Any = None) -> Any:
    """Return an argument given by position or under any of several names."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[index] if len(args) > index else default


def covers_last(dim: Any, ndim: int) -> bool:
    """Say whether a ``dim`` argument names the last dimension."""
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    return any(isinstance(d, int) and not isinstance(d, bool) and d in (-1, ndim - 1) for d in dims)
