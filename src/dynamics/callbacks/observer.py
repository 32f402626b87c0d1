"""Measure a module in the middle of its training: with progress shown, and its logging refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import lightning as L
import numpy as np
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from dynamics.callbacks.logged_metrics import not_logging
from dynamics.callbacks.progress import snapshot_progress
from dynamics.callbacks.role_sets import role_sets
from dynamics.components import ComponentMap
from dynamics.components.base import Weights
from dynamics.errors import ConfigurationError
from dynamics.faithfulness import take_faithfulness
from dynamics.measurements.catalogue import MEASUREMENTS
from dynamics.measurements.gim import GIMRules
from dynamics.measurements.scorer import Progress
from dynamics.probe import Probe
from dynamics.rankings import possible_rankings
from dynamics.snapshot import Snapshot, take_snapshot
from dynamics.synergy import take_synergy, with_controls

Taken = TypeVar("Taken", bound=Snapshot)


@dataclass
class Observer:
    """What is measured, and how.

    Attributes:
        measurements: Names of measurements.
        baselines: Ablation baselines.
        methods: Attribution methods.
        weights: Which weights count as a component's own.
        rules: Backward rules of the attribution method ``gim``.
        ig_steps: Points at which the attribution method ``ig`` takes a gradient.
        self_repair_threshold: Nats that a position must contribute to make an attention row count in ``self_repair``.
        at_work: Whether a measurement was begun and has not come to its end: it is running, was interrupted or failed.
    """

    measurements: tuple[str, ...]
    baselines: tuple[str, ...]
    methods: tuple[str, ...]
    weights: Weights
    rules: GIMRules
    ig_steps: int
    self_repair_threshold: float
    at_work: bool = False
    _warned: bool = False

    def possible_rankings(self) -> tuple[str, ...]:
        """Return the rankings that the snapshots will allow."""
        arrays = [spec.name for name in self.measurements for spec in MEASUREMENTS[name].arrays]
        return possible_rankings(arrays, self.baselines, self.methods)

    def settings(self) -> dict[str, Any]:
        """Return what the run file should say of it."""
        return {
            "measurements": list(self.measurements),
            "weights": self.weights,
            "rules": vars(self.rules),
            "ig_steps": self.ig_steps,
            "self_repair_threshold": self.self_repair_threshold,
        }

    def snapshot(
        self, trainer: L.Trainer, module: L.LightningModule, probe: Probe, components: ComponentMap
    ) -> Snapshot:
        """Take a snapshot of the module as it is, and warn the first time that a loss is not finite."""
        snapshot = self._observe(
            trainer,
            module,
            "snapshot",
            lambda progress: take_snapshot(
                module,
                probe,
                components,
                self.measurements,
                self.baselines,
                weights=self.weights,
                progress=progress,
                rules=self.rules,
                methods=self.methods,
                ig_steps=self.ig_steps,
                self_repair_threshold=self.self_repair_threshold,
            ),
        )
        if not self._warned and not np.isfinite(snapshot["loss"]).all():
            self._warned = True
            warnings.warn(
                f"step {trainer.global_step}: the probe's loss is not finite for "
                f"{(~np.isfinite(snapshot['loss'])).sum()} of {len(snapshot['loss'])} examples. It is recorded as it "
                "is, and training goes on.",
                RuntimeWarning,
                stacklevel=2,
            )
        return snapshot

    def faithfulness(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        probe: Probe,
        snapshot: Snapshot,
        rankings: tuple[str, ...],
    ) -> Snapshot:
        """Measure the faithfulness of rankings by a snapshot of the module as it is."""
        return self._observe(
            trainer,
            module,
            "faithfulness",
            lambda progress: take_faithfulness(module, probe, snapshot, rankings, progress),
        )

    def synergy(self, trainer: L.Trainer, module: L.LightningModule, probe: Probe, snapshot: Snapshot) -> Snapshot:
        """Ablate the Bloats and the Heroes of a snapshot of the module as it is, each together, and random sets."""
        roles, score = role_sets(snapshot)
        components = snapshot.components
        sets = with_controls(roles, len(components))
        return self._observe(
            trainer,
            module,
            "synergy",
            lambda progress: take_synergy(module, probe, sets, components, score, progress),
        )

    def _observe(
        self, trainer: L.Trainer, module: L.LightningModule, what: str, take: Callable[[Progress | None], Taken]
    ) -> Taken:
        self.at_work = True
        title = f"{what} at step {trainer.global_step}"
        with snapshot_progress(trainer, title) as progress, not_logging(module):
            taken = take(progress)
        self.at_work = False
        return taken


def check_strategy(trainer: L.Trainer) -> None:
    """Raise a `ConfigurationError` if the trainer spreads the parameters over processes: none sees the whole model."""
    if isinstance(trainer.strategy, (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)):
        raise ConfigurationError(
            f"GapTrackerCallback cannot measure under {type(trainer.strategy).__name__}, which shards parameters; "
            "train with strategy='auto' or 'ddp', or measure saved checkpoints with take_snapshot."
        )
