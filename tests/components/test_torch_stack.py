"""PyTorch's own stacks: every measurement against the explicit forward pass."""

import warnings

import lightning as L
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from dynamics import find_components, take_snapshot
from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.errors import ComponentError
from dynamics.measurements.interventions import reading
from tests.components.agreement import agree, equal, same
from tests.components.checks import Lit, probe, trains_the_same
from tests.measurements.gim_models import randomised
from tests.oracles import gim, measurements
from tests.oracles.torch_stack import StackOracle

WIDTH, HEADS, HIDDEN, VOCABULARY = 6, 2, 5, 7


class Network(nn.Module):
    """Embeddings, a stack of PyTorch's layers and an unembedding, as a user writes them."""

    def __init__(self, kind, causal=True, **options):
        super().__init__()
        self.kind, self.causal = kind, causal
        self.batch_first = options.setdefault("batch_first", True)
        options = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.1, **options}
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        if kind != "encoder":
            self.source = nn.Embedding(VOCABULARY, WIDTH)
        if kind == "encoder":
            self.stack = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**options), 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False
            )
        elif kind == "decoder":
            self.stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
                self.stack = nn.Transformer(num_encoder_layers=1, num_decoder_layers=2, **options)
        self.unembed = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x, length = self.embed(input_ids), input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype) if self.causal else None

        def turned(y):
            return y if self.batch_first else y.transpose(0, 1)

        if self.kind == "encoder":
            return self.unembed(turned(self.stack(turned(x), mask=mask)))
        source = turned(self.source(torch.cat([input_ids.flip(1), input_ids[:, :1]], 1)))
        if self.kind == "decoder":
            return self.unembed(turned(self.stack(turned(x), source, tgt_mask=mask)))
        return self.unembed(turned(self.stack(source, turned(x), tgt_mask=mask)))


LAYERS = {
    "encoder": [("stack.layers.0", "encoder"), ("stack.layers.1", "encoder")],
    "decoder": [("stack.layers.0", "decoder"), ("stack.layers.1", "decoder")],
    "both": [
        ("stack.encoder.layers.0", "encoder"),
        ("stack.decoder.layers.0", "decoder"),
        ("stack.decoder.layers.1", "decoder"),
    ],
}
NORMS = {
    "encoder": (None, "stack.norm"),
    "decoder": (None, None),
    "both": ("stack.encoder.norm", "stack.decoder.norm"),
}


def network(kind, **options):
    # PyTorch's layers start as copies of one another; here all differ.
    return randomised(Network(kind, **options))


def oracle(model, norm_first, activation, rules=gim.OFF):
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    layers, norms = LAYERS[model.kind], NORMS[model.kind]
    return StackOracle(state, HEADS, layers, norm_first, activation, model.causal, norms, rules)


@pytest.mark.parametrize(
    ("kind", "norm_first", "activation", "options"),
    [
        ("encoder", True, "gelu", {}),
        ("encoder", False, "relu", {}),
        ("encoder", False, "gelu", {"bias": False, "causal": False}),
        ("encoder", True, "relu", {"batch_first": False}),
        ("decoder", True, "gelu", {}),
        ("decoder", False, "relu", {}),
        ("decoder", True, "relu", {"batch_first": False}),
        ("both", True, "gelu", {}),
        ("both", False, "relu", {"batch_first": False}),
    ],
)
def test_every_measurement_equals_the_oracles(kind, norm_first, activation, options):
    model = network(kind, norm_first=norm_first, activation=activation, **options)
    agree(model, probe(), lambda rules: oracle(model, norm_first, activation, rules))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_integrated_gradients_equal_the_oracles(kind):
    model, examples = network(kind, norm_first=True, activation="gelu"), probe(sizes=((2, 3),))
    snapshot = take_snapshot(model, examples, measurements="attribution", methods="ig", ig_steps=24)
    expected = measurements.integrated_gradients(oracle(model, True, "gelu"), examples.batches, points=81)
    equal(snapshot["attribution"][0], expected, rtol=1e-5, atol=1e-6)


def test_heads_of_the_cross_attention_are_numbered_after_those_of_the_self_attention():
    components = find_components(network("decoder"))
    assert components.labels == tuple(f"L{i}{part}" for i in (0, 1) for part in ("H0", "H1", "H2", "H3", "MLP"))
    assert components[6].site == Site("stack.layers.1.self_attn.out_proj", "input", 3, 6)
    assert components[7].site == Site("stack.layers.1.multihead_attn.out_proj", "input", 0, 3)
    assert components[9].site == Site("stack.layers.1.linear2", "output")


def test_with_positions_first_the_mlp_is_turned():
    components = find_components(network("encoder", batch_first=False))
    assert components[2].site == Site("stack.layers.0.linear2", "output", positions_first=True)


class LitItself(Network, L.LightningModule):
    def training_step(self, batch, index):
        return self(batch["input_ids"]).sum()


def test_the_network_around_the_stack_gives_the_logits():
    model = network("encoder")
    assert find_components(model).root == ""
    assert find_components(Lit(model)).root == "inner"
    assert find_components(LitItself("encoder")).root == ""
    same(take_snapshot(Lit(model), probe()), take_snapshot(model, probe()))


def test_a_model_in_training_mode_with_dropout_is_measured_as_in_evaluation_mode():
    model = network("encoder", norm_first=True)
    expected = take_snapshot(model, probe())
    same(take_snapshot(model.train(), probe()), expected)
    assert all(module.training for module in model.modules())


class OwnEncoder(nn.TransformerEncoder):
    pass


class OwnLayer(nn.TransformerEncoderLayer):
    def forward(self, src, *args, **kwargs):
        return super().forward(src * 2, *args, **kwargs)


class OwnAttention(nn.MultiheadAttention):
    """Changes what the attention returns, after its output projection."""

    def forward(self, *args, **kwargs):
        output, weights = super().forward(*args, **kwargs)
        return 3 * output, weights


def test_subclasses_of_stacks_layers_and_attention_are_measured():
    layer = OwnLayer(WIDTH, HEADS, HIDDEN, batch_first=True)
    layer.self_attn = OwnAttention(WIDTH, HEADS, batch_first=True)
    stack = OwnEncoder(layer, 1, enable_nested_tensor=False)
    model = randomised(nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), stack, nn.Linear(WIDTH, VOCABULARY)))
    snapshot = take_snapshot(model, probe())
    assert snapshot.components.labels == ("L0H0", "L0H1", "L0MLP")
    # Zeroing a head is the same as zeroing what it writes.
    with torch.no_grad():
        stack.layers[0].self_attn.out_proj.weight[:, 3:] = 0
    expected = take_snapshot(model, probe(), measurements=())["loss"]
    assert (abs(snapshot["ablation_loss"][1, 1] - expected) < 1e-12).all()
    assert (abs(snapshot["loss"] - expected) > 1e-3).all()


def test_a_stack_of_other_layers_is_not_known():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN)
    layer.self_attn = nn.Linear(1, 1)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN), 1, enable_nested_tensor=False)
    stack.layers[0].self_attn = nn.Linear(1, 1)
    with pytest.raises(ComponentError, match="no known transformer in TransformerEncoder"):
        find_components(stack)


ATTENTION = "layers.0.self_attn.out_proj"


def compiled(module):
    return torch.compile(module, backend="eager")


def layers_wrapped(wrap):
    model = network("encoder")
    for index, layer in enumerate(model.stack.layers):
        model.stack.layers[index] = wrap(layer)
    return model


def in_place():
    model = network("encoder")
    model.compile(backend="eager")
    return model


class Checkpointed(Network):
    """Recomputes every layer in the backward pass."""

    def forward(self, input_ids):
        x = self.embed(input_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        for layer in self.stack.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False)
        return self.unembed(self.stack.norm(x))


@pytest.mark.parametrize(
    ("build", "root", "path"),
    [
        (lambda: compiled(network("encoder")), "_orig_mod", f"_orig_mod.stack.{ATTENTION}"),
        (lambda: Lit(compiled(network("encoder"))), "inner._orig_mod", f"inner._orig_mod.stack.{ATTENTION}"),
        (lambda: nn.DataParallel(network("encoder")), "module", f"module.stack.{ATTENTION}"),
        (in_place, "", f"stack.{ATTENTION}"),
        (lambda: layers_wrapped(compiled), "", f"stack.{ATTENTION}"),
        (lambda: layers_wrapped(checkpoint_wrapper), "", f"stack.{ATTENTION}"),
        (lambda: randomised(Checkpointed("encoder")), "", f"stack.{ATTENTION}"),
    ],
)
def test_wrapped_models_are_found_and_measured_alike(build, root, path):
    model = build()
    components = find_components(model)
    assert (components.root, components[0].site.module) == (root, path)
    same(take_snapshot(model, probe()), take_snapshot(network("encoder"), probe()))


def test_a_model_spread_over_processes_is_found_and_measured_alike(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(network("encoder"))
        components = find_components(model)
        assert (components.root, components[0].site.module) == ("module", f"module.stack.{ATTENTION}")
        same(take_snapshot(model, probe()), take_snapshot(network("encoder"), probe()))
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler warns of itself
def test_measuring_compiles_nothing():
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    model = layers_wrapped(lambda layer: torch.compile(layer, backend=backend))
    model(torch.zeros(2, 4, dtype=torch.long))
    before = len(compilations)
    assert before
    take_snapshot(model, probe())
    assert len(compilations) == before


# --- a user's own block ----------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        y, mask = self.norm1(x), nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        x = x + self.self_attn(y, y, y, attn_mask=mask)[0]  # with the weights, which PyTorch averages over heads
        return x + self.linear2(torch.relu(self.linear1(self.norm2(x))))


class Own(nn.Module):
    kind, causal = "encoder", True

    def __init__(self):
        super().__init__()
        self.embed, self.unembed = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.stack = nn.Module()
        self.stack.layers, self.stack.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)

    def forward(self, input_ids):
        return self.unembed(self.stack.norm(self.stack.layers(self.embed(input_ids))))


def own_map():
    components = []
    for layer in range(2):
        at, width = f"stack.layers.{layer}", WIDTH // HEADS
        for h in range(HEADS):
            a, b = h * width, (h + 1) * width
            q, k, v = (WeightSlice(f"{at}.self_attn.in_proj_weight", 0, o + a, o + b) for o in (0, WIDTH, 2 * WIDTH))
            out = WeightSlice(f"{at}.self_attn.out_proj.weight", 1, a, b)
            site = Site(f"{at}.self_attn.out_proj", "input", a, b)
            components.append(Component(layer, "head", h, site, (v, out), (q, k, v, out)))
        into, out = WeightSlice(f"{at}.linear1.weight"), WeightSlice(f"{at}.linear2.weight")
        components.append(Component(layer, "mlp", None, Site(f"{at}.linear2", "output"), (out,), (into, out)))
    return ComponentMap(components)


def test_a_component_map_by_hand_for_a_block_with_multihead_attention():
    model = randomised(Own())
    agree(model, probe(), lambda rules: oracle(model, True, "relu", rules), components=own_map())


def test_training_is_the_same_with_the_callback_and_without(tmp_path):
    trains_the_same(lambda: network("decoder"), tmp_path)


class OwnOrder(nn.MultiheadAttention):
    """A subclass that attends in a way of its own, the examples first, and calls ``out_proj`` itself."""

    def forward(self, query, key, value, **_):
        parts = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for part in parts)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(z.transpose(1, 2).flatten(2)), None


def test_attention_with_a_forward_of_its_own_is_read_in_its_order():
    attention = OwnOrder(8, 2, batch_first=True).double()
    component = Component(0, "head", 0, Site("a.out_proj", "input", 0, 4), (), ())
    x = torch.randn(3, 3, 8, dtype=torch.float64)
    with reading(nn.ModuleDict({"a": attention}), [component]) as outputs:
        attention(x, x, x)
    parts = nn.functional.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    expected = nn.functional.scaled_dot_product_attention(*(part[..., :4] for part in parts), is_causal=True)
    torch.testing.assert_close(outputs.of(component), expected)
