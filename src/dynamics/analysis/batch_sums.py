"""Gradient magnitude and causal importance batch by batch: what resampling the probe's batches needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dynamics.analysis.importance import check_recorded, example_gains, gradient_magnitude, require_snapshots
from dynamics.analysis.rank_gap import RankGap, rank_gap
from dynamics.analysis.resampled_ranks import ResampledRanks
from dynamics.analysis.resampling import Resampling, resampled_means
from dynamics.errors import AnalysisError
from dynamics.store import ComponentInfo, Run


@dataclass(frozen=True, eq=False)
class BatchSums:
    """G and C of every snapshot of a run, and what they are means of.

    Attributes:
        components: The components.
        baseline: What ablated outputs were replaced by.
        score: What causal importance is measured in.
        steps: Optimizer step of each snapshot, ``(step,)``.
        sizes: Number of examples of each probe batch, ``(batch,)``.
        gradient_norm: Gradient norm of each batch, ``(step, component, batch)``.
        gains: Sum over a batch's examples of `example_gains`, ``(step, component, batch)``.
        gradient: Gradient magnitude G, ``(step, component)``.
        causal: Causal importance C, ``(step, component)``.
    """

    components: tuple[ComponentInfo, ...]
    baseline: str
    score: str
    steps: np.ndarray
    sizes: np.ndarray
    gradient_norm: np.ndarray
    gains: np.ndarray
    gradient: np.ndarray
    causal: np.ndarray

    def gap(self, row: int) -> RankGap:
        """Return ranks, Delta and rho of one snapshot on the whole probe."""
        return self.gaps[row]

    @cached_property
    def gaps(self) -> tuple[RankGap, ...]:
        """Return `gap` of every snapshot."""
        return tuple(rank_gap(*pair) for pair in zip(self.gradient, self.causal, strict=True))

    @cached_property
    def resampled_gradient(self) -> ResampledRanks:
        """Return the ranks of G on resampled batches."""
        return ResampledRanks(self.gradient_norm, np.ones(len(self.sizes)))

    @cached_property
    def resampled_causal(self) -> ResampledRanks:
        """Return the ranks of C on the same batches: a hard batch raises gradients and effects together."""
        return ResampledRanks(self.gains, self.sizes)

    def resampled_ranks(self, row: int, resampling: Resampling) -> tuple[np.ndarray, np.ndarray]:
        """Return centred ranks of G and of C of one snapshot on resampled batches, ``(resample, component)`` each."""
        return self.resampled_gradient.ranks(row, resampling), self.resampled_causal.ranks(row, resampling)

    def resample(self, row: int, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return G and C of one snapshot on resampled batches, ``(resample, component)`` each.

        Both from the same batches: a hard batch raises gradients and effects together.

        Args:
            row: Which snapshot.
            counts: How often each batch is drawn, ``(resample, batch)``.
        """
        gradient = resampled_means(counts, self.gradient_norm[row], np.ones(len(self.sizes)))
        return gradient, resampled_means(counts, self.gains[row], self.sizes)

    def no_interval(self) -> str | None:
        """Return why batches cannot be resampled, in words; ``None`` if they can."""
        if len(self.sizes) > 1:
            return None
        return "the probe has a single batch; an interval needs at least 2 batches to resample"


def read_batch_sums(run: Run, baseline: str = "mean", score: str = "exact_match") -> BatchSums:
    """Read G and C of every snapshot, batch by batch.

    Args:
        run: An open run.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``.

    Raises:
        AnalysisError: If the run lacks what is needed, has no snapshot yet, or an argument is out of range.
    """
    return read_batch_sums_of(run, (baseline,), score)[0]


def read_batch_sums_of(run: Run, baselines: Sequence[str], score: str) -> list[BatchSums]:
    """Do what `read_batch_sums` does for several baselines in one pass over the file, in their order."""
    for baseline in baselines:
        check_recorded(run, baseline, score)
    require_snapshots(run)
    norms = run["gradient_norm"].astype(float)
    batches = ExampleBatches(run)
    shape = (len(baselines), len(norms), len(run.components))
    gains, causal = np.empty((*shape, len(batches.sizes))), np.empty(shape)
    chosen = [run.baselines.index(baseline) for baseline in baselines]
    rows = zip(run[score], run.snapshots.rows(f"ablation_{score}"), strict=True)
    for row, (clean, ablated) in enumerate(rows):
        for b, index in enumerate(chosen):
            found = example_gains(clean, ablated[index], score)
            gains[b, row], causal[b, row] = batches.sums(found), found.mean(-1)
    gradient = gradient_magnitude(run["gradient_norm"])
    return [
        BatchSums(run.components, baseline, score, run.steps, batches.sizes, norms, gains[b], gradient, causal[b])
        for b, baseline in enumerate(baselines)
    ]


class ExampleBatches:
    """Which examples of a run's probe form a batch.

    Attributes:
        sizes: Number of examples of each batch, ``(batch,)``.

    Raises:
        AnalysisError: If a batch has no examples, or the examples do not stand batch by batch.
    """

    def __init__(self, run: Run) -> None:
        of_example = run.snapshots.labels("example_batch")
        n = len(run.snapshots.labels("batch"))
        self.sizes = np.bincount(of_example, minlength=n).astype(float)
        if (np.diff(of_example) < 0).any() or len(self.sizes) != n or not self.sizes.all():
            raise AnalysisError(
                f"{run.path} must list its examples batch by batch, at least one for each of {n} batches, to be "
                f"resampled; its 'example_batch' is {of_example.tolist()}."
            )
        self._starts = np.searchsorted(of_example, np.arange(n))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over each batch's examples: ``(..., example)`` to ``(..., batch)``, in float64."""
        return np.add.reduceat(values, self._starts, axis=-1, dtype=float)
