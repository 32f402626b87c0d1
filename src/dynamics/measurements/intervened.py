"""The probe's scores under interventions: which engine computes them, and over which batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements import hook_loop
from dynamics.measurements.engine import Engine, Intervention
from dynamics.measurements.scorer import Scorer

ENGINES: dict[str, Callable[[Scorer, ComponentMap], Engine | str]] = {"hooks": hook_loop.prepare}
"""The engines, the fastest first; the last one suits everything."""


def choose_engine(score: Scorer, components: ComponentMap, engine: str = "auto") -> Engine:
    """Return the named engine, or with ``"auto"`` the fastest that suits model, objective and probe.

    Raises:
        MeasurementError: If there is no engine of that name, or it does not suit.
    """
    if engine not in ("auto", *ENGINES):
        raise MeasurementError(f"engine must be among auto, {', '.join(ENGINES)}; got {engine!r}.")
    for name, prepare in ENGINES.items():
        if engine not in ("auto", name):
            continue
        prepared = prepare(score, components)
        if not isinstance(prepared, str):
            return prepared
        if engine == name:
            raise MeasurementError(f"the engine {name!r} does not suit here: {prepared}. Use engine='auto'.")
    raise AssertionError("the last engine suits everything")


def intervened_scores(
    score: Scorer, components: ComponentMap, interventions: Sequence[Intervention], engine: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Score the probe under each intervention: the outputs of its components replaced by constants, together.

    Args:
        score: The bound objective.
        components: The components.
        interventions: By component index, the constant ``(width,)`` that takes the place of its output at every
            position; at least one component each.
        engine: ``"auto"``, or the name of an engine.

    Returns:
        Loss in nats and exact match (bool), both ``(interventions, examples)``.

    Raises:
        MeasurementError: If a module was never called, so that nothing was replaced; if the engine does not suit.
    """
    chosen = choose_engine(score, components, engine)
    with torch.no_grad():
        losses, matches = zip(*(chosen(batch, interventions) for batch in score.batches), strict=True)
    return torch.cat(losses, -1), torch.cat(matches, -1)
