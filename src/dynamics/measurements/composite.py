"""PyTorch's own functions that are written in Python, opened so that a mode sees the operators inside them."""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any


def _never(*_: Any) -> bool:
    return False


@lru_cache(maxsize=16)
def body(function: FunctionType) -> FunctionType:
    """Return PyTorch's own function without its check for overrides, so that the operators inside it are seen."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    opened = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(names, _never)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened
