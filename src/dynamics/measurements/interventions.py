"""Contexts that read or change component outputs, and put everything back in ``finally``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dynamics.components import Component, Site
from dynamics.errors import MeasurementError
from dynamics.measurements.derivatives import derivatives
from dynamics.measurements.multihead import output_projections_called, positions_come_first


@contextmanager
def requiring_grad(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let exactly these parameters of a model take part in autograd, frozen ones too."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in zip(parameters, before, strict=True):
            parameter.requires_grad_(flag)


def _first(value: Any, site: Site) -> Tensor:
    """Return the tensor of a hooked call: the first positional argument, or the (first) result."""
    tensor = value[0] if isinstance(value, tuple) and value else value
    if not isinstance(tensor, Tensor):
        raise MeasurementError(
            f"{site.module!r} was expected to have a tensor as its {site.point}; got {type(tensor).__name__}. "
            "Name another module in the component map."
        )
    return tensor


def _hook(model: nn.Module, site: Site, function: Any) -> torch.utils.hooks.RemovableHandle:
    """Register ``function(tensor) -> tensor`` on the tensor of a site."""
    module = model.get_submodule(site.module)

    def change(value: Any) -> Tensor:
        tensor = _first(value, site)
        if (site.positions_first or positions_come_first(module)) and tensor.ndim == 3:
            return function(tensor.transpose(0, 1)).transpose(0, 1)
        return function(tensor)

    if site.point == "input":
        return module.register_forward_pre_hook(lambda _, args: (change(args), *args[1:]))

    def on_output(_: nn.Module, args: Any, output: Any) -> Any:
        changed = change(output)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return module.register_forward_hook(on_output)


@dataclass
class Outputs:
    """The tensors that hold component outputs in one forward pass.

    Attributes:
        tensors: By (module path, point): the whole tensor, ``(examples, positions, width)``.
        leaves: With gradients: zeros added to each tensor; the gradient at the leaf is the gradient at the tensor.
    """

    tensors: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    leaves: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def of(self, component: Component) -> Tensor:
        """Return ``z`` of a component, ``(examples, positions, width)``."""
        site = component.site
        return self.tensors[site.module, site.point][..., site.start : site.stop]

    def gradients(self, total: Tensor) -> dict[tuple[str, str], Tensor]:
        """Return the gradient of a number at each tensor, by (module path, point).

        Raises:
            MeasurementError: If the number does not depend on one of them, or under reentrant checkpointing.
        """
        found = derivatives(total, list(self.leaves.values()))
        gradients = dict(zip(self.leaves, found, strict=True))
        for (module, point), gradient in gradients.items():
            if gradient is None:
                raise MeasurementError(
                    f"the loss does not depend on the {point} of {module!r}, so it has no gradient there; the "
                    "component map must name modules whose tensors the objective uses."
                )
        return gradients


@contextmanager
def reading(model: nn.Module, components: Sequence[Component], gradients: bool = False) -> Iterator[Outputs]:
    """Collect component outputs in the one forward pass that runs inside the context.

    Args:
        model: The model.
        components: The components to read.
        gradients: Add a zero leaf to every tensor, at which the gradient can be asked for, whether or not anything
            upstream requires one.

    Raises:
        MeasurementError: If a module was not called exactly once.
    """
    outputs = Outputs()
    sites = {(c.site.module, c.site.point): c.site for c in components}

    def read(key: tuple[str, str], tensor: Tensor) -> Tensor:
        if key in outputs.tensors:
            raise MeasurementError(
                f"{key[0]!r} is called more than once in one evaluation of the objective; a component's output must "
                "appear once. Let the objective call the model once, or map each use to a module of its own."
            )
        if gradients:
            leaf = torch.zeros_like(tensor, requires_grad=True)
            tensor, outputs.leaves[key] = tensor + leaf, leaf
        outputs.tensors[key] = tensor
        return tensor

    with ExitStack() as stack:
        stack.enter_context(output_projections_called(model, (module for module, _ in sites)))
        for key, site in sites.items():
            stack.callback(_hook(model, site, lambda tensor, key=key: read(key, tensor)).remove)
        yield outputs
    for key, site in sites.items():
        if key not in outputs.tensors:
            raise _never_called(site)


@contextmanager
def changed(
    model: nn.Module, components: Sequence[Component], changes: Sequence[Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    """Change the outputs of components in the forward passes that run inside the context.

    Args:
        model: The model.
        components: The components to change, together.
        changes: What makes of each one's ``z``, ``(examples, positions, width)``, what takes its place; the result is
            broadcast against ``z``.

    Raises:
        MeasurementError: If a module was never called, so that nothing was changed.
    """
    called: set[Site] = set()

    def change(site: Site, function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
        called.add(site)
        result = tensor.clone()
        place = slice(site.start, site.stop)
        result[..., place] = function(tensor[..., place])
        return result

    with ExitStack() as stack:
        stack.enter_context(output_projections_called(model, (component.site.module for component in components)))
        for component, function in zip(components, changes, strict=True):
            site = component.site
            stack.callback(_hook(model, site, lambda t, s=site, f=function: change(s, f, t)).remove)
        yield
    for component in components:
        if component.site not in called:
            raise _never_called(component.site)


def replaced(
    model: nn.Module, components: Sequence[Component], values: Sequence[Tensor]
) -> AbstractContextManager[None]:
    """Replace the outputs of components by constants in the forward passes that run inside the context.

    Args:
        model: The model.
        components: The components to ablate, together.
        values: What each one's ``z`` becomes, broadcast against ``(examples, positions, width)``.

    Raises:
        MeasurementError: If a module was never called, so that nothing was replaced.
    """

    def constant(value: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda z: value.to(z)

    return changed(model, components, [constant(value) for value in values])


def _never_called(site: Site) -> MeasurementError:
    return MeasurementError(
        f"{site.module!r} was never called while the objective ran, so nothing was measured there. "
        "Does the objective use the model it is given?"
    )
