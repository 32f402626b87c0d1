"""Measurements with a schedule of their own that build on the snapshot of the same step: faithfulness and synergy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import lightning as L

from dynamics.callbacks.observer import Observer
from dynamics.callbacks.role_sets import SETS, check_role_sets
from dynamics.faithfulness import blank_faithfulness
from dynamics.probe import Probe
from dynamics.schedules import Schedule
from dynamics.snapshot import Snapshot
from dynamics.store.schema import FAITHFULNESS, SYNERGY
from dynamics.synergy import blank_synergy, set_names


@dataclass
class Beside:
    """A measurement beside snapshots.

    Attributes:
        group: Its group in the run file.
        schedule: Optimizer steps at which to take it.
        take: The measurement, given the snapshot of the same step.
        blank: What a row of it will look like, given the first snapshot.
        last: Step at which it was last taken.
    """

    group: str
    schedule: Schedule
    take: Callable[[L.Trainer, L.LightningModule, Probe, Snapshot], Snapshot]
    blank: Callable[[Snapshot], Snapshot]
    last: int = -1


def measured_beside(
    observer: Observer, faithfulness: Schedule | None, rankings: tuple[str, ...], synergy: Schedule | None
) -> list[Beside]:
    """Return what is measured beside snapshots, for schedules of which any may be ``None``: never.

    Raises:
        ConfigurationError: If synergy lacks the measurements that tell Bloats and Heroes.
    """
    found = []
    if faithfulness is not None:
        take = partial(observer.faithfulness, rankings=rankings)
        found.append(Beside(FAITHFULNESS, faithfulness, take, partial(blank_faithfulness, rankings=rankings)))
    if synergy is not None:
        check_role_sets(observer.measurements, observer.baselines)
        blank = partial(blank_synergy, sets=set_names(tuple(SETS)))
        found.append(Beside(SYNERGY, synergy, observer.synergy, blank))
    return found
