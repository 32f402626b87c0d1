"""The callback: when to measure, and where the results go. What is measured lies elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng

from dynamics.callbacks.averaging import go_before_averaging, holds_averages
from dynamics.callbacks.beside import Beside, measured_beside
from dynamics.callbacks.find_probe import find_probe
from dynamics.callbacks.first_rank import on_first_rank
from dynamics.callbacks.gap_summary import send_summary
from dynamics.callbacks.logged_metrics import PREFIX, LoggedMetrics
from dynamics.callbacks.observer import Observer, check_strategy
from dynamics.callbacks.outbox import OnWriteError, Outbox
from dynamics.callbacks.run_metadata import run_metadata
from dynamics.components import ComponentMap, find_components
from dynamics.components.base import Weights, check_weights
from dynamics.errors import RunFileError
from dynamics.measurements.ablation import BASELINES
from dynamics.measurements.attribution import METHODS
from dynamics.measurements.gim import GIMRules
from dynamics.measurements.gradient_norm import training_gradient_norm
from dynamics.measurements.integrated_gradients import STEPS, check_steps
from dynamics.measurements.self_repair import THRESHOLD, check_threshold
from dynamics.probe import Probe
from dynamics.rankings import select_rankings
from dynamics.schedules import Schedule
from dynamics.snapshot import Snapshot, select_baselines, select_measurements, select_methods
from dynamics.store import RunWriter, check_target, create_run
from dynamics.store.schema import SNAPSHOTS, TRAIN

ScheduleLike = Schedule | int | dict[str, Any] | list[Any]


class GapTrackerCallback(L.Callback):
    """Track gradient attribution against causal importance while a model trains, into one HDF5 file.

    A snapshot is taken before the first optimizer step, after every scheduled one, and at the end, also when training
    is interrupted or fails. Training with the callback ends in the same bits as without it. Under data parallelism
    rank 0 measures and writes while the others wait.

    Args:
        path: The run file to create; its folder is made.
        probe: What to measure on: a `Probe`, any iterable of batches (see `Probe`), or ``None`` to ask the data
            module's, then the module's ``probe()``.
        schedule: Optimizer steps at which to take a snapshot: a `Schedule`, or what `Schedule.from_config` reads.
        measurements: ``"all"``, or names out of ``weight_norm``, ``gradient_norm``, ``attribution``, ``self_repair``,
            ``ablation``. ``self_repair`` refuses a model whose attention it does not find: leave it out there.
        train_gradients: Optimizer steps at which to record the norm of the *training* gradient per component, before
            clipping: it costs no backward pass, so it can be much denser. The gradient recorded at step s is the one
            that leads from step s to s + 1.
        weights: A component's own weights: ``"value_out"`` or ``"all"``.
        baselines: Ablation baselines, out of ``"mean"`` and ``"zero"``.
        rules: Backward rules of the attribution method ``gim``; default: all three, with temperature 2.
        overwrite: Replace an existing file at ``path``.
        log_metrics: Send rho and the role counts by accuracy, and rho by loss, to the trainer's loggers, as ``gap/…``;
            ``gap/rho`` (by accuracy; NaN while that is 0) and ``gap/rho_loss`` to the progress bar.
        components: The components; default: what `find_components` finds in the module.
        metadata: Anything that JSON can hold, to be kept in the file's metadata.
        methods: Attribution methods, out of ``"gradient"``, ``"gim"`` and ``"ig"``. GIM refuses a model in which one of
            its rules finds nothing to act on, such as one without norms: switch the rule off, or leave the method out.
        ig_steps: Points at which ``ig`` (integrated gradients) takes a gradient.
        faithfulness: Optimizer steps at which to measure, beside a snapshot, how well the model does with only its
            highest ranked components (`take_faithfulness`); ``None``: never. It is measured at the end of training
            too, unless an exception ended it, and never before the first step. A row costs about one forward pass of
            the probe per ranking and component.
        faithfulness_rankings: What ranks the components, out of ``gradient_norm``, the ``methods`` and their
            magnitudes such as ``|gim|``, ``ablation`` and ``random``. Default: all but the magnitudes.
        self_repair_threshold: Nats that a position must contribute to be one of the two that make an attention row
            count in ``self_repair``.
        synergy: Optimizer steps at which to ablate, beside a snapshot, all its Bloats together, all its Heroes
            together, and random sets of the same sizes (`take_synergy`); ``None``: never. Like faithfulness it is
            measured at the end of training too. A row costs 23 forward passes of the probe.
        on_write_error: ``"continue"``: if a row cannot be written (a full disk), warn, keep it in memory and try again
            at the next one. ``"raise"``: stop the training with a `RunFileError`.

    Raises:
        ConfigurationError: If synergy lacks the measurements that tell Bloats and Heroes.
        RunFileError: At the start of training, if the file exists or its folder cannot be written.
        ProbeError: At the start of training, if there is no probe or it cannot be scored.
        ComponentError: At the start of training, if the module's components are not found.
        ConfigurationError: At the start of training, under a strategy that shards parameters.
    """

    def __init__(
        self,
        path: str | Path = "run.h5",
        probe: Probe | Iterable[Any] | None = None,
        schedule: ScheduleLike = Schedule.every(500),
        measurements: str | Sequence[str] = "all",
        train_gradients: ScheduleLike = Schedule.every(50),
        weights: Weights = "value_out",
        baselines: str | Sequence[str] = BASELINES,
        rules: GIMRules | None = None,
        overwrite: bool = False,
        log_metrics: bool = True,
        components: ComponentMap | None = None,
        metadata: Mapping[str, Any] | None = None,
        methods: str | Sequence[str] = METHODS,
        ig_steps: int = STEPS,
        faithfulness: ScheduleLike | None = Schedule.every(5000),
        faithfulness_rankings: str | Sequence[str] | None = None,
        self_repair_threshold: float = THRESHOLD,
        synergy: ScheduleLike | None = None,
        on_write_error: OnWriteError = "continue",
    ) -> None:
        super().__init__()
        self.path, self.overwrite, self.log_metrics = Path(path), overwrite, log_metrics
        self.schedule = Schedule.from_config(schedule)
        self.train_gradients = Schedule.from_config(train_gradients)
        self.faithfulness, self.synergy = (
            None if steps is None else Schedule.from_config(steps) for steps in (faithfulness, synergy)
        )
        self.observer = Observer(
            select_measurements(measurements),
            select_baselines(baselines),
            select_methods(methods),
            check_weights(weights),
            GIMRules() if rules is None else rules,
            check_steps(ig_steps),
            check_threshold(self_repair_threshold),
        )
        self.rankings = select_rankings(faithfulness_rankings, self.observer.possible_rankings())
        self._beside = measured_beside(self.observer, self.faithfulness, self.rankings, self.synergy)
        self.components, self.metadata = components, dict(metadata or {})
        self._probe = probe
        self._writer: RunWriter | None = None
        self._outbox = Outbox(on_write_error)
        self._metrics = LoggedMetrics()
        self._snapshot: Snapshot | None = None
        self._snapshot_step = self._seen_step = self._gradient_step = -1
        self._used = False

    # -- the trainer's hooks -------------------------------------------------------------------------------------

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse what cannot work before anything is computed."""
        if stage != "fit" or _only_a_trial(trainer):
            return
        check_strategy(trainer)
        go_before_averaging(trainer, self)
        if self._used:
            raise RunFileError(
                f"this GapTrackerCallback has already written {self.path}; for another call of fit, "
                "make a new callback with another path."
            )
        on_first_rank(trainer, lambda: check_target(self.path, self.overwrite))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the first snapshot and create the file."""
        if _only_a_trial(trainer):
            rank_zero_info("GapTrackerCallback: fast_dev_run takes no snapshots and writes no file.")
            return
        on_first_rank(trainer, lambda: self._begin(trainer, pl_module))
        self._used, self._seen_step = True, trainer.global_step

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Record the training gradient: accumulated, unscaled, not clipped yet."""
        step, before = trainer.global_step, self._gradient_step
        if self._writer is None:
            return
        self._gradient_step = max(step, before)
        # An optimizer that steps twice on one batch (LBFGS) is looked at once.
        if not self.train_gradients.within(before, step):
            return
        assert self.components is not None
        norms = training_gradient_norm(pl_module, self.components, self.observer.weights, optimizer)
        if not norms.isnan().all() or len(trainer.optimizers) == 1:
            row = {"gradient_norm": norms.cpu().numpy()}
            self._outbox.put(partial(self._writer.append, TRAIN, step, row))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take a snapshot if an optimizer step was taken and one was due."""
        step, before = trainer.global_step, self._seen_step
        if not self._used:
            return
        # Under accumulation the step stands still for some batches, and then nothing is due.
        self._seen_step = step
        due = [beside for beside in self._beside if beside.schedule.within(before, step)]
        take = bool(due) or self.schedule.within(before, step)
        if take or self.train_gradients.within(before, step):
            self._record_metrics(trainer)
        if take:
            on_first_rank(trainer, lambda: self._take(trainer, pl_module, due))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the validation metrics."""
        if not trainer.sanity_checking:
            self._record_metrics(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the metrics that the epoch before was summed up in."""
        self._record_metrics(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the last snapshot and close the file."""
        on_first_rank(trainer, lambda: self._finish(trainer, pl_module, finished=True))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the only snapshot of a training without a step (``max_steps=0``), which Lightning does not start."""
        if not self._used and not _only_a_trial(trainer):
            self.on_train_start(trainer, pl_module)
            self.on_train_end(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Take a last snapshot of an interrupted training and close the file."""
        try:
            # A measurement that was interrupted, or failed, is not started again.
            snapshot = not self.observer.at_work and not holds_averages(trainer)
            self._finish(trainer, pl_module, finished=False, snapshot=snapshot)
        except Exception as error:
            # The exception that stopped the training is the one to be seen.
            warnings.warn(f"the last snapshot of {self.path} could not be taken: {error}", RuntimeWarning, stacklevel=2)

    # -- the work ------------------------------------------------------------------------------------------------

    def _begin(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with isolate_rng():
            # A probe() of the user's may draw from the global generators.
            self._probe = find_probe(self._probe, trainer, pl_module)
        if self.components is None:
            self.components = find_components(pl_module)
        snapshot = self._measure(trainer, pl_module)
        metadata = {
            **run_metadata(trainer, pl_module, self.components, self._probe, snapshot),
            "tracker": {
                "schedule": repr(self.schedule),
                "train_gradients": repr(self.train_gradients),
                "faithfulness": None if self.faithfulness is None else repr(self.faithfulness),
                "synergy": None if self.synergy is None else repr(self.synergy),
                **self.observer.settings(),
            },
            **self.metadata,
        }
        blanks: dict[str, Any] = {beside.group: beside.blank(snapshot) for beside in self._beside}
        targets = self._probe.target_counts()
        self._writer = create_run(self.path, snapshot, metadata, targets, self.overwrite, **blanks)
        self._gradient_step = trainer.global_step - 1
        self._write_snapshot(trainer, snapshot)

    def _measure(self, trainer: L.Trainer, module: L.LightningModule) -> Snapshot:
        assert isinstance(self._probe, Probe)
        assert self.components is not None
        return self.observer.snapshot(trainer, module, self._probe, self.components)

    def _take(self, trainer: L.Trainer, module: L.LightningModule, due: Sequence[Beside]) -> None:
        if self._writer is None:  # closed by hand
            return
        snapshot = self._measure(trainer, module)
        summary = self._write_snapshot(trainer, snapshot)
        # The progress bar only: the loggers have got the values, at their exact step.
        for name in (f"{PREFIX}rho", f"{PREFIX}rho_loss") if summary else ():
            module.log(name, summary[name], prog_bar=True, logger=False, on_step=True, on_epoch=False, batch_size=1)
        for beside in due:
            self._take_beside(beside, trainer, module)

    def _take_beside(self, beside: Beside, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Measure what goes beside the snapshot that was taken at this step, and write it."""
        assert isinstance(self._probe, Probe)
        assert self._snapshot is not None
        assert self._writer is not None
        beside.last = step = trainer.global_step
        row = beside.take(trainer, module, self._probe, self._snapshot)
        self._outbox.put(partial(self._writer.append, beside.group, step, row))

    def _write_snapshot(self, trainer: L.Trainer, snapshot: Snapshot) -> dict[str, float]:
        """Write a snapshot, and send its summary to the loggers and back."""
        assert self._writer is not None
        self._snapshot_step = step = trainer.global_step
        if self._beside:
            self._snapshot = snapshot
        self._outbox.put(partial(self._writer.append, SNAPSHOTS, step, snapshot))
        return send_summary(trainer, snapshot) if self.log_metrics else {}

    def _record_metrics(self, trainer: L.Trainer) -> None:
        if self._writer is not None and (values := self._metrics.new(trainer)):
            self._outbox.put(partial(self._writer.append_metrics, trainer.global_step, values))

    def _finish(self, trainer: L.Trainer, module: L.LightningModule, finished: bool, snapshot: bool = True) -> None:
        if self._writer is None:
            return
        complete = False
        try:
            self._record_metrics(trainer)
            if snapshot and trainer.global_step != self._snapshot_step:
                self._write_snapshot(trainer, self._measure(trainer, module))
            for beside in self._beside if finished else ():
                if trainer.global_step != beside.last:
                    self._take_beside(beside, trainer, module)
            complete = finished
        finally:
            self.close(complete)

    def close(self, finished: bool = False) -> None:
        """Write what is still waiting and close the file; called at the end of training.

        If rows could not be written (a full disk), they stay in memory and the file stays open: make room and call
        this again.

        Args:
            finished: Whether the training came to its end.
        """
        if self._writer is not None and self._outbox.close(self._writer, finished):
            self._writer = self._snapshot = None


def _only_a_trial(trainer: L.Trainer) -> bool:
    return bool(getattr(trainer, "fast_dev_run", False))
