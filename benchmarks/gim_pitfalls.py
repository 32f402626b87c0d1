"""What is easy to get wrong in a backward pass like GIM's, as one small check each, the same for every package.

A check takes a package (see `gim_packages`) and returns what was seen, in a few words.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from gim_packages import Ours
from torch import Tensor, nn

from tests.measurements import gim_families as families
from tests.measurements.gim_families import at_tokens, decoder, distance, score

Check = Callable[[Any], str]
SAME = 1e-12


@contextmanager
def restoring_torch() -> Iterator[None]:
    """Put PyTorch's own functions back, whatever a package leaves behind, so that checks do not meet each other."""
    places = [(F, "softmax"), (torch, "softmax"), (torch.Tensor, "softmax"), (F, "scaled_dot_product_attention")]
    kept = [(owner, name, getattr(owner, name)) for owner, name in places]
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def run(check: Check, package: Any) -> str:
    """Return what a check saw; an exception by its type."""
    with restoring_torch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(package)
        except Exception as error:
            return f"raises {type(error).__name__}"


def threads_overlap(package: Any) -> str:
    """Two threads whose contexts overlap, the first one ending first."""
    model = families.MultiheadDecoder(decoder(), "eager")
    before = at_tokens(model)
    entered, left = (threading.Event(), threading.Event()), threading.Event()
    failures: list[BaseException] = []

    def first() -> None:
        try:
            with package.everything(model):
                entered[0].set()
                entered[1].wait(20)
        except BaseException as error:
            failures.append(error)
        finally:
            entered[0].set()
            left.set()

    def second() -> None:
        entered[0].wait(20)
        try:
            with package.everything(model):
                entered[1].set()
                left.wait(20)
        except BaseException as error:
            failures.append(error)
        finally:
            entered[1].set()

    workers = [threading.Thread(target=work) for work in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return "undone" if torch.equal(at_tokens(model), before) else "still on after both have ended"


def an_exception_inside(package: Any) -> str:
    """An exception leaves the context."""
    model = families.MultiheadDecoder(decoder(), "eager")
    before = at_tokens(model)
    try:
        with package.everything(model):
            score(model)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return "undone" if torch.equal(at_tokens(model), before) else "still on"


def other_threads(package: Any) -> str:
    """Another thread uses a model of its own while a context is open."""
    model, other = (families.MultiheadDecoder(decoder(), "eager") for _ in range(2))
    before, found = at_tokens(other), []
    with package.everything(model):
        worker = threading.Thread(target=lambda: found.append(at_tokens(other)))
        worker.start()
        worker.join()
        score(model)
    return "ordinary gradients" if torch.equal(found[0], before) else "its gradients change too"


def nested(package: Any) -> str:
    """A context inside another of the same model."""
    model = decoder()
    once = at_tokens(model, package.everything(model))
    with package.everything(model):
        twice = at_tokens(model, package.everything(model))
    return "as one context" if distance(twice, once) < SAME else "rules applied twice"


def bf16_norm(package: Any) -> str:
    """A bfloat16 model with LayerNorm."""
    model = decoder(torch.bfloat16)
    found = at_tokens(model, package.everything(model))
    exact = decoder(torch.bfloat16).double()
    error = distance(found, at_tokens(exact, Ours.everything(exact)))
    return "works" if error < 0.1 else f"off by {error:.0%}"


def norm_without_bias(package: Any) -> str:
    """``nn.LayerNorm(bias=False)``."""
    model = decoder()
    model.final_norm = families.random_weights(nn.LayerNorm(16, bias=False)).double()
    twin = decoder()
    with torch.no_grad():
        twin.final_norm.weight.copy_(model.final_norm.weight)
        twin.final_norm.bias.zero_()
    found = at_tokens(model, package.everything(model))
    return "works" if distance(found, at_tokens(twin, package.everything(twin))) < SAME else "wrong gradient"


class Doubled(nn.LayerNorm):
    """A subclass whose forward pass is not the base class's."""

    def forward(self, x: Tensor) -> Tensor:
        """Return twice the norm."""
        return 2 * super().forward(x)


def norm_subclass(package: Any) -> str:
    """A subclass of ``nn.LayerNorm`` with a forward pass of its own."""
    model = decoder()
    norm = Doubled(16).double()
    norm.load_state_dict(model.final_norm.state_dict())
    model.final_norm = norm
    plain = score(model)
    with package.everything(model):
        value = score(model)
    return "its forward pass is kept" if distance(value, plain) < SAME else "its forward pass is replaced"


def shared_norm(package: Any) -> str:
    """One norm under two names of the same module."""
    model, apart = decoder(), decoder()
    for block, other in zip(model.blocks, apart.blocks, strict=True):
        block.mlp_norm = block.attention_norm
        other.mlp_norm = copy.deepcopy(other.attention_norm)
    found, expected = (at_tokens(m, package.alone(m, "norm freeze")) for m in (model, apart))
    return "frozen under both" if distance(found, expected) < SAME else "frozen under one only"


def norm_parameters(package: Any) -> str:
    """Gradients of the norms' own parameters."""
    model = decoder()
    with package.everything(model):
        score(model).backward()
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    missing = sum(p.grad is None for norm in norms for p in norm.parameters())
    return "defined" if not missing else f"{missing} of {2 * len(norms)} missing"


def router_softmax(package: Any) -> str:
    """The softmax of a router (Mixtral) under the softmax rule alone."""
    model = families.hugging_face("Mixtral")
    last = model.model.layers[-1].mlp
    found = []
    for context in (nullcontext(), package.alone(model, "softmax")):
        # Behind the last attention; only the router's softmax is left.
        with context:
            value = score(model)
        found.append(torch.autograd.grad(value, last.gate.weight)[0])
    return "left alone" if torch.equal(*found) else f"altered ({distance(found[1], found[0]):.2f})"


def softmax_outside(package: Any) -> str:
    """A softmax in the user's own metric, inside the context."""
    model, x = decoder(), torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1)[0, 0], x)
    with package.everything(model):
        score(model)
        y = torch.softmax(x, -1)
    return "left alone" if torch.equal(torch.autograd.grad(y[0, 0], x)[0], expected) else "altered"


def softmax_with_dtype(package: Any) -> str:
    """``F.softmax(x, dim=-1, dtype=...)`` inside the context."""
    model = decoder()
    with package.everything(model):
        score(model)
        F.softmax(torch.zeros(1, 3), dim=-1, dtype=torch.float64)
    return "works"


def gate(build: Callable[[], families.Part]) -> Check:
    """Return the check of one kind of gated MLP: are the gradients of what comes before the gate's product halved."""

    def check(package: Any) -> str:
        part, before, _ = build()
        x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        weight = dict(part.named_parameters())[before[0]]
        found = []
        for context in (nullcontext(), package.products(part)):
            with context:
                y = part(x.clone().requires_grad_())
            found.append(torch.autograd.grad(y.sin().sum(), weight)[0])
        if torch.equal(*found):
            return "left alone"
        return "halved" if distance(found[1], found[0] / 2) < SAME else "changed otherwise"

    return check


def ungated_mlp_through_a_bridge(package: Any) -> str:
    """The ungated MLP of GPT-2 under the product rules, through TransformerLens."""
    model = families.bridge("GPT-2")
    weights = [p for path, p in model.named_parameters() if ".1." in path and ".mlp." in path]
    found = []
    for context in (nullcontext(), package.products(model)):
        with context:
            value = score(model)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, weights)]))
    if distance(found[1], found[0]) < SAME:
        return "left alone"
    return "halved" if distance(found[1], found[0] / 2) < SAME else "changed otherwise"


def checkpointed(inside: bool, reentrant: bool) -> Check:
    """Return the check of activation checkpointing (Llama), with the backward pass inside or outside the context."""

    def gradient(package: Any, checkpointing: bool, on: bool = True) -> Tensor:
        model = families.hugging_face("Llama").train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with package.products(model) if on else nullcontext():
            value = score(model)
            if inside:
                value.backward()
        if not inside:
            value.backward()
        return families.embedding_of(model).weight.grad

    def check(package: Any) -> str:
        found = gradient(package, checkpointing=True)
        if distance(found, gradient(package, checkpointing=False)) < SAME:
            return "as without checkpointing"
        ordinary = gradient(package, checkpointing=True, on=False)
        return f"{'ordinary' if distance(found, ordinary) < SAME else 'other'} gradients, silently"

    return check


def compiled(package: Any) -> str:
    """``torch.compile`` (Inductor) of a model with fused attention."""
    model = decoder(torch.float32)
    weight = model.embed.weight
    with package.everything(model):
        value = score(model)
    (expected,) = torch.autograd.grad(value, weight)
    torch._dynamo.reset()
    fast = torch.compile(model)
    with package.everything(fast):
        value = score(fast)
        (found,) = torch.autograd.grad(value, weight)
    error = distance(found, expected)
    return "as without compilation" if error < 1e-5 else f"off by {error:.0%}"


PITFALLS: dict[str, Check] = {
    "contexts of two threads overlap": threads_overlap,
    "another thread, while a context is open": other_threads,
    "an exception inside": an_exception_inside,
    "a context inside another": nested,
    "LayerNorm in bfloat16": bf16_norm,
    "LayerNorm(bias=False)": norm_without_bias,
    "a subclass of LayerNorm": norm_subclass,
    "one norm under two names": shared_norm,
    "gradients of the norms' parameters": norm_parameters,
    "the softmax of Mixtral's router": router_softmax,
    "a softmax in the user's metric": softmax_outside,
    "softmax(..., dtype=...) in the user's code": softmax_with_dtype,
    "gates of Mixtral's experts": gate(lambda: families.mixture("Mixtral")),
    "gates of Qwen3-MoE's experts": gate(lambda: families.mixture("Qwen3-MoE")),
    "gates of OLMoE's experts": gate(lambda: families.mixture("OLMoE")),
    "T5's gated MLP": gate(lambda: families.gated("T5, gated")),
    "ModernBERT's gated MLP": gate(lambda: families.gated("ModernBERT")),
    "GPT-2's ungated MLP, through TransformerLens": ungated_mlp_through_a_bridge,
    "activation checkpointing, backward inside": checkpointed(inside=True, reentrant=False),
    "activation checkpointing, backward outside": checkpointed(inside=False, reentrant=False),
    "reentrant checkpointing, backward inside": checkpointed(inside=True, reentrant=True),
    "reentrant checkpointing, backward outside": checkpointed(inside=False, reentrant=True),
    "torch.compile with fused attention": compiled,
}
