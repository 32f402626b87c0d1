"""``nn.MultiheadAttention`` run in two steps, so that what its heads write can be read and replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynamics.errors import MeasurementError
from dynamics.measurements.composite import body
from dynamics.measurements.process_wide import ProcessWide

_last_step = threading.local()
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


@contextmanager
def _fast_path_off() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_slow_path = ProcessWide(_fast_path_off)


def without_fast_path() -> AbstractContextManager[None]:
    """Keep PyTorch from running encoder layers and attention as one fused operator, in which no module is called.

    The switch holds for the whole process.
    """
    return _slow_path.changed()


@contextmanager
def output_projections_called(model: nn.Module, paths: Iterable[str]) -> Iterator[None]:
    """Let ``nn.MultiheadAttention`` call its ``out_proj`` as a module, on ``(positions, examples, width)``.

    PyTorch's function takes the projection's weight and applies it without calling the module, so hooks there would
    never fire. Inside, the function runs as it is up to that projection; then the module is called. The numbers do not
    change by a bit, and parameters keep their gradients. Whatever ``batch_first`` says, positions come first there, as
    in PyTorch's function.

    Args:
        model: The model.
        paths: Modules at which hooks are to fire; those that are no such projection need nothing.
    """
    projections = [model.get_submodule(path) for path in paths if is_output_projection(model, path)]
    if not projections:
        yield
        return
    with without_fast_path(), _TwoSteps(projections):
        yield


def is_output_projection(model: nn.Module, path: str) -> bool:
    """Say whether a path names the ``out_proj`` of an ``nn.MultiheadAttention``."""
    parent, _, name = path.rpartition(".")
    return name == "out_proj" and isinstance(model.get_submodule(parent), nn.MultiheadAttention)


def positions_come_first(module: nn.Module) -> bool:
    """Say whether a module that runs in this thread is called in the place of PyTorch's own last step.

    A subclass of ``nn.MultiheadAttention`` with a forward of its own may call it, and in another order of dimensions.
    """
    return getattr(_last_step, "projection", None) is module


class _TwoSteps(TorchFunctionMode):
    """Watches this thread for attention whose last step is one of the projections."""

    def __init__(self, projections: Iterable[nn.Module]) -> None:
        super().__init__()
        self._by_weight: dict[int, list[nn.Module]] = {}
        for projection in dict.fromkeys(projections):
            self._by_weight.setdefault(id(projection.weight), []).append(projection)
        self._running: list[tuple[nn.Module, tuple[int, ...]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else dict(kwargs)
        if func is F.multi_head_attention_forward:
            projection = self._projection(kwargs["out_proj_weight"] if len(args) < 12 else args[11])
            if projection is not None:
                query = args[0] if args else kwargs["query"]
                self._running.append((projection, tuple(query.shape[:-1])))
                try:
                    with self:
                        return body(func)(*args, **kwargs)
                finally:
                    self._running.pop()
        if func in _BACKWARD:
            # The mode stays on: activation checkpointing runs forward passes in here.
            with self:
                return body(func)(*args, **kwargs)
        if self._running and func is F.linear and args[1] is self._running[-1][0].weight:
            projection, positions = self._running[-1]
            _last_step.projection = projection
            try:
                # Flat and in PyTorch's order, so that the very same product runs: (positions, examples), or one.
                return projection(args[0].unflatten(0, positions)).flatten(0, -2)
            finally:
                _last_step.projection = None
        return func(*args, **kwargs)

    def _projection(self, weight: Tensor) -> nn.Module | None:
        candidates = self._by_weight.get(id(weight), [])
        if len(candidates) > 1:
            raise MeasurementError(
                f"{len(candidates)} nn.MultiheadAttention modules share one out_proj.weight, so their heads cannot be "
                "told apart; share the whole module or keep the weights apart."
            )
        return candidates[0] if candidates else None
