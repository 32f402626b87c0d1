"""Our decoder: a pre-LN, decoder-only transformer, small enough to be trained and measured on a laptop."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynamics.errors import ModelError

Positions = Literal["none", "learned", "rotary", "sinusoidal"]


def _rotate(x: Tensor) -> Tensor:
    """Apply rotary position embedding to queries or keys, ``(examples, heads, positions, d_head)``."""
    length, width = x.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angle = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def _sinusoids(length: int, width: int) -> Tensor:
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[:, :width].to(torch.get_default_dtype())


class Attention(nn.Module):
    """Causal multi-head self-attention; head h owns the h-th slice of the input of ``output``."""

    def __init__(self, d_model: int, n_heads: int, rotary: bool, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.rotary, self.dropout = n_heads, rotary, dropout
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the earlier positions; ``x`` and the result are ``(examples, positions, d_model)``."""
        query, key, value = (
            projection(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        if self.rotary:
            query, key = _rotate(query), _rotate(key)
        dropout = self.dropout if self.training else 0.0
        z = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.output(z.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two-layer perceptron with GELU."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.input = nn.Linear(d_model, d_ff)
        self.output = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map each position by itself; ``x`` and the result are ``(examples, positions, d_model)``."""
        return self.output(F.gelu(self.input(x)))


class Block(nn.Module):
    """One layer: attention, then MLP, each reading a normalised residual stream and adding to it."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, rotary: bool, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_heads, rotary, dropout)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = MLP(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map the residual stream, ``(examples, positions, d_model)``, to the next layer's."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Decoder-only pre-LN transformer.

    Args:
        n_layers: Layers.
        n_heads: Attention heads per layer; must divide ``d_model``.
        d_model: Width of the residual stream.
        d_ff: Hidden width of the MLPs.
        vocab_size: Tokens.
        positions: ``"none"`` (the causal mask alone tells positions apart), ``"learned"`` (in training each example
            gets a random offset, so that every position of the table is trained), ``"rotary"`` or ``"sinusoidal"``.
        max_length: Longest input that the model accepts.
        dropout: Dropout probability on attention weights and sublayer outputs.

    Raises:
        ModelError: If the sizes do not fit together, or an input is longer than ``max_length``.
    """

    def __init__(
        self,
        n_layers: int = 4,
        n_heads: int = 4,
        d_model: int = 128,
        d_ff: int = 512,
        vocab_size: int = 103,
        positions: Positions = "none",
        max_length: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("n_layers", n_layers),
            ("n_heads", n_heads),
            ("d_model", d_model),
            ("d_ff", d_ff),
            ("vocab_size", vocab_size),
            ("max_length", max_length),
        ):
            if value < 1:
                raise ModelError(f"{name} must be at least 1; got {value}.")
        if d_model % n_heads:
            raise ModelError(f"n_heads must divide d_model; got n_heads={n_heads} and d_model={d_model}.")
        if positions == "rotary" and (d_model // n_heads) % 2:
            raise ModelError(f"rotary positions need an even d_model / n_heads; got {d_model} / {n_heads}.")
        if positions not in ("none", "learned", "rotary", "sinusoidal"):
            raise ModelError(f"positions must be none, learned, rotary or sinusoidal; got {positions!r}.")
        self.n_layers, self.n_heads, self.d_model, self.d_ff = n_layers, n_heads, d_model, d_ff
        self.vocab_size, self.max_length, self.positions, self.dropout = vocab_size, max_length, positions, dropout
        self.embed = nn.Embedding(vocab_size, d_model)
        if positions == "learned":
            self.position_table: nn.Embedding | None = nn.Embedding(max_length, d_model)
        else:
            self.position_table = None
        if positions == "sinusoidal":
            self.register_buffer("sinusoids", _sinusoids(max_length, d_model), persistent=False)
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, d_ff, positions == "rotary", dropout) for _ in range(n_layers)
        )
        self.final_norm = nn.LayerNorm(d_model)
        self.unembed = nn.Linear(d_model, vocab_size, bias=False)

    def _positions(self, input_ids: Tensor) -> Tensor | float:
        length = input_ids.shape[1]
        if self.positions == "sinusoidal":
            return self.sinusoids[:length]  # type: ignore[index]
        if self.position_table is None:
            return 0.0
        index = torch.arange(length, device=input_ids.device)
        if self.training:
            high = self.max_length - length + 1
            index = index + torch.randint(high, (len(input_ids), 1), device=input_ids.device)
        return self.position_table(index)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return next-token logits, ``(examples, positions, vocab_size)``, for tokens ``(examples, positions)``."""
        if input_ids.shape[1] > self.max_length:
            raise ModelError(
                f"the input has {input_ids.shape[1]} tokens but max_length is {self.max_length}; "
                "raise max_length or shorten the sequences."
            )
        x = self.embed(input_ids) + self._positions(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.final_norm(x))
