"""What a component is: an attention head or an MLP, where its output appears and which weights are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from dynamics.errors import ComponentError

Kind = Literal["head", "mlp"]
Weights = Literal["value_out", "all"]


def check_weights(which: Weights) -> Weights:
    """Return the argument, or raise a `ComponentError` unless it is ``"value_out"`` or ``"all"``."""
    if which not in ("value_out", "all"):
        raise ComponentError(f"weights must be 'value_out' or 'all'; got {which!r}.")
    return which


@dataclass(frozen=True)
class Site:
    """Where a component's output ``z`` can be read and replaced.

    Attributes:
        module: Path of a submodule, as ``model.get_submodule`` takes it.
        point: ``"input"``: z is in the module's first argument; ``"output"``: in what it returns.
        start: First index of z in the last dimension.
        stop: End of z in the last dimension (exclusive); ``None``: to the end.
        positions_first: Whether the tensor there is ``(positions, examples, width)``, as with ``batch_first=False``,
            rather than ``(examples, positions, width)``. At the ``out_proj`` of an ``nn.MultiheadAttention`` it always
            is, and need not be said.
    """

    module: str
    point: Literal["input", "output"]
    start: int = 0
    stop: int | None = None
    positions_first: bool = False


@dataclass(frozen=True)
class WeightSlice:
    """A block of a weight matrix that belongs to one component.

    Attributes:
        parameter: Path of the parameter, as ``model.get_parameter`` takes it.
        dim: Dimension of the parameter, as stored, along which the block is cut.
        start: First index of the block.
        stop: End of the block (exclusive); ``None``: to the end.
    """

    parameter: str
    dim: int = 0
    start: int = 0
    stop: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """Return the block of the parameter, or of a tensor shaped like it (its gradient), as a view."""
        stop = tensor.shape[self.dim] if self.stop is None else self.stop
        return tensor.narrow(self.dim, self.start, stop - self.start)


@dataclass(frozen=True)
class Component:
    """An attention head or an MLP sublayer.

    Attributes:
        layer: Zero-based layer.
        kind: ``"head"`` or ``"mlp"``.
        head: Zero-based index within the layer; ``None`` for an MLP.
        site: Where its output ``z`` appears: for a head its d_head-wide slice of the input of the attention output
            projection, for an MLP its d_model-wide output.
        value_out: The weights through which it writes: of a head its rows of W_V and columns of W_O, of an MLP its
            output matrix.
        all_weights: Every weight matrix of the component.
    """

    layer: int
    kind: Kind
    head: int | None
    site: Site
    value_out: tuple[WeightSlice, ...]
    all_weights: tuple[WeightSlice, ...]

    @property
    def label(self) -> str:
        """Return ``L0H3`` for head 3 of layer 0, ``L0MLP`` for its MLP."""
        return f"L{self.layer}MLP" if self.head is None else f"L{self.layer}H{self.head}"

    def weights(self, which: Weights) -> tuple[WeightSlice, ...]:
        """Return ``value_out`` or all weights, by name."""
        return self.value_out if check_weights(which) == "value_out" else self.all_weights


class ComponentMap(Sequence[Component]):
    """The components of a model, layer by layer, heads then MLP.

    Args:
        components: The components, in order.
        root: Path of the transformer inside the model, which maps ``input_ids`` to logits; ``""`` is the model itself.

    Raises:
        ComponentError: If there are none, or two share a label.
    """

    def __init__(self, components: Sequence[Component], root: str = "") -> None:
        self.components, self.root = tuple(components), root
        if not self.components:
            raise ComponentError("a component map needs at least one component; got none.")
        twice = sorted({label for label in self.labels if self.labels.count(label) > 1})
        if twice:
            raise ComponentError(
                f"each component needs a label of its own, but {', '.join(twice)} come more than once."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels, ``L0H0``, …, in order."""
        return tuple(component.label for component in self.components)

    def __len__(self) -> int:
        return len(self.components)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.components[index]

    def __iter__(self) -> Iterator[Component]:
        return iter(self.components)

    def __repr__(self) -> str:
        return f"ComponentMap({len(self)} components: {self.labels[0]} … {self.labels[-1]})"

    def network(self, model: nn.Module) -> nn.Module:
        """Return the transformer inside ``model``."""
        return model.get_submodule(self.root)

    def check(self, model: nn.Module) -> None:
        """Raise a `ComponentError` that names the first module or weight that ``model`` does not have."""
        for component in self.components:
            self._look_up(component.label, "module", component.site.module, model, model.get_submodule)
            for block in dict.fromkeys((*component.value_out, *component.all_weights)):
                weight = self._look_up(component.label, "weight", block.parameter, model, model.get_parameter)
                end = weight.shape[block.dim] if block.stop is None else block.stop
                if not 0 <= block.start < end <= weight.shape[block.dim]:
                    raise ComponentError(
                        f"{component.label}: {block.parameter} has {weight.shape[block.dim]} entries along dimension "
                        f"{block.dim}, but the component map asks for {block.start} to {end}."
                    )
        self._look_up("root", "module", self.root, model, model.get_submodule)

    @staticmethod
    def _look_up(  # type: ignore[no-untyped-def]
        name: str, what: str, path: str, model: nn.Module, get: Callable[[str], object]
    ):
        try:
            return get(path)
        except AttributeError as error:
            raise ComponentError(
                f"{name}: the model has no {what} {path!r}, which the component map names. {_suggestion(model, path)}"
            ) from error


def _suggestion(model: nn.Module, path: str) -> str:
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
    longer = [name for name in names if path and name.endswith(f".{path}")]
    if len(longer) == 1:
        prefix = longer[0].removesuffix(f".{path}")
        return (
            f"There is {longer[0]!r}: let all paths of the map start with {prefix!r}, and pass root={prefix!r} if the "
            "transformer lies there."
        )
    return "Was the map made for another model, or the model changed since?"
