"""The run file's format: its groups and axes. `docs/file-format.md` says the same in prose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dynamics.arrays import ArraySpec

FORMAT = "gap-dynamics run"
VERSION = "1.1"
"""``major.minor``. A reader reads every minor version of its own major version.

1.1 added the groups ``faithfulness`` and ``synergy``.
"""

SNAPSHOTS, TRAIN, METRICS = "snapshots", "train", "metrics"
FAITHFULNESS, SYNERGY = "faithfulness", "synergy"
"""The groups, each with a ``step`` axis of its own; the last two only where they were asked for."""

METRIC_NAME_BYTES = 128
"""Room for a metric's name: SWMR cannot write strings of variable length."""

STEP_LONG_NAME = "optimizer steps taken"

TRAIN_ARRAYS = (
    ArraySpec(
        "gradient_norm",
        ("component",),
        "nat",
        "norm of the training gradient at the component's weights, before clipping, over sqrt(number of weights)",
    ),
)
METRIC_ARRAYS = (ArraySpec("value", ("metric",), "1", "what the training logged; NaN: not logged at this step"),)


@dataclass(frozen=True)
class Axis:
    """A labelled axis that the groups share.

    Attributes:
        name: Name of the axis and of the array of its labels.
        labels: The labels, all text or all whole numbers.
        long_name: What the axis runs over.
        notes: Further arrays along the axis, by name: (values, meaning).
    """

    name: str
    labels: Sequence[str] | Sequence[int]
    long_name: str
    notes: dict[str, tuple[Sequence[str] | Sequence[int], str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentInfo:
    """A component as the run file names it.

    Attributes:
        label: ``L0H3``, ``L0MLP``.
        layer: Zero-based layer.
        kind: ``"head"`` or ``"mlp"``.
        head: Zero-based head; ``None`` for an MLP.
    """

    label: str
    layer: int
    kind: str
    head: int | None
