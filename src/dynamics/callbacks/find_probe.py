"""Where a training's probe comes from, if the tracker was given none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning as L
import torch

from dynamics.errors import ProbeError
from dynamics.probe import Probe


def find_probe(given: Probe | Iterable[Any] | None, trainer: L.Trainer, module: L.LightningModule) -> Probe:
    """Return the given probe or batches as a probe, or else what ``probe()`` of the data module or the module gives.

    Raises:
        ProbeError: If none is given and neither has one.
    """
    if isinstance(given, Probe):
        return given
    if given is not None:
        return Probe(given)
    for owner in (getattr(trainer, "datamodule", None), module):
        ask = getattr(owner, "probe", None)
        # A layer that happens to be called probe is not the question.
        if callable(ask) and not isinstance(ask, torch.nn.Module):
            answer = ask()
            return answer if isinstance(answer, Probe) else Probe(answer)
    raise ProbeError(
        "GapTrackerCallback has no probe: expected probe=... or a probe() method on the data module or the module, "
        "and found neither. Pass a list of batches with input_ids and labels that the model is not trained on."
    )
