"""The unablated model on the probe: losses, exact matches, and the mean output of every component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynamics.components import Component, ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.interventions import Outputs, reading
from dynamics.measurements.scorer import Scorer


@dataclass(frozen=True)
class CleanRun:
    """Results of the unablated model.

    Attributes:
        loss: Nats, ``(examples,)``.
        exact_match: Bool, ``(examples,)``.
        sizes: Examples of each batch.
        means: Mean of each component's ``z`` over all probe examples and positions, ``(width,)`` each.
    """

    loss: Tensor
    exact_match: Tensor
    sizes: tuple[int, ...]
    means: tuple[Tensor, ...]


def clean_run(score: Scorer, components: ComponentMap) -> CleanRun:
    """Score every batch and average every component's output over examples and positions.

    Positions that a batch's ``attention_mask`` marks as padding (0) are left out of the mean; in batches that have a
    ``decoder_input_ids`` or the like, whose it is cannot be told, and all positions count. Sums are kept in
    float64; the means come back in the dtype of the outputs.
    """
    losses, matches = [], []
    sums: list[Tensor | float] = [0.0] * len(components)
    counts = [0] * len(components)
    dtypes: list[torch.dtype] = []
    with torch.no_grad():
        for batch in score.batches:
            with reading(score.model, components) as outputs:
                loss, exact_match = score(batch)
            losses.append(loss)
            matches.append(exact_match)
            real = _real_positions(batch)
            for index, component in enumerate(components):
                z = outputs.of(component)
                if z.ndim != 3 or len(z) != len(loss):
                    raise MeasurementError(
                        f"{component.label}: the output read at {component.site.module!r} must be (examples, "
                        f"positions, width) with {len(loss)} examples; got {tuple(z.shape)}."
                    )
                _check_width(component, outputs)
                # A mask of another length is that of another sequence, as a source is to a decoder's target.
                flat = z.flatten(0, 1) if real is None or real.shape != z.shape[:2] else z[real]
                sums[index] = sums[index] + flat.sum(0, dtype=torch.float64)
                counts[index] += len(flat)
            dtypes = [outputs.of(component).dtype for component in components]
    means = tuple((total / count).to(dtype) for total, count, dtype in zip(sums, counts, dtypes, strict=True))  # type: ignore[union-attr]
    return CleanRun(torch.cat(losses), torch.cat(matches), tuple(map(len, losses)), means)


def _check_width(component: Component, outputs: Outputs) -> None:
    site = component.site
    width = outputs.tensors[site.module, site.point].shape[-1]
    stop = width if site.stop is None else site.stop
    # Slicing would cut a range that is too long in silence, and an empty one can be ablated without any effect.
    if not 0 <= site.start < stop <= width:
        raise MeasurementError(
            f"{component.label}: the {site.point} of {site.module!r} has {width} entries in its last dimension, but "
            f"the component map asks for {site.start} to {stop}."
        )


def _real_positions(batch: Any) -> Tensor | None:
    two_sequences = isinstance(batch, Mapping) and any(str(key).startswith("decoder_") for key in batch)
    if isinstance(batch, Mapping) and isinstance(batch.get("attention_mask"), Tensor) and not two_sequences:
        return batch["attention_mask"].bool()
    return None
