"""Description of a named array: its axes, unit and meaning. Free of torch, so that reading a run stays light."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArraySpec:
    """What a named array is.

    Attributes:
        name: Its name in a snapshot and in the run file.
        dims: Names of its axes, in order.
        units: Unit, in UDUNITS style; ``"1"`` for pure numbers.
        long_name: What it is, in a line.
    """

    name: str
    dims: tuple[str, ...]
    units: str
    long_name: str
