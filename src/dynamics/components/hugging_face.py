"""How models of the transformers library are told, without importing it: by the home of their classes and by structure.

Any version of the library will do, and a subclass of the user's is recognised like the class that it extends.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn


def family(module: nn.Module) -> str | None:
    """Return the folder ``transformers.models.<family>`` that a module's class, or one it extends, comes from."""
    for cls in type(module).__mro__:
        names = cls.__module__.split(".")
        if names[:2] == ["transformers", "models"] and len(names) > 2:
            return names[2]
    return None


def stack(module: nn.Module, families: Collection[str], layers: str) -> str | None:
    """Return the path, inside ``module``, of the bare decoder that holds the list ``layers``.

    Args:
        module: Any module.
        families: The families to recognise.
        layers: Name of the list of layers.

    Returns:
        ``""`` if the module is the bare decoder (``LlamaModel``); its path if the module is a language model around it
        (``LlamaForCausalLM``); ``None`` for anything else, such as a classifier around it, or a part of it.
    """
    if family(module) not in families:
        return None
    if isinstance(getattr(module, layers, None), nn.ModuleList):
        return ""
    prefix, head = getattr(module, "base_model_prefix", ""), getattr(module, "get_output_embeddings", None)
    inner = getattr(module, prefix, None) if prefix else None
    whole = inner is not None and isinstance(getattr(inner, layers, None), nn.ModuleList)
    return prefix if whole and head is not None and head() is not None else None
