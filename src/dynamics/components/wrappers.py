"""Modules that wrap another one and pass attribute look-ups on to it."""

from __future__ import annotations

from typing import Any

from torch import nn

# torch.compile, and activation checkpointing as PyTorch's distributed tools put it around blocks.
_INSIDE = ("_orig_mod", "_checkpoint_wrapped_module")


def unwrapped(module: Any) -> Any:
    """Return the module inside wrappers of `torch.compile` and of activation checkpointing.

    Paths need no change: such a wrapper looks up in the module what it does not have itself.
    """
    for name in _INSIDE:
        if name in module._modules:
            return unwrapped(getattr(module, name))
    return module


def is_wrapper(module: nn.Module) -> bool:
    """Say whether a module only wraps another one, to compile it or to spread it over devices."""
    spread = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    return spread or unwrapped(module) is not module
