"""Token attributions against slow oracles, on planted models, and on the ways that models are built."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynamics import GIMRules, attribute_tokens
from dynamics.errors import MeasurementError
from dynamics.model import SequenceModule
from tests.measurements.gim_models import randomised
from tests.oracles import gim as rules_by_hand
from tests.oracles import tokens as oracle
from tests.strategies import batches, decoder

METHODS = ("gim", "gradient", "ig")
NO_RULES = GIMRules(None, False, False)


def message(*args, **options):
    with pytest.raises(MeasurementError) as caught:
        attribute_tokens(*args, **options)
    return str(caught.value)


def mean_log_p(model, labels, rules=rules_by_hand.OFF):
    """Return the target of one example as a function of its embeddings."""

    def target(x):
        log_p = torch.log_softmax(rules_by_hand.decoder(model, labels[None], rules, embedded=x[None])[0], -1)
        return torch.stack([log_p[t, label] for t, label in enumerate(labels.tolist()) if label != -100]).mean()

    return target


def smooth(seed):
    """Return a decoder whose norms have no sharp turn between two embeddings: these lie close together, far from 0."""
    model = decoder(seed, scale=0.2)
    with torch.no_grad():
        model.embed.weight += torch.linspace(-3, 3, model.d_model)
    return model


class Additive(nn.Module):
    """The target token's logit is a sum over tokens of ``effect[token]``; the other logit is always 0."""

    def __init__(self, effects=(3.0, -1.0, 0.5, 2.0, 0.0), power=1):
        super().__init__()
        self.embed = nn.Embedding(len(effects), 1).double()
        self.embed.weight.data[:, 0] = torch.tensor(effects, dtype=torch.float64)
        self.power = power

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)[..., 0]
        if attention_mask is not None:
            x = x * attention_mask
        total = (x**self.power).cumsum(-1)
        return torch.stack([total, torch.zeros_like(total)], -1)


@given(st.integers(0, 2**16), st.integers(1, 2), st.integers(1, 5))
@settings(max_examples=15)
def test_gim_equals_the_rules_written_out_by_hand(seed, n_layers, length):
    model = decoder(seed, n_layers=n_layers)
    [batch] = batches(model, seed, [(2, length)])
    found = attribute_tokens(model, batch)
    for example, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
        x = model.embed.weight[ids].detach().requires_grad_(True)
        value = mean_log_p(model, labels, rules_by_hand.Rules())(x)
        [gradient] = torch.autograd.grad(value, x)
        np.testing.assert_allclose(found.scores[example], (x * gradient).sum(-1).detach(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.value[example], value.item(), rtol=1e-10)


@given(st.integers(0, 2**16))
@settings(max_examples=3)
def test_gradient_and_ig_equal_differences_and_a_fine_sum(seed):
    model = smooth(seed)
    [batch] = batches(model, seed, [(2, 3)])
    for baseline in ("mean", 3):
        gradient, ig = (attribute_tokens(model, batch, method=m, baseline=baseline) for m in ("gradient", "ig"))
        empty = model.embed.weight.mean(0) if baseline == "mean" else model.embed.weight[3]
        for example, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
            target, x = mean_log_p(model, labels), model.embed.weight[ids].detach()
            start = empty.detach().expand_as(x)
            expected = oracle.gradient_times_input(target, x, start).detach()
            np.testing.assert_allclose(gradient.scores[example], expected, rtol=1e-6, atol=1e-7)
            fine = oracle.integrated_gradients(target, x, start)
            np.testing.assert_allclose(ig.scores[example], fine, atol=1e-4)
            np.testing.assert_allclose(ig.baseline_value[example], target(start).item(), rtol=1e-9)
        np.testing.assert_allclose(gradient.value, ig.value, rtol=1e-12)


@given(st.integers(0, 2**16))
@settings(max_examples=10)
def test_the_completeness_error_of_ig_falls_with_its_steps(seed):
    model = smooth(seed)
    [batch] = batches(model, seed, [(2, 4)])
    few, many = (
        attribute_tokens(model, batch, method="ig", baseline="mean", ig_steps=n).completeness_error for n in (2, 48)
    )
    assert (np.abs(many) <= np.abs(few) + 1e-9).all()
    assert np.abs(many).max() < 1e-4


def test_without_rules_gim_is_the_gradient_to_the_bit():
    model = decoder()
    [batch] = batches(model, 0, [(2, 4)])
    gim, gradient = attribute_tokens(model, batch, rules=NO_RULES), attribute_tokens(model, batch, method="gradient")
    assert (gim.scores == gradient.scores).all()


@pytest.mark.parametrize("method", METHODS)
def test_on_an_additive_model_every_method_is_exact(method):
    found = attribute_tokens(Additive(), [0, 1, 3], 0, other=1, method=method, rules=NO_RULES)
    np.testing.assert_allclose(found.scores, [[3.0, -1.0, 2.0]], rtol=1e-12)
    np.testing.assert_allclose(found.completeness_error, 0, atol=1e-12)
    assert found.value == 4.0
    assert found.baseline_value == 0.0
    assert found.target == "logit of token 0 - logit of token 1"


def test_on_a_cube_the_gradient_counts_three_times_and_ig_once():
    gradient, ig = (
        attribute_tokens(Additive(power=3), [0, 3], 0, other=1, method=m, ig_steps=2) for m in ("gradient", "ig")
    )
    np.testing.assert_allclose(gradient.scores, [[81.0, 24.0]], rtol=1e-12)
    np.testing.assert_allclose(ig.scores, [[27.0, 8.0]], rtol=1e-12)


class GatedLM(nn.Module):
    """One gated MLP alone: f = gate(x) * up(x), so the ordinary gradient counts f twice and GIM once."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((3, 4), (3, 4), (4, 5)))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.down(self.gate(x) * self.up(x))


def test_on_a_product_gim_halves_and_is_complete():
    model = randomised(GatedLM())
    gim, gradient = (
        attribute_tokens(model, [1, 2], 3, quantity="logit", method=m, rules=GIMRules(None, False, True))
        for m in ("gim", "gradient")
    )
    np.testing.assert_allclose(gim.completeness_error, 0, atol=1e-12)
    np.testing.assert_allclose(gradient.scores, 2 * gim.scores, rtol=1e-12)
    assert gim.scores[0, 0] == 0


def test_targets_positions_and_quantities():
    model = decoder()
    ids = torch.tensor([[0, 1, 2], [3, 4, 1]])
    logits = model(ids)
    log_p = attribute_tokens(model, ids, method="gradient")
    np.testing.assert_array_equal(log_p.explained.token, logits[:, -1].argmax(-1))
    np.testing.assert_allclose(log_p.value, logits[:, -1].log_softmax(-1).max(-1).values.detach(), rtol=1e-12)
    at = {"target": torch.tensor([1, 2]), "position": torch.tensor([0, -2]), "method": "gradient"}
    logit = attribute_tokens(model, ids, quantity="logit", **at)
    np.testing.assert_allclose(logit.value, [logits[0, 0, 1].item(), logits[1, 1, 2].item()], rtol=1e-12)
    assert logit.target == "logit of each example's token"
    # A causal model: later tokens have no share.
    assert (logit.scores[0, 1:] == 0).all()
    assert logit.scores[1, 2] == 0
    p = attribute_tokens(model, ids, quantity="probability", **at)
    np.testing.assert_allclose(p.value[0], logits[0, 0].softmax(-1)[1].item(), rtol=1e-12)
    assert repr(p) == "TokenAttribution(gradient of p of each example's token; scores (2, 3))"


def test_shifted_labels_are_those_of_the_hugging_face_convention():
    model = decoder()
    ids = torch.tensor([[0, 1, 2, 3]])
    labels = torch.tensor([[-100, 1, -100, 3]])
    shifted = attribute_tokens(model, {"input_ids": ids, "labels": labels}, shift_labels=True)
    aligned = attribute_tokens(model, {"input_ids": ids, "labels": torch.tensor([[1, -100, 3, -100]])})
    np.testing.assert_array_equal(shifted.scores, aligned.scores)
    # A target that is named goes before the batch's labels.
    named = attribute_tokens(model, {"input_ids": ids, "labels": labels}, target=2)
    assert named.target == "log p of token 2"


def test_padding_has_no_share_and_the_last_token_is_the_last_real_one():
    model = Additive()
    ids, mask = torch.tensor([[0, 3, 1], [2, 4, 4]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    for method in METHODS:
        found = attribute_tokens(model, ids, 0, other=1, method=method, rules=NO_RULES, attention_mask=mask, baseline=3)
        np.testing.assert_allclose(found.scores, [[1.0, 0.0, -3.0], [-1.5, 0.0, 0.0]], atol=1e-12)
        assert found.mask.tolist() == mask.bool().tolist()


def test_a_model_that_looks_at_padding_is_an_error():
    class Everywhere(Additive):
        def forward(self, input_ids):
            total = self.embed(input_ids).sum(1).expand(-1, input_ids.shape[1])
            return torch.stack([total, -total], -1)

    mask = torch.tensor([[1, 1, 0]])
    assert message(Everywhere(), [[0, 1, 2]], 0, method="gradient", attention_mask=mask) == (
        "the target depends on padding (example 0, position 2), so Everywhere does not follow the attention mask. "
        "Pass examples of one length together, without padding."
    )


def test_the_model_is_left_as_it_was():
    model = decoder(positions="learned").train()
    model.blocks[0].eval()
    model.embed.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    with torch.inference_mode():
        ids = torch.tensor([[0, 1, 2]])
        for method in METHODS:
            attribute_tokens(model, ids, method=method)
    assert model.training
    assert not model.blocks[0].training
    assert not model.embed.weight.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_positions_that_equal_the_tokens_are_told_apart():
    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.words, self.out = nn.Embedding(4, 3), nn.Embedding(6, 3), nn.Linear(3, 6)

        def forward(self, input_ids):
            numbers = torch.arange(input_ids.shape[1])[None].expand_as(input_ids)
            return self.out(self.places(numbers) + 2 * self.words(input_ids))

    model = randomised(Numbered())
    found = attribute_tokens(model, [0, 1, 2, 3], 4, quantity="logit", method="gradient")
    expected = 2 * model.words.weight[3] @ model.out.weight[4]
    np.testing.assert_allclose(found.scores, [[0, 0, 0, expected.item()]], rtol=1e-12)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Embedding(4, 3), nn.Embedding(4, 3), nn.Linear(3, 4)

    def forward(self, input_ids):
        return self.out(self.one(input_ids) + 3 * self.two(input_ids))


def test_two_input_embeddings_are_an_error_that_names_both_unless_one_is_named():
    model = randomised(Two())
    assert message(model, [0, 1]) == (
        "Two holds 2 input embeddings: 'one' (Embedding) and 'two' (Embedding) are all called with the token ids. "
        "Name the one to attribute to: embedding=."
    )
    found = attribute_tokens(model, [0, 1], 2, quantity="logit", method="gradient", embedding=model.two)
    np.testing.assert_allclose(found.scores[0, 1], 3 * (model.two.weight[1] @ model.out.weight[2]).item(), rtol=1e-12)
    assert message(model, [0, 1], embedding=nn.Embedding(2, 2)) == (
        "embedding= must be a module inside Two; got Embedding from elsewhere."
    )


class Inline(nn.Module):
    """A stack that embeds by itself, without a module: its hidden states must not pass for embeddings."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 4)

    def forward(self, input_ids):
        return self.layer(nn.functional.embedding(input_ids, self.table)).cumsum(1)


class Table(nn.Module):
    """An embedding of the user's own make."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, tokens):
        return self.table[tokens] * 2


def test_only_what_looks_up_tokens_is_an_embedding():
    assert message(nn.Sequential(Inline(), nn.Linear(4, 5)), [0, 1, 2]) == (
        "no input embedding found in Sequential: none of its modules is called with the token ids and looks up an "
        "embedding for each. Let the model call an nn.Embedding with its input_ids, or name the module: embedding=."
    )
    model = randomised(nn.Sequential(Table(), nn.Linear(4, 5)))
    found = attribute_tokens(model, [0, 1], 3, quantity="logit", method="ig")
    np.testing.assert_allclose(found.scores[0, 1], (2 * model[0].table[1] @ model[1].weight[3]).item(), rtol=1e-12)
    assert message(model, [0, 1], baseline="mean") == (
        "baseline 'mean' needs an input embedding with num_embeddings, but '0' is a Table without; pass an embedding "
        "of your own as baseline."
    )


def test_a_tied_unembedding_is_not_touched():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, input_ids):
            return self.out(self.embed(input_ids))

    model = randomised(Tied())
    weight = model.embed.weight.detach()
    found = attribute_tokens(model, [0, 1], 1, quantity="logit", method="ig", baseline=4)
    np.testing.assert_allclose(found.scores[0, 1], ((weight[1] - weight[4]) @ weight[1]).item(), rtol=1e-12)
    np.testing.assert_allclose(found.completeness_error, 0, atol=1e-12)


def test_other_tokens_that_the_embedding_is_called_with_stay_as_they_are():
    class Twice(Additive):
        def forward(self, input_ids):
            return super().forward(input_ids) - super().forward(torch.full_like(input_ids, 3))

    found = attribute_tokens(Twice(), [0, 1], 0, other=1, method="gradient")
    np.testing.assert_allclose(found.scores, [[3.0, -1.0]], rtol=1e-12)
    assert (found.value, found.baseline_value) == (-2.0, -4.0)


def test_half_precision_is_scored_in_single():
    model = decoder()
    [batch] = batches(model, 0, [(2, 4)])
    exact = [attribute_tokens(model, batch, method=m, baseline="mean").scores for m in METHODS]
    model = model.bfloat16()
    for method, expected in zip(METHODS, exact, strict=True):
        found = attribute_tokens(model, batch, method=method, baseline="mean")
        assert found.scores.dtype == np.float32
        np.testing.assert_allclose(found.scores, expected, atol=0.15)


def test_a_baseline_embedding_of_ones_own():
    model = Additive()
    found = attribute_tokens(model, [0, 1], 0, other=1, method="gradient", baseline=torch.tensor([0.5]))
    np.testing.assert_allclose(found.scores, [[2.5, -1.5]], rtol=1e-12)
    assert message(model, [0], baseline=torch.zeros(2)) == (
        "a baseline embedding must be (1,), as wide as the input embedding; got (2,)."
    )
    assert message(model, [0], baseline=9) == "the baseline token must be one of the 5 that 'embed' embeds; got 9."
    assert message(model, [0], baseline="median") == (
        "baseline must be 'zero', 'mean', a token id or an embedding (width,); got 'median'."
    )


def test_a_lightning_module_that_holds_our_decoder():
    model = decoder()
    found = attribute_tokens(SequenceModule(model), [0, 1, 2])
    np.testing.assert_array_equal(found.scores, attribute_tokens(model, [0, 1, 2]).scores)


def test_errors_say_what_came_and_what_to_do():
    model = decoder()
    ids = [[0, 1]]
    assert message(model, ids, method="lrp") == "method must be among gim, gradient, ig; got 'lrp'."
    assert message(model, ids, ig_steps=0) == "ig_steps must be a whole number, at least 1; got 0."
    assert message(model, ids, quantity="nats") == "quantity must be among log_prob, logit, probability; got 'nats'."
    assert message(model, ids, other=1, quantity="probability") == (
        "other= explains a difference of logits; leave quantity= out, or leave out other=."
    )
    assert message(model, ids, target=5) == "target must be a token id from 0 to 4, the model's logits; got 5."
    assert message(model, ids, other=1.5) == "other must be a token id, or one for each of the 1 examples; got 1.5."
    assert message(model, ids, target="x") == "target must be a token id, or one for each of the 1 examples; got 'x'."
    assert message(model, ids, target=1, other=1) == "target and other are the same token (1): no difference."
    assert message(model, ids, position=2) == "example 0 has 2 tokens, so it has no position 2."
    assert message(model, ids, position=0.5) == (
        "position must be a whole number, or one for each of the 1 examples; got 0.5."
    )
    assert message(model, torch.zeros(1, 2)) == (
        "input_ids must be whole numbers, (examples, positions) or (positions,), with at least one; "
        "got torch.float32 (1, 2)."
    )
    assert message(model, "text") == (
        "input_ids must be whole numbers, (examples, positions) or (positions,), with at least one; got str."
    )
    assert message(model, ids, attention_mask=torch.ones(1, 3)) == (
        "attention_mask must have the shape of input_ids, (1, 2); got (1, 3)."
    )
    assert message(model, ids, attention_mask=torch.zeros(1, 2)) == "attention_mask leaves no token of example 0."
    labels = {"input_ids": torch.tensor(ids), "labels": torch.full((1, 2), -100)}
    assert message(model, labels) == "example 0 has only labels -100, so it has no target."
    labels["labels"] = torch.tensor([[1, 1, 1]])
    assert message(model, labels) == (
        "labels must be whole numbers of the shape of input_ids, (1, 2); got torch.int64 (1, 3)."
    )
    assert message(model, labels, quantity="logit") == "labels are explained by their mean log p; got quantity='logit'."
    assert message("gpt2", ids) == "the model must be a torch.nn.Module; got str."
    assert message(nn.Module(), ids) == (
        "Module has no forward of its own; pass the module in it that maps token ids to logits."
    )


def test_a_model_whose_output_or_graph_is_of_no_use_is_an_error():
    class Pooled(Additive):
        def forward(self, input_ids):
            return super().forward(input_ids)[:, -1]

    assert message(Pooled(), [0, 1]) == (
        "Pooled must return logits (examples, positions, vocabulary), or an object with such .logits; got a tensor "
        "(1, 2). Pass the module that maps token ids to logits."
    )

    class Cut(Additive):
        def forward(self, input_ids):
            return super().forward(input_ids).detach()

    assert message(Cut(), [0, 1], method="gradient") == (
        "the target does not depend on the input embedding 'embed', so no token can be given a share of it. Does the "
        "model cut the graph with detach() or torch.no_grad()?"
    )
