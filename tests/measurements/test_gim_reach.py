"""What GIM refuses, with the whole message; nothing is skipped silently."""

import itertools
import re
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamics import GIMRules, gim_backward
from dynamics.errors import MeasurementError
from dynamics.measurements.gim_reach import running_eagerly
from dynamics.model import Transformer
from tests.measurements.gim_models import Apply, GatedMLP, GroupedAttention, LlamaBlock, LlamaNorm, randomised

ATTENTION = GIMRules(freeze_norm=False)
NORM = GIMRules(None, True, False)
OPERATORS = "Use PyTorch's own operators there (scaled_dot_product_attention, softmax, layer_norm, rms_norm), or"
NO_ATTENTION = f"{OPERATORS} switch the rule off: GIMRules(temperature=None, split_products=False)."
NO_NORM = f"{OPERATORS} switch the rule off: GIMRules(freeze_norm=False)."


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def message(model, rules, x=None, backward=False, **options):
    """Return what the context, or the backward pass after it, raises."""
    x = (random(2, 4, 8) if x is None else x).requires_grad_()
    with pytest.raises(MeasurementError) as caught:  # noqa: PT012 - in the context, or after it
        with gim_backward(model, rules):
            y = model(x)
        assert backward
        torch.autograd.grad(y.sum(), x, **options)
    return str(caught.value)


class Holder(nn.Module):
    """A model with one part, by name."""

    def __init__(self, part, first=None):
        super().__init__()
        self.first, self.part = first, part

    def forward(self, x):
        return self.part(x if self.first is None else self.first(x))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "2", True])
def test_a_temperature_that_is_none_is_refused(value):
    with pytest.raises(MeasurementError) as caught:
        GIMRules(temperature=value)
    assert str(caught.value) == (
        f"temperature must be a positive number, or None to switch the rule off; got {value!r}."
    )


def test_the_rules_are_values():
    assert GIMRules() == GIMRules(2, True, True)
    assert hash(GIMRules()) == hash(GIMRules(2.0))
    with pytest.raises(AttributeError):
        GIMRules().temperature = 3.0


# --- nothing found ---------------------------------------------------------------------------------------------------

SOUGHT = {
    "temperature": "no attention whose softmax to temper (looked for scaled_dot_product_attention, a softmax between "
    "two products of activations, nn.MultiheadAttention; off: temperature=None)",
    "freeze_norm": "no norm to freeze (looked for layer_norm, rms_norm, and an activation times a function of its own "
    "mean square; off: freeze_norm=False)",
    "split_products": "no product to split (looked for query x key and pattern x value in attention, gate x up in "
    "gated MLPs; off: split_products=False)",
}


@pytest.mark.parametrize("on", [on for n in (1, 2, 3) for on in itertools.combinations(SOUGHT, n)])
def test_a_rule_that_finds_nothing_raises_at_the_end(on):
    rules = GIMRules(2.0 if "temperature" in on else None, "freeze_norm" in on, "split_products" in on)
    model = nn.Sequential(nn.Linear(8, 8).double(), nn.GELU(), nn.Softmax(-1))
    expected = "; ".join(text for name, text in SOUGHT.items() if name in on)
    assert message(model, rules) == f"gim_backward found nothing to act on in Sequential: {expected}."


def test_without_a_forward_pass_nothing_is_missed_and_a_lone_backward_is_an_error():
    model = randomised(LlamaBlock())
    with gim_backward(model):
        pass
    x = random(2, 4, 8).requires_grad_()
    y = model(x).sum()
    for backward in (
        lambda: y.backward(retain_graph=True),
        lambda: torch.autograd.grad(y, x, retain_graph=True),
        lambda: torch.autograd.backward([y], retain_graph=True),
    ):
        with pytest.raises(MeasurementError) as caught, gim_backward(model):
            backward()
        assert str(caught.value) == (
            "a backward pass ran inside gim_backward, but no forward pass of LlamaBlock did, so no rule could act. "
            "Run the forward pass inside the context too."
        )
    with gim_backward(model, GIMRules(None, False, False)):
        y.backward(retain_graph=True)
    with gim_backward(model):
        y.backward()
        model(x)


def test_an_ungated_mlp_is_no_error_and_a_gated_one_alone_is_enough_for_the_split():
    torch.manual_seed(0)
    plain = Transformer(n_layers=1, n_heads=2, d_model=8, d_ff=4, vocab_size=5).eval()
    with gim_backward(plain):
        plain(torch.tensor([[1, 2]]))
    gated = randomised(GatedMLP(8))
    with gim_backward(gated, GIMRules(None, False, True)):
        gated(random(2, 8))


def test_another_models_forward_does_not_count():
    model, other = randomised(LlamaBlock()), randomised(LlamaBlock())
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model):
        y = other(x)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, torch.autograd.grad(other(x).sum(), x)[0])


# --- out of reach ----------------------------------------------------------------------------------------------------


class Hidden(torch.autograd.Function):
    """Attention behind a backward of its own."""

    @staticmethod
    def forward(ctx, q, k, v):
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in (q, k, v)]
            ctx.inputs, ctx.output = inputs, F.scaled_dot_product_attention(*inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.output, ctx.inputs, g)


class HiddenNorm(torch.autograd.Function):
    """A norm in numpy, as a kernel would be: no operator is seen."""

    @staticmethod
    def forward(ctx, x):
        data = x.detach().numpy()
        return torch.from_numpy(data / (data**2).mean(-1, keepdims=True) ** 0.5)

    @staticmethod
    def backward(ctx, g):
        return g


class HiddenSquash(HiddenNorm):
    """A nonlinearity as a kernel."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() / (1 + abs(x.detach().numpy())))


class Projections(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.attend = attend

    def forward(self, x):
        return self.out(self.attend(self.q(x), self.k(x), self.v(x)))


class OneOfManyAttentions(Projections):
    pass


def whole_attention(x, *weights):
    q, k, v = (x @ weight.T for weight in weights)
    return torch.softmax(q @ k.mT, -1) @ v


class HiddenWhole(torch.autograd.Function):
    """Projections and attention in one, with operators that are seen but a backward of its own."""

    @staticmethod
    def forward(ctx, x, *weights):
        ctx.save_for_backward(x, *weights)
        return whole_attention(x, *weights)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            return torch.autograd.grad(whole_attention(*inputs), inputs, g)


CUSTOM = {
    "three activations": (
        Hidden.apply,
        "'part' (Projections): the autograd.Function Hidden combines 3 activations behind a backward of its own",
    ),
    "two activations": (
        lambda q, k, v: Hidden.apply(q, k, k) + v,
        "'part' (Projections): the autograd.Function Hidden combines 3 activations behind a backward of its own",
    ),
}


@pytest.mark.parametrize("case", CUSTOM.values(), ids=CUSTOM)
def test_a_custom_function_of_several_activations_is_named(case):
    attend, what = case
    model = randomised(Holder(Projections(attend), first=randomised(LlamaBlock())))
    assert message(model, GIMRules()) == f"gim_backward cannot reach inside {what}. {NO_ATTENTION}"
    # With its rules off nothing is missed.
    with gim_backward(model, NORM):
        model(random(2, 4, 8).requires_grad_())


def test_a_custom_function_around_operators_that_are_seen_is_named():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(torch.zeros(8, 8) for _ in range(3))

        def forward(self, x):
            return HiddenWhole.apply(x, *self.weights) * 1.0

    model = randomised(Holder(Layer(), first=randomised(LlamaBlock())))
    assert message(model, GIMRules()) == (
        "gim_backward cannot reach inside 'part' (Layer): the autograd.Function HiddenWhole hides operators that the "
        f"rules act on behind a backward of its own. {NO_ATTENTION}"
    )


def test_attention_by_name_that_does_nothing_known_is_named():
    def linear_attention(q, k, v):
        return (torch.relu(q) @ torch.relu(k).mT).tril() @ v

    model = randomised(Holder(OneOfManyAttentions(linear_attention), first=randomised(LlamaBlock())))
    assert message(model, ATTENTION) == (
        "gim_backward cannot reach inside 'part' (OneOfManyAttentions): it is attention, but neither fused attention "
        f"nor a softmax between two products ran in it. {NO_ATTENTION}"
    )
    with gim_backward(model, NORM):
        model(random(2, 4, 8).requires_grad_())


def test_a_projection_with_attention_in_its_name_is_no_attention():
    class AttentionOutput(nn.Linear):
        pass

    model = randomised(Holder(AttentionOutput(8, 8), first=randomised(LlamaBlock())))
    with gim_backward(model):
        model(random(2, 4, 8).requires_grad_())


def test_a_norm_in_a_kernel_is_found_by_what_it_does():
    class KernelNorm(LlamaNorm):
        def forward(self, x):
            return HiddenNorm.apply(x) * self.weight

    class Scaler(KernelNorm):
        """Not a norm by name, but it holds a vector and behaves like one."""

    class Squash(KernelNorm):
        def forward(self, x):
            return HiddenSquash.apply(x) * self.weight

    hidden = "its output does not change with the scale of its input, but no norm was seen to run in it"
    named = "the autograd.Function HiddenNorm is a norm with a backward of its own"
    for kind in (KernelNorm, Scaler):
        model = randomised(Holder(kind(8), first=randomised(LlamaBlock())))
        assert message(model, GIMRules()) == (
            f"gim_backward cannot reach inside 'part' ({kind.__name__}): {named}. {NO_NORM}"
        )
        model.part.forward = lambda x, weight=model.part.weight: Unnamed.apply(x) * weight
        assert message(model, GIMRules()) == (
            f"gim_backward cannot reach inside 'part' ({kind.__name__}): {hidden}. {NO_NORM}"
        )
        with gim_backward(model, ATTENTION):
            model(random(2, 4, 8).requires_grad_())
    with gim_backward(model := randomised(Holder(Squash(8), first=randomised(LlamaBlock())))):
        model(random(2, 4, 8).requires_grad_())


class Unnamed(HiddenNorm):
    pass


@pytest.mark.parametrize("part", [nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4)])
def test_other_norms_are_left_alone(part):
    model = randomised(Holder(part, first=LlamaBlock()))
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model):
        y = model.first(x)
        z = model.part(y)
        w = model.first(y)
    found = torch.autograd.grad(z.sin().sum(), y, retain_graph=True)[0]
    plain = y.detach().requires_grad_()
    assert torch.equal(found, torch.autograd.grad(model.part(plain).sin().sum(), plain)[0])
    assert w.shape == y.shape


@torch.library.custom_op("gim_test::mix", mutates_args=())
def mix(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q * k


mix.register_autograd(lambda ctx, g: (g, g))


def test_a_custom_operator_of_several_activations_is_named():
    model = randomised(Holder(Projections(lambda q, k, v: mix(q, k) + v), first=randomised(LlamaBlock())))
    assert message(model, GIMRules()) == (
        "gim_backward cannot reach inside 'part' (Projections): the custom operator gim_test::mix combines 2 "
        f"activations. {NO_ATTENTION}"
    )


def test_operators_below_the_known_ones_are_named():
    def low(q, k, v):
        heads = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*heads)[0].transpose(1, 2).flatten(-2)

    model = randomised(Holder(Projections(low), first=randomised(LlamaBlock())))
    assert message(model, GIMRules()) == (
        "gim_backward cannot reach inside 'part' (Projections): the operator "
        f"scaled_dot_product_flash_attention_for_cpu is called directly. {NO_ATTENTION}"
    )
    model = randomised(Holder(Apply(lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5)[0])))
    assert message(model, NORM) == (
        f"gim_backward cannot reach inside 'part' (Apply): the operator native_layer_norm is called directly. {NO_NORM}"
    )


def test_operators_called_by_their_aten_names_are_the_same_operators():
    def attend(q, k, v):
        scores = torch.ops.aten.matmul(q, k.mT)
        return torch.ops.aten.matmul.default(torch.ops.aten.softmax.int(scores, -1), v)

    def plain(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    models = [randomised(Projections(f)) for f in (attend, plain)]
    x = random(2, 4, 8).requires_grad_()
    found = []
    for model in models:
        with gim_backward(model, ATTENTION):
            y = model(x)
        found.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(*found)


def test_nested_tensors_and_masks_of_other_kinds_are_named():
    from torch.nn.attention.bias import causal_lower_right

    def attend(q, k, v):
        return F.scaled_dot_product_attention(*(t[:, None] for t in (q, k, v)), attn_mask=causal_lower_right(4, 4))[
            :, 0
        ]

    model = randomised(Holder(Projections(attend)))
    assert message(model, ATTENTION) == (
        "gim_backward cannot reach inside 'part' (Projections): scaled_dot_product_attention is called with a "
        f"CausalBias; pass plain tensors. {NO_ATTENTION}"
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_named():
    flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention

    def attend(q, k, v):
        heads = (t.detach().float().unflatten(-1, (1, -1)).transpose(1, 2).repeat(1, 1, 4, 2) for t in (q, k, v))
        return flex_attention(*heads)[..., :4, :8].flatten(1, 2).double() + v

    model = randomised(Holder(Projections(attend), first=randomised(LlamaBlock())))
    assert message(model, GIMRules()) == (
        "gim_backward cannot reach inside 'part' (Projections): the operator flex_attention is called directly. "
        f"{NO_ATTENTION}"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_named():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1)

    scripted = torch.jit.script(Inner())
    with pytest.raises(MeasurementError) as caught, gim_backward(Holder(scripted)):
        pass
    assert str(caught.value) == (
        "gim_backward cannot reach inside 'part' (RecursiveScriptModule): it is scripted. Pass the eager module."
    )


# --- compiled modules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["wrapped", "in place", "part"])
def test_compiled_modules_run_uncompiled_inside(how):
    model = randomised(LlamaBlock())
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model):
        y = model(x)
    (expected,) = torch.autograd.grad(y.sum(), x)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    used = model
    if how == "wrapped":
        used = torch.compile(model, backend=backend)
    elif how == "in place":
        model.compile(backend=backend)
    else:
        model.attention = torch.compile(model.attention, backend=backend)
    for outer in (used, model):
        for _ in range(2):
            with gim_backward(outer):
                y = used(x)
            assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
    assert not graphs
    with torch.no_grad():
        used(x.detach())
    assert graphs


def test_threads_that_overlap_leave_compilation_as_it_was():
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    before = torch._dynamo.eval_frame._stance
    first, second = running_eagerly(model), running_eagerly(model)
    first.__enter__()
    entered = threading.Thread(target=second.__enter__)
    entered.start()
    entered.join()
    first.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    second.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance == before


# --- in the backward pass --------------------------------------------------------------------------------------------


def test_dropout_in_fused_attention_is_an_error_in_the_backward_pass():
    torch.manual_seed(0)
    model = Transformer(n_layers=1, n_heads=2, d_model=8, d_ff=4, vocab_size=5, dropout=0.25)
    ids = torch.tensor([[1, 2, 3]])
    with gim_backward(model):
        loss = model(ids).sum()
    with pytest.raises(MeasurementError) as caught:
        loss.backward()
    assert str(caught.value) == (
        "'blocks.0.attention' (Attention) drops attention weights at random (dropout_p=0.25), so gim_backward cannot "
        "recompute its pattern; put the model in evaluation mode: model.eval()."
    )
    with gim_backward(model.eval()):
        model(ids).sum().backward()


def test_dropout_between_an_eager_softmax_and_the_values_needs_no_error():
    model = randomised(GroupedAttention(8, "eager")).train()
    x = random(2, 4, 8).requires_grad_()
    torch.manual_seed(3)
    plain = model(x)
    torch.manual_seed(3)
    with gim_backward(model, ATTENTION):
        y = model(x)
    assert torch.equal(y, plain)
    torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize("how", ["fused", "eager"])
def test_second_derivatives_are_refused(how):
    text = (
        "the gradients of gim_backward cannot be differentiated again; run the backward pass with create_graph=False."
    )
    assert message(randomised(GroupedAttention(8, how)), ATTENTION, backward=True, create_graph=True) == text


def test_scores_that_are_changed_after_the_softmax_are_an_error():
    def attend(q, k, v):
        scores = q @ k.mT * 1.0
        pattern = scores.softmax(-1)
        scores.zero_()
        return pattern @ v

    model = randomised(Projections(attend))
    assert message(model, ATTENTION, backward=True) == (
        "attention scores were changed in place after their softmax, so the temperature rule of gim_backward cannot "
        "use them; change a copy in the model, or switch the rule off: GIMRules(temperature=None)."
    )
    x = random(2, 4, 8).requires_grad_()
    with gim_backward(model, GIMRules(None, False, True)):
        y = model(x)
    torch.autograd.grad(y.sum(), x)


def test_a_norm_whose_scale_enters_in_place_on_a_view_is_named():
    def norm(x):
        y = x.clone()
        part = y[..., :4]
        part *= torch.rsqrt(part.pow(2).mean(-1, keepdim=True))
        return y

    # A slice is an activation of its own, so its scale is recognised; the product's node is a copy into the whole.
    text = message(Holder(Apply(norm)), NORM)
    assert re.fullmatch(
        re.escape("gim_backward cannot reach inside 'part' (Apply): its scale enters through ")
        + r"\w+"
        + re.escape(f", in place on a view. {NO_NORM}"),
        text,
    )
