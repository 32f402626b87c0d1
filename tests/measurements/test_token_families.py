"""Token attributions on models of other makes, tiny and random."""

import numpy as np
import pytest
import torch
from torch import nn

from dynamics import attribute_tokens, perturbation_curves
from dynamics.errors import MeasurementError
from tests.measurements.gim_models import randomised

IDS = torch.tensor([[3, 1, 4, 2], [5, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def gpt2(transformers):
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=None, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config)


def llama(transformers):
    config = transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=8, intermediate_size=6,
        vocab_size=11, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gemma(transformers):
    config = transformers.Gemma3TextConfig(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=8, intermediate_size=6,
        head_dim=4, vocab_size=11, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM(config)


def through_inputs_embeds(model):
    """Return gradient x input the way Hugging Face offers: the embeddings handed over in place of the tokens."""
    x = model.get_input_embeddings()(IDS).detach().requires_grad_(True)
    logits = model(inputs_embeds=x, attention_mask=MASK).logits
    row = logits[torch.arange(2), MASK.sum(-1) - 1]
    value = row[:, 7] - row[:, 3]
    [gradient] = torch.autograd.grad(value.sum(), x)
    return (x * gradient).sum(-1).detach(), value.detach()


@pytest.mark.parametrize("make", [gpt2, llama, gemma])
def test_hugging_face(make):
    transformers = pytest.importorskip("transformers")
    model = randomised(make(transformers))
    with torch.no_grad():  # away from 0, where norms turn sharply
        model.get_input_embeddings().weight += torch.linspace(-3, 3, 8)
    options = {"target": 7, "other": 3, "attention_mask": MASK}
    gradient = attribute_tokens(model, IDS, method="gradient", **options)
    expected, value = through_inputs_embeds(model)
    # Llama's and Gemma's norms compute in single precision, in a double model too.
    np.testing.assert_allclose(gradient.scores, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.value, value, rtol=1e-6)
    ig = attribute_tokens(model, IDS, method="ig", baseline=9, ig_steps=64, **options)
    np.testing.assert_allclose(ig.completeness_error, 0, atol=1e-4)
    gim = attribute_tokens(model, IDS, **options)
    assert np.isfinite(gim.scores).all()
    assert not np.allclose(gim.scores, gradient.scores)
    # A batch with padding gives what each example gives alone.
    alone = attribute_tokens(model, IDS[1:, :2], target=7, other=3)
    np.testing.assert_allclose(alone.scores[0], gim.scores[1, :2], rtol=1e-4, atol=1e-5)
    curves = perturbation_curves(model, gim, random_orders=1)
    assert curves.removable.tolist() == [4, 2]
    whole = {"input_ids": IDS, "attention_mask": MASK}
    np.testing.assert_array_equal(attribute_tokens(model, whole, target=7, other=3).scores, gim.scores)


def test_hugging_face_in_half_precision():
    transformers = pytest.importorskip("transformers")
    model = randomised(llama(transformers)).bfloat16()
    for method in ("gim", "gradient", "ig"):
        found = attribute_tokens(model, IDS, attention_mask=MASK, method=method, baseline="mean", ig_steps=4)
        assert np.isfinite(found.scores).all()


def test_without_a_head_the_output_is_no_use():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(MeasurementError) as caught:
        attribute_tokens(llama(transformers).model, IDS)
    assert str(caught.value) == (
        "LlamaModel must return logits (examples, positions, vocabulary), or an object with such .logits; got a "
        "BaseModelOutputWithPast. Pass the module that maps token ids to logits."
    )


class Encoder(nn.Module):
    """PyTorch's own layers; the user's names and masks."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 11)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        return self.head(self.layers(x, mask=mask, is_causal=True))


def test_a_stack_of_pytorchs_own_layers():
    model = randomised(Encoder())
    alone = attribute_tokens(model, IDS[1:, :2], 7)
    padded = attribute_tokens(model, IDS, 7, attention_mask=MASK)
    np.testing.assert_allclose(padded.scores[1, :2], alone.scores[0], rtol=1e-8, atol=1e-12)
    x = model.words.weight[IDS[1, :2]].detach().requires_grad_(True)
    places = model.places.weight[:2]

    def log_p(x):
        mask = nn.Transformer.generate_square_subsequent_mask(2, dtype=x.dtype)
        return model.head(model.layers((x + places)[None], mask=mask, is_causal=True))[0, -1].log_softmax(-1)[7]

    [gradient] = torch.autograd.grad(log_p(x), x)
    found = attribute_tokens(model, IDS[1:, :2], 7, method="gradient")
    np.testing.assert_allclose(found.scores[0], (x * gradient).sum(-1).detach(), rtol=1e-9)
