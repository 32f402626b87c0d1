"""Judging a token attribution: comprehensiveness and sufficiency, as areas over the perturbation curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dynamics.errors import MeasurementError
from dynamics.measurements.input_embedding import Baseline
from dynamics.measurements.token_attribution import Scene, TokenAttribution, token_scene


@dataclass(frozen=True, eq=False)
class PerturbationCurves:
    """How the target falls when tokens are removed in the order of their scores.

    Attributes:
        removable: How many tokens may be removed, n, ``(examples,)``.
        k: Number of top tokens at each point of a curve, ``(examples, points)``; -1 past the end of shorter examples.
        comprehensiveness: Drop of the target without the top k, ``(examples, points)``; NaN where k is -1.
        sufficiency: Drop of the target with the top k alone, likewise.
        random_comprehensiveness: The same for random orders, ``(orders, examples, points)``.
        random_sufficiency: Likewise.
        value: The target of the full input, ``(examples,)``.
    """

    removable: np.ndarray
    k: np.ndarray
    comprehensiveness: np.ndarray
    sufficiency: np.ndarray
    random_comprehensiveness: np.ndarray
    random_sufficiency: np.ndarray
    value: np.ndarray

    @property
    def comprehensiveness_aopc(self) -> np.ndarray:
        """Return the mean over a curve's points, ``(examples,)``: the higher, the more the top tokens matter."""
        return _area(self.comprehensiveness)

    @property
    def sufficiency_aopc(self) -> np.ndarray:
        """Return the mean over a curve's points, ``(examples,)``: the lower, the more the top tokens suffice."""
        return _area(self.sufficiency)

    @property
    def random_comprehensiveness_aopc(self) -> np.ndarray:
        """Return the area of each random order, ``(orders, examples)``."""
        return _area(self.random_comprehensiveness)

    @property
    def random_sufficiency_aopc(self) -> np.ndarray:
        """Return the area of each random order, ``(orders, examples)``."""
        return _area(self.random_sufficiency)

    def __repr__(self) -> str:
        examples, points = self.k.shape
        return f"PerturbationCurves({examples} examples, {points} points, {len(self.random_sufficiency)} random orders)"


def _area(curves: np.ndarray) -> np.ndarray:
    area: np.ndarray = np.nanmean(curves, -1)
    return area


def perturbation_curves(
    model: nn.Module,
    attribution: TokenAttribution,
    baseline: Baseline | None = None,
    protected: Sequence[int] | Tensor | np.ndarray = (),
    fractions: Sequence[float] | None = None,
    random_orders: int = 5,
    seed: int = 0,
    batch_size: int = 64,
    embedding: nn.Module | None = None,
) -> PerturbationCurves:
    """Remove an example's tokens in the order of their scores, and see how far the target falls.

    With f the target, x the input and the n removable tokens ranked by descending score,

        comprehensiveness(k) = f(x) - f(x without its top k tokens)        0 at k = 0
        sufficiency(k)       = f(x) - f(x with its top k tokens alone)     0 at k = n

    (DeYoung et al. 2020, "ERASER", arXiv 1911.03429). The area over the perturbation curve, AOPC, is the mean over the
    points of a curve, ``1 / (K + 1) sum over k = 0..K``; here over every k from 0 to n, unless ``fractions`` says
    otherwise. A faithful attribution has a high comprehensiveness and a low sufficiency; a random order is the
    control. Removing a token puts the baseline embedding in its place. The GIM paper (arXiv 2505.17630) replaces tokens
    by a space, keeps the first and the last one, takes the logit as target and divides the areas by it:
    ``baseline=<id of " ">, protected=(0, -1)`` after ``attribute_tokens(..., quantity="logit")``, over ``.value``.

    Padding is neither removed nor counted. Tied scores keep the order of positions.

    Args:
        model: The model that the attribution explains.
        attribution: The attribution. To judge scores of your own: ``dataclasses.replace(attribution, scores=...)``.
        baseline: What removed tokens become; default: the attribution's own baseline.
        protected: Positions that always stay, counting real tokens (0: the first, -1: the last); or a bool array
            ``(examples, positions)``, such as ``attribution.input_ids == separator``.
        fractions: Shares of n at which to measure, besides k = 0, rounded up: ERASER takes 0.01, 0.05, 0.1, 0.2, 0.5.
            Default: every k.
        random_orders: How many random orders to measure of each example.
        seed: Seed of these orders, drawn with a generator of their own.
        batch_size: How many perturbed inputs run at once.
        embedding: The input embedding, if the model has several.

    Returns:
        The curves, in the target's units.

    Raises:
        MeasurementError: If an example has nothing to remove, or an argument does not fit.
    """
    if attribution.scores.shape != attribution.input_ids.shape:
        raise MeasurementError(
            f"scores must have the shape of input_ids, {attribution.input_ids.shape}; got {attribution.scores.shape}."
        )
    if not np.isfinite(attribution.scores[attribution.mask]).all():
        raise MeasurementError("the scores hold NaN or infinity, so they rank nothing.")
    free = attribution.mask & ~_protected(protected, attribution.mask)
    if not free.any(-1).all():
        example = int(np.flatnonzero(~free.any(-1))[0])
        raise MeasurementError(f"every token of example {example} is protected, so there is none to remove.")
    k = _points(free.sum(-1), fractions)
    random = np.random.default_rng(seed)
    scores = [attribution.scores, *(random.random(free.shape) for _ in range(random_orders))]
    ranks = np.stack([_ranks(score, free) for score in scores])
    # (order, example, point, position): without the top k; and with the top k alone.
    without = (ranks[:, :, None] < k[None, :, :, None]) & free[:, None]
    alone = (ranks[:, :, None] >= k[None, :, :, None]) & free[:, None]
    padding = {} if attribution.mask.all() else {"attention_mask": attribution.mask.astype(int)}
    given = {"input_ids": attribution.input_ids, **padding, **attribution.passed}
    with token_scene(model, given, embedding, lambda *_: attribution.explained) as scene:
        start = scene.towards(attribution.baseline if baseline is None else baseline)
        value = scene.values(scene.embedded).cpu().numpy()
        drops = value[:, None] - _targets(scene, start, np.stack([without, alone]), batch_size)
    drops[..., k < 0] = np.nan
    (first, *others), (second, *more) = drops
    shape = (random_orders, *k.shape)
    return PerturbationCurves(free.sum(-1), k, first, second, np.reshape(others, shape), np.reshape(more, shape), value)


def _protected(protected: Sequence[int] | Tensor | np.ndarray, mask: np.ndarray) -> np.ndarray:
    chosen = protected.cpu().numpy() if isinstance(protected, Tensor) else np.asarray(protected)
    if chosen.dtype == bool:
        if chosen.shape != mask.shape:
            raise MeasurementError(
                f"protected as a bool array must have the shape of input_ids, {mask.shape}; got {chosen.shape}."
            )
        return chosen
    result = np.zeros_like(mask)
    for position in chosen.astype(int).tolist():
        for example, real in enumerate(map(np.flatnonzero, mask)):
            if not -len(real) <= position < len(real):
                raise MeasurementError(
                    f"example {example} has {len(real)} tokens, so it has no position {position} to protect."
                )
            result[example, real[position]] = True
    return result


def _points(removable: np.ndarray, fractions: Sequence[float] | None) -> np.ndarray:
    """Return k at each point, ``(examples, points)``; -1 where an example has none."""
    if fractions is None:
        k = np.arange(removable.max() + 1)[None].repeat(len(removable), 0)
        return np.where(k <= removable[:, None], k, -1)
    if len(fractions) == 0 or not all(0 < fraction <= 1 for fraction in fractions):
        raise MeasurementError(f"fractions must be numbers above 0, at most 1; got {list(fractions)}.")
    # Rounding keeps 0.1 of 30 tokens at 3, which is not quite so in binary.
    return np.array([[0, *(math.ceil(round(f * int(n), 9)) for f in sorted(fractions))] for n in removable])


def _ranks(scores: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the place of each position, 0 the highest score; positions that stay come last."""
    order = np.argsort(np.where(free, -scores, np.inf), axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def _targets(scene: Scene, start: Tensor, removed: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the target for each set of removed tokens, ``(..., examples, points)``.

    Args:
        scene: The model and its examples.
        start: Their embeddings with every token removed.
        removed: Which tokens are removed, bool ``(..., examples, points, positions)``.
        batch_size: How many to run at once.
    """
    *outer, examples, points, positions = removed.shape
    index = np.broadcast_to(np.arange(examples)[:, None], (*outer, examples, points))
    rows = np.concatenate([index.reshape(-1, 1), removed.reshape(-1, positions)], 1)
    # Orders share many of their sets: the empty and the full one at least.
    unique, back = np.unique(rows, axis=0, return_inverse=True)
    device = scene.embedded.device
    targets = []
    for part in torch.from_numpy(unique.astype(np.int64)).to(device).split(batch_size):
        which, out = part[:, 0], part[:, 1:, None].bool()
        targets.append(scene.values(torch.where(out, start[which], scene.embedded[which]), which))
    values = torch.cat(targets).cpu().numpy()
    result: np.ndarray = values[back.reshape(-1)].reshape(*outer, examples, points)
    return result
