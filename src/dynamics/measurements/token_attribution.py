"""Feature attribution: how much each input token contributes to a prediction, by a gradient at its embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dynamics.components import find_components
from dynamics.errors import ComponentError, MeasurementError
from dynamics.measurements.derivatives import derivatives
from dynamics.measurements.gim import GIMRules, gim_backward
from dynamics.measurements.gim_reach import running_eagerly
from dynamics.measurements.held_still import held_still
from dynamics.measurements.input_embedding import Baseline, InputEmbedding, find_input_embedding, named_embedding
from dynamics.measurements.integrated_gradients import check_steps
from dynamics.measurements.token_inputs import Inputs, read_inputs
from dynamics.measurements.token_target import Quantity, TokenTarget, checked_labels, resolve_target

Method = Literal["gim", "gradient", "ig"]
TOKEN_METHODS = ("gim", "gradient", "ig")
"""By the gradient under the rules of GIM, by the ordinary gradient, and by integrated gradients."""


@dataclass(frozen=True, eq=False)
class TokenAttribution:
    """What each token of some examples contributes to a target.

    Attributes:
        scores: ``(examples, positions)``, in the target's units; positive: the token supports it. Padding has 0.
        method: ``"gim"``, ``"gradient"`` or ``"ig"``.
        target: What is explained, in words.
        value: The target of the full input, ``(examples,)``.
        baseline_value: The target when every token is at the baseline, ``(examples,)``.
        input_ids: The tokens, ``(examples, positions)``.
        mask: Which positions hold a token rather than padding, bool ``(examples, positions)``.
        baseline: ``"zero"``, ``"mean"``, a token id, or the embedding.
        explained: The target as it is computed; ``explained.token`` are the predicted tokens.
        passed: What the model was given beside the tokens, by name, such as ``position_ids``.
    """

    scores: np.ndarray
    method: str
    target: str
    value: np.ndarray
    baseline_value: np.ndarray
    input_ids: np.ndarray
    mask: np.ndarray
    baseline: Baseline
    explained: TokenTarget
    passed: Mapping[str, np.ndarray]

    @property
    def completeness_error(self) -> np.ndarray:
        """Return ``sum of scores - (value - baseline_value)``, ``(examples,)``: 0 for exact integrated gradients."""
        error: np.ndarray = self.scores.sum(-1) - (self.value - self.baseline_value)
        return error

    def __repr__(self) -> str:
        return f"TokenAttribution({self.method} of {self.target}; scores {self.scores.shape})"


@dataclass(frozen=True)
class Scene:
    """A model, its input, and what is explained of them.

    Attributes:
        network: The module that maps tokens to logits.
        embedding: Its input embedding.
        inputs: The examples.
        target: The target.
        embedded: The examples' embeddings, ``(examples, positions, width)``.
    """

    network: nn.Module
    embedding: InputEmbedding
    inputs: Inputs
    target: TokenTarget
    embedded: Tensor

    def towards(self, baseline: Baseline) -> Tensor:
        """Return the embeddings with every token at the baseline; padding stays what it is."""
        empty = self.embedding.baseline(baseline, self.inputs.input_ids, self.embedded)
        return torch.where(self.inputs.mask[..., None], empty, self.embedded)

    @torch.no_grad()
    def values(self, embedded: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the target for other embeddings of (some) examples, ``(rows,)``, without a graph."""
        inputs, target = (
            (self.inputs, self.target) if rows is None else (self.inputs.rows(rows), self.target.rows(rows))
        )
        with self.embedding.replaced(inputs.input_ids, embedded):
            return target.values(self.network, inputs)

    def gradient(self, embedded: Tensor, rules: GIMRules | None = None) -> tuple[Tensor, Tensor]:
        """Return the target ``(examples,)`` and its gradient at the embeddings, ``(examples, positions, width)``.

        Raises:
            MeasurementError: If there is no gradient, or padding has one.
        """
        leaf = embedded.detach().clone().requires_grad_(True)
        # The leaf must be in place before GIM looks at what the embedding returns.
        acting = nullcontext() if rules is None else gim_backward(self.network, rules)
        with self.embedding.replaced(self.inputs.input_ids, leaf), acting:
            value = self.target.values(self.network, self.inputs)
            if not value.requires_grad:
                raise _no_gradient(self.embedding.path)
            [gradient] = derivatives(value.sum(), [leaf])
        if gradient is None:
            raise _no_gradient(self.embedding.path)
        reached = (gradient != 0).any(-1) & ~self.inputs.mask
        if reached.any():
            example, position = reached.nonzero()[0].tolist()
            raise MeasurementError(
                f"the target depends on padding (example {example}, position {position}), so "
                f"{type(self.network).__name__} does not follow the attention mask. Pass examples of one length "
                "together, without padding."
            )
        return value.detach(), gradient


def _no_gradient(path: str) -> MeasurementError:
    return MeasurementError(
        f"the target does not depend on the input embedding {path!r}, so no token can be given a share of it. "
        "Does the model cut the graph with detach() or torch.no_grad()?"
    )


@contextmanager
def token_scene(
    model: nn.Module,
    given: Mapping[str, Any],
    embedding: nn.Module | None,
    explained: Callable[[nn.Module, Inputs], TokenTarget],
) -> Iterator[Scene]:
    """Hold the model still, find its input embedding, and settle what is explained.

    Args:
        model: The model, or a module that holds it.
        given: ``input_ids``, ``(examples, positions)`` or ``(positions,)``, and what the model is given beside.
        embedding: The input embedding, if the user named it.
        explained: Returns the target, given the network and its inputs.
    """
    if not isinstance(model, nn.Module):
        raise MeasurementError(f"the model must be a torch.nn.Module; got {type(model).__name__}.")
    with held_still(model), running_eagerly(model):
        network = _network(model)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        inputs = read_inputs(network, given, device)
        try:
            if embedding is None:
                found = find_input_embedding(network, lambda tokens: inputs.call(network, tokens), inputs.input_ids)
            else:
                found = named_embedding(network, embedding)
            target = explained(network, inputs)
        except NotImplementedError as error:
            raise MeasurementError(
                f"{type(network).__name__} has no forward of its own; pass the module in it that maps token ids to "
                "logits."
            ) from error
        yield Scene(network, found, inputs, target, found(inputs.input_ids))


def _network(model: nn.Module) -> nn.Module:
    try:
        return find_components(model).network(model)
    except ComponentError:
        return model


def attribute_tokens(
    model: nn.Module,
    input_ids: Tensor | Sequence[Any] | Mapping[str, Any],
    target: int | Tensor | None = None,
    position: int | Tensor | None = None,
    other: int | Tensor | None = None,
    method: Method = "gim",
    rules: GIMRules | None = None,
    baseline: Baseline = "zero",
    ig_steps: int = 32,
    quantity: Quantity = "log_prob",
    attention_mask: Tensor | None = None,
    shift_labels: bool = False,
    embedding: nn.Module | None = None,
) -> TokenAttribution:
    """Return the score of every token, ``A_t = (x_t - b) . d target / d x_t``.

    x_t is the input embedding of the token at position t, before positions are added, and b a baseline embedding. The
    derivative is that of

    - ``gradient``: an ordinary backward pass; with the zero baseline this is gradient x input.
    - ``gim``: a backward pass under the rules of GIM (arXiv 2505.17630), which correct for interactions.
    - ``ig``: integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365), the mean of the gradient along the
      straight path from b to x, by Gauss-Legendre quadrature. Its scores add up to ``value - baseline_value``, but for
      the error of the quadrature, ``completeness_error``. From ``"zero"``, where a norm has a sharp turn, that error
      falls slowly; a token or ``"mean"`` is a milder baseline.

    The target is a token's log-probability at a position, its logit, its probability, or a difference of logits; or,
    of a batch with ``labels``, the mean log p of an example's labels: minus its loss. The model is put in evaluation
    mode and left as it was.

    Args:
        model: Any model that maps token ids to logits, or a module (such as a LightningModule) that holds one of a
            known family. Its input embedding is the module that is called with the token ids.
        input_ids: Tokens, ``(examples, positions)`` or ``(positions,)``; or a mapping with ``input_ids`` and, if you
            like, ``attention_mask``, ``token_type_ids``, ``position_ids`` and ``labels`` (-100: not a target): a batch
            of a probe, a tokenizer's result. Labels are explained if none of target, position, other is given.
        target: Id of the token predicted, or one for each example; default: the arg-max.
        position: Where the prediction is read, or one for each example. Counts real tokens; default: -1, the last.
        other: A token to tell the target from: explains ``logit(target) - logit(other)``.
        method: ``"gim"``, ``"gradient"`` or ``"ig"``.
        rules: The rules of ``gim``; default: all of them, with temperature 2.
        baseline: ``"zero"``, ``"mean"`` (of the vocabulary's embeddings), a token id, or an embedding ``(width,)``.
        ig_steps: Points of the quadrature; each costs a forward and a backward pass.
        quantity: ``"log_prob"`` (nats), ``"logit"`` or ``"probability"``.
        attention_mask: 1: a real token; 0: padding, which gets the score 0.
        shift_labels: Whether labels follow the Hugging Face convention.
        embedding: The input embedding, if the model has several.

    Returns:
        The attribution. It takes one forward and one backward pass (``ig``: ``ig_steps`` of each), and up to three
        forward passes to find the embedding, the target and its value at the baseline.

    Raises:
        MeasurementError: If the input embedding is not found or is ambiguous, the target does not exist or does not
            depend on it, or depends on padding; if a rule of GIM finds nothing to act on.
    """
    if method not in TOKEN_METHODS:
        raise MeasurementError(f"method must be among {', '.join(TOKEN_METHODS)}; got {method!r}.")
    check_steps(ig_steps)
    given = input_ids if isinstance(input_ids, Mapping) else {"input_ids": input_ids}
    if attention_mask is not None:
        given = {**given, "attention_mask": attention_mask}

    def explained(network: nn.Module, inputs: Inputs) -> TokenTarget:
        labels = given.get("labels") if target is None and other is None and position is None else None
        if labels is None:
            return resolve_target(network, inputs, target, other, position, quantity)
        if quantity != "log_prob":
            raise MeasurementError(f"labels are explained by their mean log p; got quantity={quantity!r}.")
        return TokenTarget(labels=checked_labels(labels, inputs.input_ids, shift_labels), shift_labels=shift_labels)

    with token_scene(model, given, embedding, explained) as scene:
        start = scene.towards(baseline)
        if method == "ig":
            value, gradient = scene.values(scene.embedded), _mean_gradient(scene, start, ig_steps)
        else:
            value, gradient = scene.gradient(scene.embedded, (rules or GIMRules()) if method == "gim" else None)
        wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        scores = ((scene.embedded.to(wide) - start.to(wide)) * gradient.to(wide)).sum(-1)
        return TokenAttribution(
            scores=scores.cpu().numpy(),
            method=method,
            target=str(scene.target),
            value=value.cpu().numpy(),
            baseline_value=scene.values(start).cpu().numpy(),
            input_ids=scene.inputs.input_ids.cpu().numpy(),
            mask=scene.inputs.mask.cpu().numpy(),
            baseline=baseline,
            explained=scene.target,
            passed={name: value.cpu().numpy() for name, value in scene.inputs.passed.items()},
        )


def _mean_gradient(scene: Scene, start: Tensor, steps: int) -> Tensor:
    """Return the gradient averaged along the straight path from ``start`` to the embeddings."""
    wide = torch.float64 if start.dtype == torch.float64 else torch.float32
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros_like(start, dtype=wide)
    for share, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        _, gradient = scene.gradient(torch.lerp(start, scene.embedded, float(share)))
        total += float(weight) * gradient.to(wide)
    return total
