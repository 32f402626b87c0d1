"""Recognise the model family and list its components."""

from __future__ import annotations

from torch import nn

from dynamics.components import decoder, gpt2, gpt_neox, litgpt, llama, torch_stack, transformer_lens
from dynamics.components.base import ComponentMap
from dynamics.components.wrappers import is_wrapper
from dynamics.errors import ComponentError

FAMILIES = (decoder, gpt2, llama, gpt_neox, torch_stack, transformer_lens, litgpt)
"""One adapter module per model family.

``NAME``: what is looked for, for messages. ``matches(module)``: whether a module is of the family.
``build(module, path)``: its components, with paths that start at the model. ``maps_to_logits(module)``: whether calling
it with ``input_ids`` gives logits, rather than hidden states from which a head of the user's goes on.
"""


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
        raise ComponentError(
            f"no known transformer in {type(model).__name__}, whose submodules are {_children(model)}. Looked for: "
            f"{'; '.join(family.NAME for family in FAMILIES)}. For another model, pass a ComponentMap of your own "
            "(see docs/how-to/component-map.md)."
        )
    if len(found) > 1:
        raise ComponentError(
            f"{type(model).__name__} holds {len(found)} transformers, at {', '.join(repr(path) for path, _ in found)}; "
            "pass the one to measure, or a ComponentMap of your own (see docs/how-to/component-map.md)."
        )
    path, module = found[0]
    family = next(family for family in FAMILIES if family.matches(module))
    root = path if family.maps_to_logits(module) else _network_around(model, path)
    return ComponentMap(family.build(module, path), root)


def _children(model: nn.Module, most: int = 8) -> str:
    names = [f"{name} ({type(child).__name__})" for name, child in model.named_children()]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more) or "none"


def _network_around(model: nn.Module, path: str) -> str:
    """Return the path of the network that a stack of layers is a part of: the outermost below the trained module."""
    names = path.split(".") if path else []
    for depth in range(len(names)):
        outer = ".".join(names[:depth])
        module = model.get_submodule(outer)
        if not hasattr(module, "training_step") and not is_wrapper(module) and _has_forward(module):
            return outer
    # Nothing lies between it and a LightningModule, whose forward is then the network, if it has one.
    return "" if _has_forward(model) and not is_wrapper(model) else path


def _has_forward(module: nn.Module) -> bool:
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls) or cls is nn.Module)
    return owner.__module__.split(".")[0] not in ("lightning", "pytorch_lightning") and owner is not nn.Module
