"""The input embedding of any language model: found by what is called with the token ids, and replaced in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamics.errors import MeasurementError

Baseline = str | int | Tensor
"""``"zero"``, ``"mean"``, a token id, or an embedding ``(width,)``."""


@dataclass(frozen=True)
class InputEmbedding:
    """The module that turns token ids into the vectors that the model starts from.

    Attributes:
        path: Its path in the model.
        module: The module.
    """

    path: str
    module: nn.Module

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of tokens, ``(examples, positions, width)``, without a graph."""
        with torch.no_grad():
            output: Tensor = self.module(input_ids)
        return output.detach()

    @contextmanager
    def replaced(self, input_ids: Tensor, value: Tensor) -> Iterator[None]:
        """Let the embeddings of ``input_ids`` be ``value`` in the forward passes that run inside the context.

        Only what the module returns is replaced: its weight, which an unembedding may share, stays as it is.

        Args:
            input_ids: The tokens that the model is called with, ``(examples, positions)``.
            value: ``(examples, positions, width)``.

        Raises:
            MeasurementError: If the module was not called with these tokens, so that nothing was replaced.
        """
        calls = 0

        def put(_: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:
            nonlocal calls
            if not _is_given(input_ids, args, kwargs):
                return output
            calls += 1
            return value

        handle = self.module.register_forward_hook(put, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
        if not calls:
            raise MeasurementError(
                f"the input embedding {self.path!r} was not called with the tokens, so nothing was replaced there. "
                "Does the model change its input_ids, or call the embedding only now and then?"
            )

    def baseline(self, baseline: Baseline, input_ids: Tensor, like: Tensor) -> Tensor:
        """Return the embedding that stands for "no token", ``(width,)``.

        Args:
            baseline: ``"zero"``; ``"mean"``: the mean embedding of the vocabulary; a token's id; or the embedding.
            input_ids: Tokens of the model, for their dtype and device.
            like: Embeddings of the model.

        Raises:
            MeasurementError: If the baseline is none of these, or the vocabulary is not known.
        """
        width = like.shape[-1]
        if isinstance(baseline, Tensor):
            if tuple(baseline.shape) != (width,):
                raise MeasurementError(
                    f"a baseline embedding must be ({width},), as wide as the input embedding; "
                    f"got {tuple(baseline.shape)}."
                )
            return baseline.detach().to(like)
        if baseline == "zero":
            return torch.zeros_like(like[0, 0])
        size = getattr(self.module, "num_embeddings", None)
        if baseline == "mean":
            if not isinstance(size, int):
                raise MeasurementError(
                    f"baseline 'mean' needs an input embedding with num_embeddings, but {self.path!r} is a "
                    f"{type(self.module).__name__} without; pass an embedding of your own as baseline."
                )
            every = torch.arange(size, dtype=input_ids.dtype, device=input_ids.device)
            wide = torch.float64 if like.dtype == torch.float64 else torch.float32
            sums = [self(part[None]).to(wide).sum((0, 1)) for part in every.split(4096)]
            return (torch.stack(sums).sum(0) / size).to(like)
        if isinstance(baseline, int) and not isinstance(baseline, bool):
            if baseline < 0 or (isinstance(size, int) and baseline >= size):
                raise MeasurementError(
                    f"the baseline token must be one of the {size} that {self.path!r} embeds; got {baseline}."
                )
            return self(torch.full_like(input_ids[:1, :1], baseline))[0, 0]
        raise MeasurementError(
            f"baseline must be 'zero', 'mean', a token id or an embedding (width,); got {baseline!r}."
        )


def find_input_embedding(model: nn.Module, run: Callable[[Tensor], Any], input_ids: Tensor) -> InputEmbedding:
    """Find the module that is called with the token ids and looks each of them up.

    Args:
        model: The model.
        run: Runs a forward pass of the model on tokens.
        input_ids: Tokens, ``(examples, positions)``.

    Raises:
        MeasurementError: If no module is called with them, or several are.
    """
    found = _called_with(model, run, input_ids)
    if len(found) > 1:
        # Position numbers may happen to equal the tokens, but they do not change with them.
        sizes = [module.num_embeddings for module in found.values() if isinstance(module, nn.Embedding)]
        other = (input_ids + 1) % min(sizes, default=int(input_ids.max()) + 1)
        again = _called_with(model, run, other)
        found = {path: module for path, module in found.items() if path in again}
    name = type(model).__name__
    if not found:
        raise MeasurementError(
            f"no input embedding found in {name}: none of its modules is called with the token ids and looks up an "
            "embedding for each. Let the model call an nn.Embedding with its input_ids, or name the module: embedding=."
        )
    if len(found) > 1:
        named = " and ".join(f"{path!r} ({type(module).__name__})" for path, module in found.items())
        raise MeasurementError(
            f"{name} holds {len(found)} input embeddings: {named} are all called with the token ids. "
            "Name the one to attribute to: embedding=."
        )
    [(path, module)] = found.items()
    return InputEmbedding(path, module)


def named_embedding(model: nn.Module, module: nn.Module) -> InputEmbedding:
    """Return the input embedding that the user named.

    Raises:
        MeasurementError: If it is not a part of the model.
    """
    for path, part in model.named_modules():
        if part is module:
            return InputEmbedding(path, module)
    raise MeasurementError(
        f"embedding= must be a module inside {type(model).__name__}; got {type(module).__name__} from elsewhere."
    )


def _called_with(model: nn.Module, run: Callable[[Tensor], Any], input_ids: Tensor) -> dict[str, nn.Module]:
    """Return the innermost modules, by path, that were called with the tokens and returned a vector for each."""
    called: dict[str, nn.Module] = {}

    def note(path: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        vectors = isinstance(output, Tensor) and output.is_floating_point() and output.ndim == input_ids.ndim + 1
        if vectors and output.shape[:-1] == input_ids.shape and _is_given(input_ids, args, kwargs):
            called[path] = module

    with ExitStack() as stack, torch.no_grad():
        for path, module in model.named_modules():
            if module is model:
                continue
            handle = module.register_forward_hook(
                lambda m, args, kwargs, output, path=path: note(path, m, args, kwargs, output), with_kwargs=True
            )
            stack.callback(handle.remove)
        run(input_ids)
    return {
        path: module
        for path, module in called.items()
        if not any(other.startswith(f"{path}.") for other in called) and _looks_up(module, input_ids)
    }


def _is_given(input_ids: Tensor, args: Any, kwargs: Mapping[str, Any]) -> bool:
    return any(
        isinstance(value, Tensor)
        and value.shape == input_ids.shape
        and not value.is_floating_point()
        and value.dtype != torch.bool
        and bool((value == input_ids).all())
        for value in (*args, *kwargs.values())
    )


def _looks_up(module: nn.Module, input_ids: Tensor) -> bool:
    """Say whether a module maps each token by itself, wherever it stands: a stack of layers on top would not."""
    if isinstance(module, nn.Embedding):
        return True
    tokens = input_ids.unique()
    tokens = torch.stack([tokens, tokens.flip(0)])
    try:
        here, there = module.forward(tokens)
    except Exception:  # it needs more than tokens
        return False
    return bool(torch.equal(here, there.flip(0)))
