"""What the run file says about the training it came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import lightning as L

from dynamics.components import ComponentMap
from dynamics.probe import Probe
from dynamics.snapshot import Snapshot
from dynamics.store import provenance


def run_metadata(
    trainer: L.Trainer, module: L.LightningModule, components: ComponentMap, probe: Probe, snapshot: Snapshot
) -> dict[str, Any]:
    """Return provenance, seed, configuration of module, data and trainer, and the identity of probe and components."""
    datamodule = getattr(trainer, "datamodule", None)
    seed = os.environ.get("PL_GLOBAL_SEED")
    return {
        **provenance(),
        "seed": None if seed is None else int(seed),
        "module": _described(module),
        "datamodule": None if datamodule is None else _described(datamodule),
        "network": repr(components.network(module)),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "device": str(module.device),
        "trainer": {
            "max_steps": trainer.max_steps,
            "max_epochs": trainer.max_epochs,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "gradient_clip_val": trainer.gradient_clip_val,
            "precision": trainer.precision,
            "strategy": type(trainer.strategy).__name__,
            "world_size": trainer.world_size,
        },
        "probe": {
            "batches": len(probe),
            "examples": sum(snapshot.batch_sizes),
            "fingerprint": probe.fingerprint(),
        },
    }


def _described(configured: Any) -> dict[str, Any]:
    hparams: Mapping[str, Any] = configured.hparams
    return {"class": type(configured).__name__, "hyperparameters": dict(hparams)}
