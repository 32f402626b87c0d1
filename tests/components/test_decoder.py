import numpy as np
import pytest
import torch

from dynamics import find_components, take_snapshot
from tests.strategies import decoder, probe


def test_every_weight_matrix_entry_belongs_to_exactly_one_component():
    model = decoder(n_layers=2, n_heads=2)
    count = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for component in find_components(model):
        assert set(component.value_out) <= set(component.all_weights)
        for block in component.all_weights:
            block.of(count[block.parameter]).add_(1)
    for name, counted in count.items():
        matrix = name.startswith("blocks.") and name.endswith("weight") and "norm" not in name
        assert (counted == matrix).all(), name


def test_labels_and_sizes():
    components = find_components(decoder(n_layers=2, n_heads=3, d_model=12))
    assert components.labels == ("L0H0", "L0H1", "L0H2", "L0MLP", "L1H0", "L1H1", "L1H2", "L1MLP")
    assert [c.layer for c in components] == [0] * 4 + [1] * 4
    assert [c.kind for c in components][:4] == ["head", "head", "head", "mlp"]
    assert (components[5].site.start, components[5].site.stop) == (4, 8)


@pytest.mark.parametrize("positions", ["none", "rotary"])
@pytest.mark.parametrize("weights", ["value_out", "all"])
def test_permuting_heads_permutes_every_result(positions, weights):
    order, layer, width = [2, 0, 1], 1, 4
    model = decoder(n_heads=3, d_model=12, positions=positions)
    other = decoder(n_heads=3, d_model=12, positions=positions)
    rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in order])
    attention = other.blocks[layer].attention
    with torch.no_grad():
        for projection in (attention.query, attention.key, attention.value):
            projection.weight.copy_(projection.weight[rows].clone())
            projection.bias.copy_(projection.bias[rows].clone())
        attention.output.weight.copy_(attention.output.weight[:, rows].clone())
    fixed = probe(model)
    before, after = (take_snapshot(m, fixed, weights=weights) for m in (model, other))
    moved = [0, 1, 2, 3, *(4 + head for head in order), 7]
    for name in before:
        axis = before.dims(name).index("component") if "component" in before.dims(name) else None
        expected = before[name] if axis is None else before[name].take(moved, axis)
        if expected.dtype == bool:
            assert (after[name] == expected).all()
        else:
            np.testing.assert_allclose(after[name], expected, rtol=1e-9, atol=1e-13)
        if axis is not None and expected.dtype != bool:
            assert not np.allclose(after[name], before[name])
