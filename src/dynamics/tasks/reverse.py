"""Sequence reversal: write the integers in the opposite order."""

from __future__ import annotations

from torch import Tensor


class Reverse:
    """``3 1 2`` becomes ``2 1 3``."""

    name = "reverse"

    def target(self, x: Tensor) -> Tensor:
        """Return ``x`` with its positions in opposite order, ``(examples, length)``."""
        return x.flip(-1)
