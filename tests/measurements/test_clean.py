from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from dynamics import ComponentMap, find_components, take_snapshot
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import clean_run
from dynamics.measurements.scorer import Scorer
from dynamics.probe import Probe, sequence_objective
from tests.cases import Channels, channels_map, channels_probe, squared_error
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import mean_outputs, scores
from tests.strategies import batches, decoder, scenes


def run(model, probe, components=None):
    components = find_components(model) if components is None else components
    return clean_run(Scorer(model, model, probe, lambda: None), components)


@given(scenes())
def test_losses_matches_and_means_equal_the_slow_forward(scene):
    model, probe = scene
    clean, oracle = run(model, probe), DecoderOracle(model)
    loss, match = scores(oracle, probe.batches)
    np.testing.assert_allclose(clean.loss, loss, rtol=1e-10)
    assert clean.exact_match.tolist() == match
    assert clean.sizes == tuple(len(batch["labels"]) for batch in probe.batches)
    for mean, expected in zip(clean.means, mean_outputs(oracle, probe.batches).values(), strict=True):
        np.testing.assert_allclose(mean, expected, rtol=1e-10, atol=1e-13)


class Padded(nn.Module):
    """Our decoder called the way of models that take an attention mask; padding on the right cannot be seen."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder
        self.masks = []

    def forward(self, input_ids, attention_mask):
        self.masks.append(attention_mask)
        return SimpleNamespace(logits=self.decoder(input_ids))


def test_padding_changes_neither_means_nor_any_result():
    model = decoder()
    short, long = batches(model, 0, [(2, 3), (3, 5)])
    padded = {
        "input_ids": torch.cat([nn.functional.pad(short["input_ids"], (0, 2), value=4), long["input_ids"]]),
        "labels": torch.cat([nn.functional.pad(short["labels"], (0, 2), value=-100), long["labels"]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0]] * 2 + [[1, 1, 1, 1, 1]] * 3),
    }
    wrapped = Padded(model)
    components = ComponentMap(find_components(wrapped).components)
    expected, snapshot = take_snapshot(model, Probe([short, long])), take_snapshot(wrapped, Probe([padded]), components)
    assert len(wrapped.masks) == 1 + 1 + (1 + 1 + 8) + 1 + 2 * 6
    assert all(torch.equal(mask, padded["attention_mask"]) for mask in wrapped.masks)
    for name in ("loss", "attribution", "self_repair_rows", "self_repair_interaction", "ablation_loss"):
        np.testing.assert_allclose(snapshot[name], expected[name], rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(snapshot["ablation_exact_match"], expected["ablation_exact_match"])


def test_the_mean_of_half_precision_outputs_is_summed_in_double_precision():
    class Ones(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.weight = nn.Identity(), nn.Parameter(torch.ones(1, 1))

        def forward(self, x):
            return self.mix(x).sum((1, 2)).float()

    def objective(model, batch):
        output = model(batch)
        return output, output > 0

    # The sum, 75,000, is beyond float16.
    (mean,) = run(Ones(), Probe([torch.ones(300, 250, 1).half()], objective), channels_map()[:1]).means
    assert mean.dtype == torch.float16
    assert mean.item() == 1.0


def test_an_output_without_positions_is_an_error():
    class Flat(Channels):
        def forward(self, x):
            z = self.mix(x[..., None] * self.scale.flatten())
            return self.side(x.sum(-1))[0][..., 0] + z.sum((1, 2))

    with pytest.raises(MeasurementError) as caught:
        run(Flat(), channels_probe(), channels_map())
    assert str(caught.value) == (
        "L0MLP: the output read at 'side' must be (examples, positions, width) with 3 examples; got (3, 1)."
    )


@pytest.mark.parametrize(("start", "stop"), [(1, 3), (2, 4), (2, None)])
def test_a_slice_beyond_the_output_is_an_error(start, stop):
    with pytest.raises(MeasurementError) as caught:
        run(Channels(), channels_probe(), channels_map(start=start, stop=stop))
    assert str(caught.value) == (
        f"L0H0: the input of 'mix' has 2 entries in its last dimension, but the component map asks for {start} to "
        f"{2 if stop is None else stop}."
    )


def test_modules_with_other_numbers_of_positions_have_means_of_their_own():
    class Pooled(Channels):
        def forward(self, x):
            z = self.mix(x[..., None] * self.scale.flatten())
            return z.sum((1, 2)) + self.side(x.sum(-1, keepdim=True))[0][:, 0, 0]

    means = run(Pooled(), Probe(channels_probe().batches, squared_error), channels_map()).means
    np.testing.assert_allclose(torch.cat(means), [2 * 10 / 9, -0.5 * 10 / 9, 0.25 * 10 / 4 + 3])


def test_a_mask_of_one_of_two_sequences_leaves_no_position_out():
    model = decoder()
    (batch,) = batches(model, 0, [(3, 4)])
    mask = torch.tensor([[1, 1, 1, 0]] * 3)

    def objective(model, batch):
        return sequence_objective(model, {"input_ids": batch["input_ids"], "labels": batch["labels"]})

    plain = run(model, Probe([batch], objective), find_components(model)).means
    for extra in ({"attention_mask": mask, "decoder_input_ids": mask}, {"attention_mask": mask[:, :3]}):
        found = run(model, Probe([{**batch, **extra}], objective), find_components(model)).means
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    masked = run(model, Probe([{**batch, "attention_mask": mask}], objective), find_components(model)).means
    assert not any(torch.equal(a, b) for a, b in zip(masked, plain, strict=True))
