"""Layers of one input as one product: the numbers of the layers alone, on weights they share."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from plugrl.plugins.transformers.engine.projections import JoinedProjections, place_side_by_side
from tests.plugins_transformers.test_engine import FAMILIES


def small(family, **options):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=16, **{**FAMILIES[family], **options})
    return AutoModelForCausalLM.from_config(config).eval()


def hidden(model):
    with torch.no_grad():
        return model(torch.tensor([[1, 5, 2, 9]]), use_cache=False).logits


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2"])
def test_the_product_gives_what_the_layers_give(family):
    model = small(family)
    expected, names = hidden(model), list(model.state_dict())
    place_side_by_side(model)
    torch.testing.assert_close(hidden(model), expected)
    joined = JoinedProjections(model)
    assert len(joined._layers) == 5 * model.config.num_hidden_layers
    with joined.active():
        torch.testing.assert_close(hidden(model), expected)
    torch.testing.assert_close(hidden(model), expected)
    assert list(model.state_dict()) == names


def test_weights_that_are_trained_in_place_are_those_of_the_product():
    model = small("qwen3")
    place_side_by_side(model)
    joined = JoinedProjections(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    expected = hidden(model)
    with joined.active():
        torch.testing.assert_close(hidden(model), expected)


def test_layers_whose_weights_stand_elsewhere_are_computed_alone():
    model = small("qwen3")
    assert not JoinedProjections(model)
    place_side_by_side(model)
    first = model.model.layers[0].self_attn
    first.k_proj.weight.data = first.k_proj.weight.data.clone()
    joined = JoinedProjections(model)
    assert first.q_proj not in joined._layers
    assert first.o_proj not in joined._layers
    assert model.model.layers[0].mlp.up_proj in joined._layers


def test_one_graph_serves_all_layers():
    model = small("qwen3", num_hidden_layers=3)
    place_side_by_side(model)
    joined, expected = JoinedProjections(model), hidden(model)
    torch._dynamo.reset()
    counter = CompileCounter()
    for layer in model.model.layers:
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend=counter, fullgraph=True)
    with joined.active():
        torch.testing.assert_close(hidden(model), expected)
    assert counter.frame_count == 1
