"""What GIM cannot reach, and how it notices: compiled code, opaque operators, norms and attention of other makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from dynamics.errors import MeasurementError
from dynamics.measurements.gim_attention import FusedAttention
from dynamics.measurements.uncompiled import uncompiled

_OFF = {
    "attention": "GIMRules(temperature=None, split_products=False)",
    "norm": "GIMRules(freeze_norm=False)",
    "product": "GIMRules(split_products=False)",
}

# Operators below the ones that the rules know; reached only by calling them directly.
_BELOW = {
    "native_layer_norm": "norm",
    "fused_rms_norm": "norm",
    "flex_attention": "attention",
    "native_multi_head_attention": "attention",
    "flash_attention_forward": "attention",
    "efficient_attention_forward": "attention",
    "scaled_dot_product_flash_attention": "attention",
    "scaled_dot_product_flash_attention_for_cpu": "attention",
    "scaled_dot_product_efficient_attention": "attention",
    "scaled_dot_product_cudnn_attention": "attention",
    "scaled_dot_product_attention_math": "attention",
}


def unreachable(where: str, what: str, rule: str) -> MeasurementError:
    """Return the error for something in a module that a rule would have to act on and cannot."""
    return MeasurementError(
        f"gim_backward cannot reach inside {where}: {what}. Use PyTorch's own operators there "
        f"(scaled_dot_product_attention, softmax, layer_norm, rms_norm), or switch the rule off: {_OFF[rule]}."
    )


def operator_rule(name: str) -> str | None:
    """Return the rule (``attention`` or ``norm``) that an operator below the known ones escapes, or ``None``."""
    return _BELOW.get(name)


def custom_operator(function: Any) -> str | None:
    """Return the qualified name of an operator that is not PyTorch's own, or ``None``."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        name = function._qualified_op_name
    elif isinstance(function, torch._ops.OperatorBase):
        name = str(function.name())
    else:
        return None
    return None if name.split("::")[0] in ("aten", "prims", "higher_order") else name


def _is_leaf_path(node: Any) -> bool:
    """Say whether an edge of the graph comes from a leaf alone: a parameter, or a view or cast of one."""
    while node is not None and type(node).__name__ != "AccumulateGrad":
        edges = [edge for edge, _ in node.next_functions if edge is not None]
        if len(edges) != 1:
            return False
        node = edges[0]
    return True


def custom_function(tensor: Tensor) -> tuple[str, int] | None:
    """Return the name of the custom ``autograd.Function`` that made a tensor, and how many activations entered it."""
    node = tensor.grad_fn
    if not isinstance(node, BackwardCFunction):
        return None
    function = type(node)._forward_cls
    # PyTorch's own (checkpointing, distributed wrappers) hold no product of activations of theirs.
    if function is FusedAttention or function.__module__.split(".")[0] == "torch":
        return None
    return function.__name__, sum(not _is_leaf_path(edge) for edge, _ in node.next_functions)


def in_checkpoint() -> bool:
    """Say whether activation checkpointing is running the code that asks."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


@contextmanager
def running_eagerly(model: nn.Module, what: str = "gim_backward") -> Iterator[None]:
    """Run what ``torch.compile`` wrapped uncompiled; refuse modules whose Python code is gone.

    Args:
        model: The model.
        what: What needs it, for messages.

    Raises:
        MeasurementError: If a submodule is scripted, or compiled ahead of time.
    """
    for path, module in model.named_modules():
        where = f"{path!r} ({type(module).__name__})" if path else f"the model ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise MeasurementError(f"{what} cannot reach inside {where}: it is scripted. Pass the eager module.")
        if _compiled(module):
            if type(getattr(module, "forward", None)).__name__ == "AOTCompiledModel":
                raise MeasurementError(
                    f"{what} cannot reach inside {where}: it was compiled ahead of time. Pass the eager module."
                )
            if not hasattr(torch.compiler, "set_stance"):
                raise MeasurementError(
                    f"{what} cannot unwrap {where}, which torch.compile made, before PyTorch 2.6. Pass the "
                    "module that was compiled."
                )
    with uncompiled():
        yield


def looks_like_attention(module: nn.Module) -> bool:
    """Say whether a module is attention by its name and holds more than one projection."""
    name = type(module).__name__.lower()
    return ("attention" in name or "attn" in name) and sum(p.ndim >= 2 for p in module.parameters()) > 1


_NOT_FROZEN = (nn.GroupNorm, nn.LocalResponseNorm, nn.CrossMapLRN2d, nn.modules.batchnorm._NormBase)


def may_be_norm(module: nn.Module) -> bool:
    """Say whether a module might be a LayerNorm or RMSNorm: by its name, or by holding vectors alone."""
    if isinstance(module, _NOT_FROZEN) or any(True for _ in module.children()):
        return False
    shapes = [p.ndim for p in module.parameters(recurse=False)]
    return not any(n > 1 for n in shapes) and ("norm" in type(module).__name__.lower() or bool(shapes))


@torch.no_grad()
def behaves_like_norm(module: nn.Module, x: Any) -> bool:
    """Try a module on random numbers: a norm's output does not change when its input is doubled.

    Args:
        module: The module; called without its hooks.
        x: An input that it was called with, for width, dtype and device.

    Returns:
        Whether it is one. A module that cannot be called with a single tensor is not.
    """
    if not (isinstance(x, Tensor) and x.is_floating_point() and x.ndim):
        return False
    numbers = torch.randn(4, x.shape[-1], generator=torch.Generator().manual_seed(0)).to(x) * 10
    try:
        once, twice = module.forward(numbers), module.forward(numbers * 2)
    except Exception:  # whatever it needs, it is not this call
        return False
    if not isinstance(once, Tensor) or once.shape != numbers.shape or not once.is_floating_point():
        return False
    difference = (once.float() - twice.float()).norm()
    return bool(difference <= 0.02 * twice.float().norm()) and bool(twice.float().std() > 0)
