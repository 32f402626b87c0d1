"""Run what `torch.compile` made uncompiled for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dynamics.measurements.process_wide import ProcessWide

_eager = ProcessWide(lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let compiled modules and functions run as the Python code that they were made from.

    Compiled code does not see hooks that are added later, and compiling it anew for every measurement would use up
    what PyTorch allows it. The choice is the whole process's: compiled code of other threads runs uncompiled meanwhile.
    """
    # Functions may be compiled as well, and fused attention of the flexible kind compiles itself.
    compiled = any(name in sys.modules for name in ("torch._dynamo", "torch.nn.attention.flex_attention"))
    if not compiled or not hasattr(torch.compiler, "set_stance"):  # before PyTorch 2.6
        yield
        return
    with _eager.changed():
        yield
