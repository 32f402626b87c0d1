import pytest
import torch
from torch import nn

from dynamics import Component, ComponentMap, find_components
from dynamics.components import Site, WeightSlice
from dynamics.errors import ComponentError
from tests.cases import Channels, channels_map
from tests.strategies import decoder


def component(layer=0, head=0, **parts):
    fields = {"site": Site("mix", "input"), "value_out": (), "all_weights": (), **parts}
    return Component(layer, "mlp" if head is None else "head", head, **fields)


def test_labels():
    parts = ComponentMap([component(0, 3), component(0, None), component(11, 0)])
    assert parts.labels == ("L0H3", "L0MLP", "L11H0")
    assert len(parts) == 3
    assert list(parts) == list(parts.components)
    assert parts[1].label == "L0MLP"
    assert repr(parts) == "ComponentMap(3 components: L0H3 … L11H0)"


def test_a_slice_is_a_view_along_its_dimension():
    tensor = torch.arange(12).view(3, 4)
    assert WeightSlice("w", 0, 1, 3).of(tensor).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert WeightSlice("w", 1, 2).of(tensor).tolist() == [[2, 3], [6, 7], [10, 11]]
    assert WeightSlice("w").of(tensor).data_ptr() == tensor.data_ptr()


def test_a_map_without_components_is_an_error():
    with pytest.raises(ComponentError) as caught:
        ComponentMap([])
    assert str(caught.value) == "a component map needs at least one component; got none."


def test_two_components_with_one_label_are_an_error():
    with pytest.raises(ComponentError) as caught:
        ComponentMap([component(), component(1), component(), component(1), component(2)])
    assert str(caught.value) == "each component needs a label of its own, but L0H0, L1H0 come more than once."


OTHER = "which the component map names. Was the map made for another model, or the model changed since?"


def test_a_map_fits_the_model_it_was_made_for():
    channels_map().check(Channels())
    model = nn.ModuleDict({"inner": decoder()})
    find_components(model).check(model)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"site": Site("mixer", "input")}, f"L0H0: the model has no module 'mixer', {OTHER}"),
        ({"value_out": (WeightSlice("bias"),)}, f"L0H0: the model has no weight 'bias', {OTHER}"),
        ({"all_weights": (WeightSlice("mix.scale"),)}, f"L0H0: the model has no weight 'mix.scale', {OTHER}"),
        (
            {"all_weights": (WeightSlice("scale", 0, 1, 3),)},
            "L0H0: scale has 2 entries along dimension 0, but the component map asks for 1 to 3.",
        ),
        (
            {"value_out": (WeightSlice("scale", 1, 1),)},
            "L0H0: scale has 1 entries along dimension 1, but the component map asks for 1 to 1.",
        ),
    ],
)
def test_a_map_for_another_model_is_an_error(parts, message):
    with pytest.raises(ComponentError) as caught:
        ComponentMap([component(**parts)]).check(Channels())
    assert str(caught.value) == message


def test_a_root_that_the_model_does_not_have_is_an_error():
    with pytest.raises(ComponentError) as caught:
        ComponentMap(channels_map().components, root="model").check(Channels())
    assert str(caught.value) == f"root: the model has no module 'model', {OTHER}"


def test_unknown_weights_are_an_error():
    with pytest.raises(ComponentError) as caught:
        component().weights("values")
    assert str(caught.value) == "weights must be 'value_out' or 'all'; got 'values'."


def test_a_map_of_the_model_inside_says_where_that_lies():
    inner = decoder(n_layers=1)
    outside = nn.ModuleDict({"net": inner})
    with pytest.raises(ComponentError) as caught:
        find_components(inner).check(outside)
    assert str(caught.value) == (
        "L0H0: the model has no module 'blocks.0.attention.output', which the component map names. There is "
        "'net.blocks.0.attention.output': let all paths of the map start with 'net', and pass root='net' if the "
        "transformer lies there."
    )
    twice = nn.ModuleDict({"a": decoder(n_layers=1), "b": decoder(n_layers=1)})
    with pytest.raises(ComponentError, match=r"Was the map made for another model, or the model changed since\?$"):
        find_components(inner).check(twice)
