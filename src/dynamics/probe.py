"""The probe: the fixed examples measured at every snapshot, and the objective that scores them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from dynamics.errors import ProbeError

Objective = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""``objective(model, batch) -> (loss, exact_match)``: nats, ``(examples,)``, and bool, ``(examples,)``."""

PASSED_ON = ("attention_mask", "token_type_ids", "position_ids")
"""What the model is given beside the tokens, as keywords, if a batch has it; all of the tokens' shape."""

IGNORE = -100
"""Label of a position that is not a target (PyTorch's default ``ignore_index``)."""


def sequence_objective(
    model: nn.Module, batch: Mapping[str, Tensor], shift_labels: bool = False
) -> tuple[Tensor, Tensor]:
    """Score next-token predictions: mean cross-entropy over an example's targets, and whether all are the arg-max.

    Args:
        model: Called as ``model(input_ids)``, with ``attention_mask``, ``token_type_ids`` and ``position_ids`` too, by
            name, if the batch has them; returns logits ``(examples, positions, vocabulary)``, or an object with such
            ``.logits``.
        batch: ``input_ids`` and ``labels``, both ``(examples, positions)``; label -100: not a target.
        shift_labels: ``False``: ``logits[:, t]`` predicts ``labels[:, t]``. ``True`` (the Hugging Face convention):
            ``logits[:, t]`` predicts ``labels[:, t + 1]``.

    Returns:
        The loss in nats, ``(examples,)``, and the exact match, ``(examples,)`` bool.

    Raises:
        ProbeError: If the model returns no logits.
    """
    extra = {name: batch[name] for name in PASSED_ON if batch.get(name) is not None}
    output = model(batch["input_ids"], **extra)
    logits, labels = getattr(output, "logits", output), batch["labels"].long()
    if not isinstance(logits, Tensor):
        raise ProbeError(
            f"the default objective needs logits, or an output with .logits; {type(model).__name__} returned a "
            f"{type(output).__name__} without. Let Probe(batches, objective=...) go on from it to the loss."
        )
    if shift_labels:
        logits, labels = logits[:, :-1], labels[:, 1:]
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    target = labels != IGNORE
    nats = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none")
    loss = nats.view_as(labels).sum(-1) / target.sum(-1)
    # Logits that are NaN have no arg-max, but torch calls index 0 theirs.
    exact_match = ((logits.argmax(-1) == labels) | ~target).all(-1) & ~loss.isnan()
    return loss, exact_match


class Probe:
    """Fixed batches of examples, measured at every snapshot so that curves are paired over time.

    Args:
        batches: Any iterable of batches; it is read once and kept on the CPU. Without an objective of your own, each
            batch is a mapping with ``input_ids`` and ``labels``, both ``(examples, positions)``; label -100 marks
            positions that are not a target, and an optional ``attention_mask`` (1 = real token) marks padding;
            ``token_type_ids`` and ``position_ids`` are handed to the model, too.
        objective: ``objective(model, batch) -> (loss, exact_match)`` for batches of any other kind: the loss in nats
            ``(examples,)`` and a bool ``(examples,)``. ``model`` is then the module that the trainer or you hand
            over; the default objective is given the transformer found inside it.
        shift_labels: For the default objective: ``False`` if ``logits[:, t]`` predicts ``labels[:, t]``, ``True`` for
            the Hugging Face convention (``labels`` equal to ``input_ids``, shifted inside).

    Attributes:
        batches: The batches, a tuple.

    Raises:
        ProbeError: If there is no batch, a batch lacks a key or has another shape, or an example has no target.
    """

    def __init__(self, batches: Iterable[Any], objective: Objective | None = None, shift_labels: bool = False) -> None:
        if isinstance(batches, (Mapping, Tensor)):
            raise ProbeError(
                f"a probe takes an iterable of batches; got a single {type(batches).__name__}. Put it in a list."
            )
        self.batches: tuple[Any, ...] = tuple(apply_to_collection(batch, Tensor, _own) for batch in batches)
        self.custom_objective, self.shift_labels = objective, shift_labels
        if not self.batches:
            raise ProbeError("a probe needs at least one batch; got none.")
        if objective is None:
            for index, batch in enumerate(self.batches):
                _check(batch, index, shift_labels)
            if not shift_labels and all(_copies_its_input(batch) for batch in self.batches):
                warnings.warn(
                    "every label of the probe equals the token at its own position, so the model is scored on copying "
                    "its input. For labels in the Hugging Face convention pass Probe(batches, shift_labels=True).",
                    UserWarning,
                    stacklevel=2,
                )

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the loss in nats and the exact match of each example of a batch, both ``(examples,)``."""
        if self.custom_objective is None:
            return sequence_objective(model, batch, self.shift_labels)
        return self.custom_objective(model, batch)

    def target_counts(self) -> list[int] | None:
        """Return the number of target tokens of each example, or ``None`` with an objective of your own."""
        if self.custom_objective is not None:
            return None
        first = int(self.shift_labels)
        return [count for batch in self.batches for count in (batch["labels"][:, first:] != IGNORE).sum(-1).tolist()]

    def fingerprint(self) -> str:
        """Return a SHA-256 of every tensor of the probe: two runs with one fingerprint measured the same examples."""
        digest = hashlib.sha256(f"shift_labels={self.shift_labels}".encode())

        def add(tensor: Tensor) -> Tensor:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            return tensor

        for batch in self.batches:
            apply_to_collection(batch, Tensor, add)
        return digest.hexdigest()


def _own(tensor: Tensor) -> Tensor:
    # Autograd refuses tensors that were made in inference mode, such as a validation hook's.
    with torch.inference_mode(False):
        return tensor.detach().cpu().clone()


def _copies_its_input(batch: Mapping[str, Tensor]) -> bool:
    labels, ids = batch["labels"], batch["input_ids"]
    target = labels != IGNORE
    # A single target may equal its input by the nature of a task; several of every example hardly do.
    return bool(target.sum() >= 2 * len(ids) and (labels == ids)[target].all())


def _check(batch: Any, index: int, shift_labels: bool) -> None:
    where = f"probe batch {index}"
    if not isinstance(batch, Mapping) or not {"input_ids", "labels"} <= set(batch):
        found = f"keys {sorted(map(str, batch))}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ProbeError(
            f"{where} must be a mapping with 'input_ids' and 'labels'; got {found}. "
            "For other batches pass Probe(batches, objective=...)."
        )
    ids, labels = batch["input_ids"], batch["labels"]
    extra = {name: batch[name] for name in PASSED_ON if batch.get(name) is not None}
    for name, value in {"input_ids": ids, "labels": labels, **extra}.items():
        if not isinstance(value, Tensor):
            raise ProbeError(f"{where}: {name} must be a tensor; got a {type(value).__name__}.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ProbeError(f"{where}: labels must be whole numbers; got {labels.dtype}.")
    for name, value in extra.items():
        if value.shape != ids.shape:
            raise ProbeError(
                f"{where}: {name} must have the shape of input_ids, {tuple(ids.shape)}; got {tuple(value.shape)}."
            )
    if ids.ndim != 2 or labels.shape != ids.shape or len(ids) == 0:
        raise ProbeError(
            f"{where}: input_ids and labels must both be (examples, positions) with at least one example; "
            f"got {tuple(ids.shape)} and {tuple(labels.shape)}."
        )
    without = ((labels[:, int(shift_labels) :] != IGNORE).sum(-1) == 0).nonzero().flatten().tolist()
    if without:
        raise ProbeError(
            f"{where}: every example needs at least one target token, but example {without[0]} has only labels {IGNORE}"
            f"{f' ({len(without)} such examples)' if len(without) > 1 else ''}. Remove it or set its labels."
        )
