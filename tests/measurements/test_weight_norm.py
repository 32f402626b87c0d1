import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamics import take_snapshot
from tests.cases import Channels, channels_map, channels_probe
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import weight_norms
from tests.strategies import decoder, decoders, probe


@given(decoders(), st.sampled_from(("value_out", "all")))
def test_it_equals_the_root_of_the_sum_of_squares(model, weights):
    snapshot = take_snapshot(model, probe(model), measurements=["weight_norm"], weights=weights)
    np.testing.assert_allclose(snapshot["weight_norm"], weight_norms(DecoderOracle(model), weights), rtol=1e-12)


def test_a_module_with_a_component_map_of_its_own():
    snapshot = take_snapshot(Channels(), channels_probe(), channels_map(), measurements=["weight_norm"])
    assert snapshot["weight_norm"].tolist() == [2.0, 0.5, 0.25]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_summed_in_single_precision(dtype):
    model = decoder(d_model=64, d_ff=63)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(64.0)
    probe_ = probe(model)
    values = take_snapshot(model.to(dtype), probe_, measurements=["weight_norm"])["weight_norm"]
    assert values.dtype == np.float32
    # float16 would round the norm of an MLP, 4063.87…, to 4064, and its square is beyond float16.
    np.testing.assert_allclose(values, 64.0 * np.sqrt([4096, 4096, 4032] * 2), rtol=1e-6)
