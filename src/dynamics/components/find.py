"""Recognise the model family and list its components."""

from __future__ import annotations

from torch import nn

from dynamics.components import decoder
from dynamics.components.base import ComponentMap
from dynamics.errors import ComponentError

FAMILIES = (decoder,)
"""One adapter module per model family: ``NAME``, ``matches(module)``, ``build(module, root)``."""


def find_components(model: nn.Module) -> ComponentMap:
    """List the attention heads and MLPs of a model.

    The transformer may be the model itself or lie anywhere inside it, such as in a LightningModule.

    Args:
        model: The model.

    Returns:
        The components, layer by layer, heads then MLP; their paths start at ``model``.

    Raises:
        ComponentError: If the model holds no transformer of a known family, or more than one.
    """
    if not isinstance(model, nn.Module):
        raise ComponentError(f"find_components takes a torch.nn.Module; got {type(model).__name__}.")
    found: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        inside_another = any(path.startswith(f"{outer}." if outer else "") for outer, _ in found)
        if not inside_another and any(family.matches(module) for family in FAMILIES):
            found.append((path, module))
    if not found:
        children = ", ".join(f"{name} ({type(child).__name__})" for name, child in model.named_children())
        raise ComponentError(
            f"no known transformer in {type(model).__name__}: looked for {', '.join(f.NAME for f in FAMILIES)}; "
            f"its submodules are {children or 'none'}. For another model, pass a ComponentMap of your own "
            "(see docs/how-to/component-map.md)."
        )
    if len(found) > 1:
        raise ComponentError(
            f"{type(model).__name__} holds {len(found)} transformers, at {', '.join(repr(path) for path, _ in found)}; "
            "pass the one to measure, or a ComponentMap of your own (see docs/how-to/component-map.md)."
        )
    root, module = found[0]
    family = next(family for family in FAMILIES if family.matches(module))
    return family.build(module, root)
