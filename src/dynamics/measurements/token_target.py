"""What a token attribution explains: a token's log-probability or logit, a logit difference, or the labels' log p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dynamics.errors import MeasurementError
from dynamics.measurements.token_inputs import Inputs
from dynamics.probe import IGNORE, sequence_objective

Quantity = Literal["log_prob", "logit", "probability"]
QUANTITIES = ("log_prob", "logit", "probability")
_WORDS = {"log_prob": "log p", "logit": "logit", "probability": "p"}


def logits_of(network: nn.Module, inputs: Inputs) -> Tensor:
    """Return the network's logits ``(examples, positions, vocabulary)``.

    Raises:
        MeasurementError: If it returns something else.
    """
    output = inputs.call(network)
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == inputs.input_ids.shape:
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    what = f"a tensor {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    raise MeasurementError(
        f"{type(network).__name__} must return logits (examples, positions, vocabulary), or an object with such "
        f".logits; got {what}. Pass the module that maps token ids to logits."
    )


@dataclass(frozen=True)
class TokenTarget:
    """The scalar of each example that is explained.

    Attributes:
        quantity: ``"log_prob"``, ``"logit"`` or ``"probability"`` of ``token`` at ``column``.
        column: ``(examples,)``, where the prediction is read.
        token: ``(examples,)``, the token predicted there.
        other: ``(examples,)``: instead, logit of ``token`` minus logit of ``other``.
        labels: ``(examples, positions)``: instead, the mean log p of an example's labels.
        shift_labels: Whether these follow the Hugging Face convention.
    """

    quantity: Quantity = "log_prob"
    column: Tensor | None = None
    token: Tensor | None = None
    other: Tensor | None = None
    labels: Tensor | None = None
    shift_labels: bool = False

    def values(self, network: nn.Module, inputs: Inputs) -> Tensor:
        """Return the target of each example, ``(examples,)``: nats, logits or a probability."""
        if self.labels is not None:
            loss, _ = sequence_objective(network, inputs.batch(self.labels), self.shift_labels)
            return -loss
        assert self.column is not None
        assert self.token is not None
        logits = logits_of(network, inputs)
        row = logits[torch.arange(len(logits), device=logits.device), self.column]
        if self.other is not None:
            return _at(row, self.token) - _at(row, self.other)
        if self.quantity == "logit":
            return _at(row, self.token)
        log_p = _at(row.log_softmax(-1), self.token)
        return log_p.exp() if self.quantity == "probability" else log_p

    def rows(self, index: Tensor) -> TokenTarget:
        """Return the targets of some examples, repeated or not."""
        parts = {name: getattr(self, name) for name in ("column", "token", "other", "labels")}
        chosen = {name: None if part is None else part[index] for name, part in parts.items()}
        return TokenTarget(self.quantity, **chosen, shift_labels=self.shift_labels)

    def __str__(self) -> str:
        """Return what is explained, in words."""
        if self.labels is not None:
            return "mean log p of the labels"
        if self.other is not None:
            return f"logit of {_named(self.token)} - logit of {_named(self.other)}"
        return f"{_WORDS[self.quantity]} of {_named(self.token)}"


def _at(row: Tensor, token: Tensor) -> Tensor:
    return row.gather(-1, token[:, None])[:, 0]


def _named(token: Tensor | None) -> str:
    assert token is not None
    one = token.unique()
    return f"token {int(one)}" if len(one) == 1 else "each example's token"


def resolve_target(
    network: nn.Module,
    inputs: Inputs,
    target: int | Tensor | None,
    other: int | Tensor | None,
    position: int | Tensor | None,
    quantity: Quantity,
) -> TokenTarget:
    """Return the target that predicts a token at a position; by default the arg-max at the last.

    Raises:
        MeasurementError: If a token or position does not exist, or the quantity is unknown.
    """
    if quantity not in QUANTITIES:
        raise MeasurementError(f"quantity must be among {', '.join(QUANTITIES)}; got {quantity!r}.")
    if other is not None and quantity == "probability":
        raise MeasurementError("other= explains a difference of logits; leave quantity= out, or leave out other=.")
    column = inputs.column(-1 if position is None else position)
    with torch.no_grad():
        logits = logits_of(network, inputs)
    row = logits[torch.arange(len(logits), device=logits.device), column]
    token = row.argmax(-1) if target is None else _tokens("target", target, row)
    against = None if other is None else _tokens("other", other, row)
    if against is not None and (against == token).any():
        raise MeasurementError(
            f"target and other are the same token ({int(token[against == token][0])}): no difference."
        )
    return TokenTarget(quantity, column, token, against)


def _tokens(name: str, value: int | Tensor, row: Tensor) -> Tensor:
    examples, size = row.shape
    try:
        tokens = torch.as_tensor(value, device=row.device)
    except (TypeError, ValueError, RuntimeError):
        tokens = torch.zeros(())  # a text, say; refused below
    if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.shape not in ((), (examples,)):
        raise MeasurementError(f"{name} must be a token id, or one for each of the {examples} examples; got {value!r}.")
    if ((tokens < 0) | (tokens >= size)).any():
        raise MeasurementError(f"{name} must be a token id from 0 to {size - 1}, the model's logits; got {value!r}.")
    return tokens.long().expand(examples)


def checked_labels(labels: Any, input_ids: Tensor, shift_labels: bool) -> Tensor:
    """Return labels ``(examples, positions)``, or raise a `MeasurementError` unless each example has a target."""
    wanted = torch.as_tensor(labels).detach().clone().to(input_ids.device)
    wanted = wanted[None] if wanted.ndim == 1 else wanted
    if wanted.shape != input_ids.shape or wanted.is_floating_point() or wanted.dtype == torch.bool:
        raise MeasurementError(
            f"labels must be whole numbers of the shape of input_ids, {tuple(input_ids.shape)}; "
            f"got {wanted.dtype} {tuple(wanted.shape)}."
        )
    without = (wanted[:, int(shift_labels) :] == IGNORE).all(-1)
    if without.any():
        raise MeasurementError(f"example {int(without.nonzero()[0])} has only labels {IGNORE}, so it has no target.")
    return wanted
