"""Lay out a run file after the first snapshot: its axes and its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamics.store.schema import FAITHFULNESS, METRIC_ARRAYS, METRICS, SNAPSHOTS, SYNERGY, TRAIN, TRAIN_ARRAYS, Axis
from dynamics.store.writer import RunWriter

if TYPE_CHECKING:
    # For the type alone: the store must not import torch.
    from dynamics.faithfulness import Faithfulness
    from dynamics.snapshot import Snapshot
    from dynamics.synergy import Synergy


def create_run(
    path: str | Path,
    snapshot: Snapshot,
    metadata: Mapping[str, Any],
    target_counts: Sequence[int] | None = None,
    overwrite: bool = False,
    faithfulness: Faithfulness | None = None,
    synergy: Synergy | None = None,
) -> RunWriter:
    """Create a run file that holds snapshots like the given one, and open it for writing; it has no rows yet.

    Args:
        path: Where the file will be.
        snapshot: A snapshot; every later one must have the same arrays.
        metadata: Configuration and provenance, of anything that JSON can hold.
        target_counts: Target tokens of each example, if they are known.
        overwrite: Replace an existing file.
        faithfulness: What a row of faithfulness will look like; ``None``: the run will hold none.
        synergy: What a row of synergy will look like; ``None``: the run will hold none.

    Raises:
        RunFileError: If the file exists and may not be replaced, or cannot be written.
    """
    components = snapshot.components
    n_examples = sum(snapshot.batch_sizes)
    examples: dict[str, tuple[Sequence[int], str]] = {
        "example_batch": (
            [batch for batch, size in enumerate(snapshot.batch_sizes) for _ in range(size)],
            "probe batch that the example belongs to",
        )
    }
    if target_counts is not None:
        examples["example_targets"] = (list(target_counts), "number of target tokens of the example")
    axes = [
        Axis(
            "component",
            components.labels,
            "attention heads and MLPs, layer by layer",
            {
                "component_layer": ([c.layer for c in components], "layer, zero-based"),
                "component_kind": ([c.kind for c in components], "head or mlp"),
                "component_head": ([-1 if c.head is None else c.head for c in components], "head; -1 for an MLP"),
            },
        ),
        Axis("baseline", snapshot.baselines, "what an ablated output is replaced by"),
        Axis("method", snapshot.methods, "attribution method"),
        Axis("batch", list(range(len(snapshot.batch_sizes))), "probe batch"),
        Axis("example", list(range(n_examples)), "probe example, batch by batch", dict(examples)),
    ]
    groups = {
        SNAPSHOTS: [(snapshot.spec(name), snapshot[name]) for name in snapshot],
        TRAIN: [(spec, np.zeros(len(components), snapshot["loss"].dtype)) for spec in TRAIN_ARRAYS],
        METRICS: [(spec, np.zeros(0)) for spec in METRIC_ARRAYS],
    }
    if faithfulness is not None:
        axes += [
            Axis("ranking", faithfulness.rankings, "what the components are ranked by"),
            Axis("kept", list(range(len(components) + 1)), "number of components kept, the highest ranked ones"),
        ]
        groups[FAITHFULNESS] = [(faithfulness.spec(name), faithfulness[name]) for name in faithfulness]
    if synergy is not None:
        axes.append(Axis("set", synergy.sets, "components that are ablated together"))
        groups[SYNERGY] = [(synergy.spec(name), synergy[name]) for name in synergy]
    return RunWriter(path, axes, groups, metadata, overwrite)
