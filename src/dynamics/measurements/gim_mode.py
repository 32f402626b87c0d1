"""The thread's mode under which GIM sees each operator of a forward pass and puts its rules on the autograd graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynamics.errors import MeasurementError
from dynamics.measurements import gim_reach as reach
from dynamics.measurements.attention_calls import AttentionCall
from dynamics.measurements.composite import body
from dynamics.measurements.gim_flow import elementwise
from dynamics.measurements.gim_operators import HANDLERS
from dynamics.measurements.gim_trace import ACTIVATION, CONSTANT, INPUT, Trace, Traces, operator_name, tensors_in

Arguments = tuple[Any, ...]
_HERE = object()
_open = threading.local()
# PyTorch numbers hooks without a lock of its own; two contexts that open at once must not get the same number.
_registering = threading.Lock()


@dataclass
class _Call:
    """A module that runs: in which thread, whether on activations, and what had been found before."""

    module: nn.Module
    thread: int
    data: bool
    attention: int
    norm: int


# Questions about a tensor, whose answer is no tensor.
_PLAIN = {"size", "dim", "stride", "numel", "is_floating_point", "is_complex", "item", "tolist"}
_COMPOSITE = (F.multi_head_attention_forward, F.normalize)
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


class GIMMode(TorchFunctionMode):
    """Watches the operators of one model in one thread.

    Args:
        model: The model; only operators that run inside the forward of it or of a submodule are touched.
        temperature: T of rule 1; ``None`` or 1: off.
        freeze_norm: Rule 2.
        split_products: Rule 3.
        observer: With all rules off: told of every attention that runs, and nothing is changed.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float | None,
        freeze_norm: bool,
        split_products: bool,
        observer: Callable[[AttentionCall], None] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.observer = model, observer
        self.temperature = 1.0 if temperature is None else float(temperature)
        self.freeze_norm, self.split_products = freeze_norm, split_products
        self.traces = Traces()
        self.found = {"attention": 0, "norm": 0, "product": 0}
        self.forwards = self.backwards = 0
        self.shadowed = False
        self._paths = {id(module): (path, module) for path, module in model.named_modules()}
        self._buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._owner = threading.get_ident()
        self._ping = torch.zeros((), dtype=torch.int64)
        self._stack: list[_Call] = []
        self._inner: list[GIMMode] = []
        self._grad_at_root = True
        self._backward_depth = 0
        self._acted_without_grad = False
        self._recomputes = False
        self._paused = False
        self._tried: dict[int, bool] = {}

    @property
    def tempers(self) -> bool:
        """Return whether rule 1 is on."""
        return self.temperature != 1.0

    @property
    def acts(self) -> bool:
        """Return whether any rule is on."""
        return self.tempers or self.freeze_norm or self.split_products

    @property
    def on(self) -> bool:
        """Return whether operators are looked at: a rule is on, or somebody observes."""
        return self.observer is not None or self.acts

    @property
    def path(self) -> str:
        """Return the path of the module that runs now."""
        return self._paths[id(self._stack[-1].module)][0] if self._stack else ""

    @property
    def where(self) -> str:
        """Return the module that runs now, for messages."""
        return self._describe(self._stack[-1].module) if self._stack else self._describe(self.model)

    def _describe(self, module: nn.Module) -> str:
        path, _ = self._paths[id(module)]
        return f"{path!r} ({type(module).__name__})" if path else f"the model ({type(module).__name__})"

    # --- which module runs -------------------------------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep track of the modules that run in this thread, and of the contexts around and inside this one."""
        contexts: list[GIMMode] = _open.__dict__.setdefault("contexts", [])
        with ExitStack() as stack:
            for outer in list(contexts):
                self.shadowed = True
                outer._inner.append(self)
                stack.callback(outer._inner.remove, self)
            contexts.append(self)
            stack.callback(contexts.remove, self)
            stack.callback(self.traces.clear)
            with _registering:
                for _, module in self._paths.values():
                    stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def reaches_here(self) -> bool:
        """Say whether this mode is active in the thread that asks, as it also is in the backward threads it starts."""
        return torch.is_floating_point(self._ping) is _HERE

    def _enter(self, module: nn.Module, args: Arguments, kwargs: Mapping[str, Any] | None = None) -> None:
        # Other threads may run the module too, even while this hook is removed (then the keywords are missing).
        thread = threading.get_ident()
        if thread != self._owner and not self.reaches_here():
            return
        if any(id(module) in inner._paths for inner in self._inner):
            # The inner context is in charge of this module, also when all its rules are off.
            self.shadowed = True
            return
        inputs = tensors_in((args, kwargs)) if self.on else []
        if not self._stack:
            self._grad_at_root = torch.is_grad_enabled()
            if not self._backward_depth:
                self.forwards += 1
            for tensor in inputs:
                if not self._is_constant(tensor):
                    self.traces.set(tensor, INPUT)
        data = any(self.trace(tensor).data for tensor in inputs)
        self._stack.append(_Call(module, thread, data, self.found["attention"], self.found["norm"]))

    def _leave(self, module: nn.Module, args: Arguments, output: Any) -> None:
        call = self._stack[-1] if self._stack else None
        if call is None or call.module is not module or call.thread != threading.get_ident():
            return
        results = tensors_in(output) if self.on else []
        try:
            # Without a result an exception is on its way.
            if output is not None and call.data:
                for tensor in results:
                    if not self.trace(tensor).data and self.traces.get(tensor) is None:
                        # No operator was seen to make it, so it is taken to depend on the module's input.
                        self.traces.set(tensor, ACTIVATION)
                if torch.is_grad_enabled():
                    self._check_reached(call, args)
        finally:
            self._stack.pop()
            if not self._stack:
                if self._recomputes:
                    self._guard(results)
                self._acted_without_grad = False
                self.traces.clear()

    def _check_reached(self, call: _Call, args: Arguments) -> None:
        module = call.module
        products = self.tempers or self.split_products
        if products and self.found["attention"] == call.attention and reach.looks_like_attention(module):
            what = "it is attention, but neither fused attention nor a softmax between two products ran in it"
            raise reach.unreachable(self._describe(module), what, "attention")
        if self.freeze_norm and self.found["norm"] == call.norm and args and reach.may_be_norm(module):
            if id(module) not in self._tried:
                self._paused = True
                try:
                    self._tried[id(module)] = reach.behaves_like_norm(module, args[0])
                finally:
                    self._paused = False
            if self._tried[id(module)]:
                what = "its output does not change with the scale of its input, but no norm was seen to run in it"
                raise reach.unreachable(self._describe(module), what, "norm")

    # --- what tensors are --------------------------------------------------------------------------------------------

    def _is_constant(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or id(tensor) in self._buffers

    def trace(self, tensor: Tensor) -> Trace:
        """Return what is known of a tensor; a tensor from nowhere is an activation if it has a graph."""
        known = self.traces.get(tensor)
        if known is not None:
            if not known.given:
                self._check_custom(tensor)
            return known
        if self._is_constant(tensor):
            return CONSTANT
        if tensor.grad_fn is not None:
            self._check_custom(tensor)
            self.traces.set(tensor, ACTIVATION)
            return ACTIVATION
        # In a recomputation of something that is no module, the inputs are not announced.
        return ACTIVATION if self._backward_depth and not self._stack else CONSTANT

    def _check_custom(self, tensor: Tensor) -> None:
        custom = reach.custom_function(tensor)
        if custom is None:
            return
        name, activations = custom
        if self._acted_without_grad and self.acts:
            what = f"the autograd.Function {name} hides operators that the rules act on behind a backward of its own"
            raise reach.unreachable(self.where, what, "attention")
        if activations > 1 and (self.tempers or self.split_products):
            what = f"the autograd.Function {name} combines {activations} activations behind a backward of its own"
            raise reach.unreachable(self.where, what, "attention")
        if "norm" in name.lower() and self.freeze_norm:
            what = f"the autograd.Function {name} is a norm with a backward of its own"
            raise reach.unreachable(self.where, what, "norm")

    # --- operators ---------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else dict(kwargs)
        if args and args[0] is self._ping:
            return _HERE
        name = operator_name(func)
        if not self.on or self._paused or name in _PLAIN:
            return func(*args, **kwargs)
        if func in _BACKWARD:
            return self._backward(func, args, kwargs)
        if not self._in_scope():
            return func(*args, **kwargs)
        if func in _COMPOSITE:
            with self:
                return body(func)(*args, **kwargs)
        rule = reach.operator_rule(name)
        if (rule == "norm" and self.freeze_norm) or (rule == "attention" and (self.tempers or self.split_products)):
            raise reach.unreachable(self.where, f"the operator {name} is called directly", rule)
        result = HANDLERS.get(name, elementwise)(self, name, func, args, kwargs)
        if self._recomputes and torch.is_grad_enabled() and isinstance(result, Tensor) and result.requires_grad:
            self._guard([result])
        return result

    def _in_scope(self) -> bool:
        if self._inner and any(inner._stack for inner in self._inner):
            return False
        return bool(self._stack) or (self._backward_depth > 0 and reach.in_checkpoint())

    def _backward(self, func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        self.backwards += 1
        self._backward_depth += 1
        try:
            # The mode stays on: activation checkpointing runs forward passes in here.
            with self:
                return body(func)(*args, **kwargs)
        finally:
            self._backward_depth -= 1

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def note(self, kind: str) -> None:
        """Remember that a rule found something to act on: ``attention``, ``norm`` or ``product``."""
        self.found[kind] += 1
        if self._grad_at_root and not torch.is_grad_enabled():
            if reach.in_checkpoint():
                self._recomputes = True
            else:
                self._acted_without_grad = True

    def require_inside(self) -> None:
        """Raise if a backward that recomputes part of the forward pass does not run under this mode."""
        if not self.reaches_here():
            raise MeasurementError(
                f"{type(self.model).__name__} recomputes activations in its backward pass (activation checkpointing), "
                "which ran outside gim_backward; run forward and backward inside the context."
            )

    def _guard(self, tensors: list[Tensor]) -> None:
        # Reentrant checkpointing builds its graph only in the backward pass; its successors can still tell.
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self.require_inside())
                self._recomputes = False
