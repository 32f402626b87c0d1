"""The packages that are compared, behind one interface: a context in which some of the rules are on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from dynamics import GIMRules, gim_backward

REFERENCE = "gim-explain"
RULES = ("norm freeze", "softmax", "q/k/v", "gate/up")
OFF = GIMRules(None, False, False)


class NoSuchRule(Exception):  # noqa: N818 - an answer, not a failure
    """The package has no such rule."""


class Ours:
    """This package."""

    name = "dynamics"

    @staticmethod
    def everything(model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context with every rule on."""
        return gim_backward(model)

    @staticmethod
    @contextmanager
    def alone(model: nn.Module, rule: str) -> Iterator[None]:
        """Switch one rule on; the two kinds of products by contexts around the MLPs, in which the inner rules win."""
        mlps = [module for path, module in model.named_modules() if path.endswith(".mlp")]
        with ExitStack() as stack:
            if rule == "norm freeze":
                stack.enter_context(gim_backward(model, GIMRules(None, True, False)))
            elif rule == "softmax":
                stack.enter_context(gim_backward(model, GIMRules(2.0, False, False)))
            elif rule == "q/k/v":
                stack.enter_context(gim_backward(model, GIMRules(None, False, True)))
                for mlp in mlps:
                    stack.enter_context(gim_backward(mlp, OFF))
            else:
                for mlp in mlps:
                    stack.enter_context(gim_backward(mlp, GIMRules(None, False, True)))
            yield

    @staticmethod
    def products(model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context with the rules on products alone: queries, keys, values and gates."""
        return gim_backward(model, GIMRules(None, False, True))


class Reference:
    """The public reference package, version 0.1.4 when this was written."""

    name = REFERENCE

    @staticmethod
    def everything(model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context with every rule on."""
        import gim

        return gim.GIM(model)

    @staticmethod
    def alone(model: nn.Module, rule: str) -> AbstractContextManager[Any]:
        """Switch one rule on, by the package's own parameters."""
        import gim

        none = {"freeze_norm": False, "softmax_temperature": None, "q_scale": None, "k_scale": None, "v_scale": None}
        on = {
            "norm freeze": {"freeze_norm": True},
            "softmax": {"softmax_temperature": 2.0},
            "q/k/v": {"q_scale": 0.25, "k_scale": 0.25, "v_scale": 0.5},
        }
        if rule not in on:
            raise NoSuchRule
        return gim.GIM(model, **{**none, **on[rule]})

    @staticmethod
    def products(model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context with the rules on products alone: queries, keys and values."""
        return Reference.alone(model, "q/k/v")


def reference_version() -> str | None:
    """Return the version of the reference package, or ``None`` where it is not installed."""
    try:
        return version(REFERENCE)
    except PackageNotFoundError:
        return None
