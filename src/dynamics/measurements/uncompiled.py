"""Run what `torch.compile` made uncompiled for a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_users = 0
_stance: Any = None


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let compiled modules and functions run as the Python code that they were made from.

    Compiled code does not see hooks that are added later, and compiling it anew for every measurement would use up
    what PyTorch allows it. The choice is the whole process's: compiled code of other threads runs uncompiled meanwhile.
    """
    global _stance, _users
    # Functions may be compiled as well, and fused attention of the flexible kind compiles itself.
    compiled = any(name in sys.modules for name in ("torch._dynamo", "torch.nn.attention.flex_attention"))
    if not compiled or not hasattr(torch.compiler, "set_stance"):  # before PyTorch 2.6
        yield
        return
    # Counting the users keeps overlapping threads from restoring it too early, or to what another of them had set.
    with _lock:
        if _users == 0:
            _stance = torch.compiler.set_stance("force_eager")
            _stance.__enter__()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _stance.__exit__(None, None, None)
                _stance = None
