"""Watch gradient attribution drift from causal importance while a PyTorch Lightning model trains.

Public names load when they are first used, so that opening and drawing a run imports neither torch nor lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamics.callbacks import GapTrackerCallback
    from dynamics.components import Component, ComponentMap, find_components
    from dynamics.faithfulness import Faithfulness, take_faithfulness
    from dynamics.measurements.gim import GIMRules, gim_backward
    from dynamics.measurements.perturbation import perturbation_curves
    from dynamics.measurements.token_attribution import attribute_tokens
    from dynamics.pairs import PairInteractions, pair_interactions
    from dynamics.probe import Probe
    from dynamics.schedules import Schedule
    from dynamics.snapshot import Snapshot, take_snapshot
    from dynamics.store import Run, Runs, open_run, open_runs
    from dynamics.synergy import Synergy, take_synergy

_HOMES = {
    "Component": "dynamics.components",
    "ComponentMap": "dynamics.components",
    "Faithfulness": "dynamics.faithfulness",
    "GIMRules": "dynamics.measurements.gim",
    "GapTrackerCallback": "dynamics.callbacks",
    "PairInteractions": "dynamics.pairs",
    "Probe": "dynamics.probe",
    "Run": "dynamics.store",
    "Runs": "dynamics.store",
    "Schedule": "dynamics.schedules",
    "Snapshot": "dynamics.snapshot",
    "Synergy": "dynamics.synergy",
    "attribute_tokens": "dynamics.measurements.token_attribution",
    "find_components": "dynamics.components",
    "gim_backward": "dynamics.measurements.gim",
    "open_run": "dynamics.store",
    "open_runs": "dynamics.store",
    "pair_interactions": "dynamics.pairs",
    "perturbation_curves": "dynamics.measurements.perturbation",
    "take_faithfulness": "dynamics.faithfulness",
    "take_snapshot": "dynamics.snapshot",
    "take_synergy": "dynamics.synergy",
}

__all__ = [
    "Component",
    "ComponentMap",
    "Faithfulness",
    "GIMRules",
    "GapTrackerCallback",
    "PairInteractions",
    "Probe",
    "Run",
    "Runs",
    "Schedule",
    "Snapshot",
    "Synergy",
    "attribute_tokens",
    "find_components",
    "gim_backward",
    "open_run",
    "open_runs",
    "pair_interactions",
    "perturbation_curves",
    "take_faithfulness",
    "take_snapshot",
    "take_synergy",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dynamics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
