"""Hold a model still while it is measured: in evaluation mode, and afterwards as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from dynamics.measurements.multihead import without_fast_path
from dynamics.measurements.uncompiled import uncompiled


@contextmanager
def held_still(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode with autograd on; afterwards restore its state and that of all RNGs.

    Random numbers drawn inside (by an objective, say) are taken back: torch (CPU and initialised GPUs), numpy, python.
    So are changes of buffers and attributes, for modules that count, collect or cache in evaluation mode too, and of
    embeddings that keep their rows below a norm. PyTorch's fast path for ``nn.TransformerEncoderLayer`` is off inside,
    so that clean and ablated runs compute alike.
    """
    state = _State(model)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    rng = torch.random.fork_rng(devices=devices)
    with rng, torch.inference_mode(False), torch.enable_grad(), without_fast_path(), uncompiled():
        try:
            for module in model.modules():
                # Not model.eval(): a module may do work there, as LoRA layers do that merge their weights.
                module.training = False
                # PyTorch ignores hooks inside a module that was compiled in place: it is measured uncompiled.
                if module._compiled_call_impl:
                    module._compiled_call_impl = None
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            state.restore()


class _State:
    """What a forward pass may change of a model, as it is now."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._flags = [(module, module.training) for module in modules]
        # The containers of parameters, buffers and hooks are attributes, too; they stay the same objects.
        self._attributes = [(module, dict(vars(module))) for module in modules]
        self._buffers = [
            (module, name, buffer, buffer.clone() if _is_plain(buffer) else None)
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]
        # torch.nn.functional.embedding shortens rows in place when it reads them.
        self._embeddings = [
            (module.weight, module.weight.detach().clone())
            for module in modules
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        ]

    def restore(self) -> None:
        for module, training in self._flags:
            module.training = training
        for module, before in self._attributes:
            now = vars(module)
            for name in now.keys() - before.keys():
                del now[name]
            now.update(before)
        with torch.no_grad():
            for module, name, buffer, content in self._buffers:
                _put_back(buffer, content)
                module._buffers[name] = buffer
            for weight, content in self._embeddings:
                _put_back(weight, content)


def _is_plain(tensor: Tensor) -> bool:
    """Say whether a tensor can be compared: sparse ones cannot, nor those without data."""
    return tensor.layout is torch.strided and not tensor.is_meta


def _put_back(tensor: Tensor, content: Tensor | None) -> None:
    # Expanded buffers cannot be written to, and as a rule nothing has changed.
    if content is not None and not torch.equal(tensor, content):
        tensor.copy_(content)
