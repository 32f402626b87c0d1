"""Attention as it ran: softmax weights, values and output of one call, in whichever way the model computed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from dynamics.measurements.gim_attention import masked_scores, rows_at_once
from dynamics.measurements.gim_rules import empty_rows, pattern, working_dtype

Weights = Callable[[int, int], Tensor]
"""``weights(start, stop)``: softmax weights of some queries, ``(..., stop - start, keys)``."""


@dataclass
class AttentionCall:
    """One attention that ran in a forward pass: ``output = weights @ value``, row by row.

    Attributes:
        path: Path of the module that ran it.
        output: ``(..., queries, d_value)``, without its graph; the dimensions before are examples, then heads.
        value: ``(..., keys, d_value)``, without its graph.
        weights: Softmax weights of a block of queries; keys after the last that any of them attends to may be missing.
        sources: The tensors that the weights are computed from.
        dropout: Probability with which weights were dropped at random.
    """

    path: str
    output: Tensor
    value: Tensor
    weights: Weights
    sources: tuple[Tensor, ...]
    dropout: float = 0.0
    _versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._versions = self._now()

    def _now(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in (self.output, self.value, *self.sources))

    @property
    def where(self) -> str:
        """Return the module that ran it, for messages."""
        return repr(self.path) if self.path else "the model itself"

    @property
    def unchanged(self) -> bool:
        """Say whether its tensors still hold what they held: a model may write into them afterwards."""
        return self._now() == self._versions

    def heads(self, examples: int) -> Tensor | None:
        """Return the output as ``(examples, heads, queries, d_value)``; ``None`` if it does not split like that."""
        if self.output.ndim < 2 or examples < 1 or self.output.shape[:-2].numel() % examples:
            return None
        return self.output.reshape(examples, -1, *self.output.shape[-2:])

    def blocks(self, examples: int, heads: Sequence[int]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield queries, their weights and the values, for some heads, a block of queries at a time.

        Args:
            examples: Number of examples.
            heads: The heads.

        Yields:
            The block's queries, ``(examples, heads, rows, keys)`` weights and ``(examples, heads, keys, d_value)``
            values, in float32 or float64.
        """
        batch, queries, keys = self.output.shape[:-2], self.output.shape[-2], self.value.shape[-2]

        def split(tensor: Tensor) -> Tensor:
            whole = tensor.expand(*batch, *tensor.shape[-2:]).reshape(examples, -1, *tensor.shape[-2:])
            return whole[:, heads].to(working_dtype(tensor.dtype))

        values = split(self.value)
        step = rows_at_once(self.output.device, batch.numel() * keys)
        for start in range(0, queries, step):
            some = slice(start, min(start + step, queries))
            weights = split(self.weights(some.start, some.stop))
            yield some, weights, values[..., : weights.shape[-1], :]


def fused_attention(
    path: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Return a call of ``scaled_dot_product_attention``; its weights are computed again, when asked for."""
    query, key, value, output = (tensor.detach() for tensor in (query, key, value, output))
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if groups > 1:
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if mask is not None:
        mask = mask.detach().expand(*mask.shape[:-2], query.shape[-2], key.shape[-2])
    weights = partial(_fused_weights, query, key, mask, output.shape[:-2], scale, is_causal)
    sources = (query, key) if mask is None else (query, key, mask)
    return AttentionCall(path, output, value, weights, sources, dropout_p)


def _fused_weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    batch: Sequence[int],
    scale: float,
    causal: bool,
    start: int,
    stop: int,
) -> Tensor:
    dtype, keys = working_dtype(query.dtype), key.shape[-2]
    seen = min(stop, keys) if causal else keys
    part = None if mask is None else mask[..., start:stop, :seen]
    q, k = query[..., start:stop, :].to(dtype) * scale, key[..., :seen, :].to(dtype)
    scores = masked_scores(q, k, part, batch, start if causal else None)
    # What sees nothing (padding on the left) attends to nothing: PyTorch's fused attention gives 0 there.
    return pattern(scores, empty=None if mask is None else empty_rows(scores))


def eager_attention(
    path: str, name: str, args: Sequence[object], factors: Sequence[Tensor], patterns: Sequence[bool], output: Tensor
) -> list[AttentionCall]:
    """Return what a product of softmax weights and values may be as attention: as a rule, one call.

    Args:
        path: Path of the module that runs.
        name: The operator's plain name.
        args: Its arguments.
        factors: The two factors.
        patterns: Which of them descend from a softmax.
        output: The product.

    Returns:
        The call; none for a product that is not written as weights times values; for ``einsum`` with groups of heads
        one for each letter that may stand for the queries.
    """
    tensors = [tensor.detach() for tensor in factors]
    if len(tensors) != 2 or sum(patterns) != 1:
        return []
    if name == "einsum":
        return _einsum_attention(path, args[0], tensors, patterns.index(True), output.detach())
    if name not in ("matmul", "bmm") or not patterns[0] or min(tensor.ndim for tensor in tensors) < 2:
        return []
    return [_eager_call(path, tensors[0], tensors[1], output.detach())]


def _eager_call(path: str, weights: Tensor, value: Tensor, output: Tensor) -> AttentionCall:
    return AttentionCall(path, output, value, lambda start, stop: weights[..., start:stop, :], (weights,))


def _einsum_attention(
    path: str, equation: object, factors: Sequence[Tensor], which: int, output: Tensor
) -> list[AttentionCall]:
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return []
    left, _, out = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    weights, value = letters[which], letters[1 - which]
    key = [x for x in weights if x in value and x not in out]
    width = [x for x in value if x in out and x not in weights]
    if len(key) != 1 or len(width) != 1 or set(out) != (set(weights) | set(value)) - set(key):
        return []
    calls = []
    for query in (x for x in weights if x in out and x not in value):
        lead = [x for x in out if x not in (query, width[0])]
        calls.append(
            _eager_call(
                path,
                _arranged(factors[which], weights, [*lead, query, key[0]]),
                _arranged(factors[1 - which], value, [*lead, key[0], width[0]]),
                _arranged(output, out, [*lead, query, width[0]]),
            )
        )
    return calls


def _arranged(tensor: Tensor, letters: str, wanted: Sequence[str]) -> Tensor:
    """Return a view with dimensions in the wanted order, and one of size 1 for a letter that the tensor lacks."""
    view = tensor.permute([letters.index(x) for x in wanted if x in letters])
    for index, letter in enumerate(wanted):
        if letter not in letters:
            view = view.unsqueeze(index)
    return view
