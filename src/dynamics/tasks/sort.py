"""Sorting: write the integers in ascending order."""

from __future__ import annotations

from torch import Tensor


class Sort:
    """``3 1 2`` becomes ``1 2 3``; repeated integers stay repeated."""

    name = "sort"

    def target(self, x: Tensor) -> Tensor:
        """Return ``x`` in ascending order, ``(examples, length)``."""
        return x.sort(-1).values
