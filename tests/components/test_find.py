import pytest
import torch
from torch import nn

from dynamics import find_components
from dynamics.errors import ComponentError
from dynamics.model import SequenceModule
from tests.strategies import decoder


def test_the_transformer_is_found_wherever_it_lies():
    inner = decoder()
    for model, root in (
        (inner, ""),
        (SequenceModule(inner), "model"),
        (nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1), inner])}), "a.1"),
    ):
        components = find_components(model)
        assert components.labels == ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP")
        assert components.root == root
        assert components.network(model) is inner
        module = model.get_submodule(components[3].site.module)
        assert module is inner.blocks[1].attention.output
        weight = model.get_parameter(components[5].value_out[0].parameter)
        assert weight is inner.blocks[1].mlp.output.weight


def test_a_transformer_under_two_names_is_one():
    inner = decoder()
    assert find_components(nn.ModuleDict({"a": inner, "b": inner})).root == "a"


LOOKED_FOR = (
    "dynamics.model.Transformer",
    "Hugging Face GPT-2",
    "Hugging Face Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, Gemma 3, OLMo 2, Granite and SmolLM3",
    "Hugging Face GPT-NeoX (Pythia)",
    "nn.TransformerEncoder and nn.TransformerDecoder",
    "TransformerLens's TransformerBridge",
    "litgpt's GPT",
)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Linear(1, 1), nn.ReLU()), "Sequential, whose submodules are 0 (Linear), 1 (ReLU)"),
        (nn.ReLU(), "ReLU, whose submodules are none"),
        (
            nn.Sequential(*(nn.ReLU() for _ in range(11))),
            f"Sequential, whose submodules are {', '.join(f'{i} (ReLU)' for i in range(8))}, and 3 more",
        ),
    ],
)
def test_a_model_without_a_known_transformer_is_an_error(model, found):
    with pytest.raises(ComponentError) as caught:
        find_components(model)
    assert str(caught.value) == (
        f"no known transformer in {found}. Looked for: {'; '.join(LOOKED_FOR)}. For another model, pass a ComponentMap "
        "of your own (see docs/how-to/component-map.md)."
    )


def test_two_transformers_are_an_error():
    with pytest.raises(ComponentError) as caught:
        find_components(nn.ModuleDict({"student": decoder(), "teacher": decoder()}))
    assert str(caught.value) == (
        "ModuleDict holds 2 transformers, at 'student', 'teacher'; pass the one to measure, or a ComponentMap of your "
        "own (see docs/how-to/component-map.md)."
    )


def test_something_that_is_not_a_module_is_an_error():
    with pytest.raises(ComponentError) as caught:
        find_components(torch.zeros(1))
    assert str(caught.value) == "find_components takes a torch.nn.Module; got Tensor."
