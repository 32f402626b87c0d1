"""Which attention is a head's: calls that ran near its site, and the proof that they made what is read there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from dynamics.components import Component
from dynamics.errors import MeasurementError
from dynamics.measurements.attention_calls import AttentionCall
from dynamics.measurements.gim_mode import GIMMode
from dynamics.measurements.gim_reach import running_eagerly

LEAVE_OUT = "leave self_repair out of measurements=(...)"


@contextmanager
def watching_attention(model: nn.Module) -> Iterator[list[AttentionCall]]:
    """Collect every attention that runs inside the forward of ``model`` or of a submodule; nothing is changed.

    Attention is recognised as `gim_backward` recognises it: fused ``scaled_dot_product_attention``, a softmax between
    two products of activations, ``nn.MultiheadAttention``. Modules wrapped by ``torch.compile`` run uncompiled.

    Raises:
        MeasurementError: If a submodule is scripted, or compiled ahead of time.
    """
    calls: list[AttentionCall] = []
    mode = GIMMode(model, None, False, False, observer=calls.append)
    with ExitStack() as stack:
        stack.enter_context(running_eagerly(model, "self_repair"))
        stack.enter_context(mode.listening())
        stack.enter_context(mode)
        yield calls


def attention_of(component: Component, z: Tensor, calls: Sequence[AttentionCall]) -> tuple[AttentionCall, int]:
    """Return the call that made a head's output, and the index of the head in it.

    Looked at are the calls that ran in the nearest module around the head's site in which any ran. The head is the one
    at the place of its slice; its output there must equal z, number by number, since families may gate or reorder.

    Args:
        component: The head.
        z: What was read at its site, ``(examples, positions, d_head)``.
        calls: The calls of the forward pass.

    Raises:
        MeasurementError: If no attention was seen, or none that made z; if it dropped weights at random.
    """
    site = component.site
    around = site.module
    near = _inside(around, calls)
    while not near and around:
        around = around.rpartition(".")[0]
        near = _inside(around, calls)
    if not near:
        raise MeasurementError(
            f"{component.label}: no attention was seen to run in the model (looked for scaled_dot_product_attention, "
            "a softmax between two products of activations, nn.MultiheadAttention), so the self-repair of a head "
            f"cannot be measured; {LEAVE_OUT}."
        )
    for call in near:
        outputs = call.heads(len(z))
        if outputs is None or outputs.shape[-1] != z.shape[-1] or not call.unchanged:
            continue
        # Where every head is a module of its own, its call holds one head.
        head = 0 if outputs.shape[1] == 1 else site.start // z.shape[-1]
        if head < outputs.shape[1] and _same(outputs[:, head], z):
            if call.dropout > 0:
                raise MeasurementError(
                    f"{component.label}: the attention in {call.where} drops weights at random "
                    f"(dropout_p={call.dropout:g}) in evaluation mode, so its self-repair cannot be measured; "
                    f"{LEAVE_OUT}."
                )
            return call, head
    paths = ", ".join(dict.fromkeys(call.where for call in near))
    raise MeasurementError(
        f"{component.label}: the {site.point} of {site.module!r} from {site.start} on was expected to be what the "
        f"attention in {paths} made (softmax weights times values, {z.shape[-1]} entries a head, one head after the "
        f"other), and is not: is it gated, reordered, or another layer's? Name that output in the component map, or "
        f"{LEAVE_OUT}."
    )


def _inside(path: str, calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Return the calls that ran in a module or in its submodules."""
    return [call for call in calls if not path or call.path == path or call.path.startswith(f"{path}.")]


def _same(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors hold the same numbers, NaN included, once the first is cast as the model cast it."""
    a = a.to(b.dtype)
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()) if not torch.equal(a, b) else True
