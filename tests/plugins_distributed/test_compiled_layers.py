"""Ranks whose layers go through ``torch.compile``, inside what gathers their weights."""

import pytest
import torch
import torch._inductor.config
from here import batch, local, loss, spec

MODEL = spec("tied")


def trained(service):
    """What a service says and is after two steps."""
    for _ in range(2):
        service.forward_backward(batch(), loss({}))
        report = service.optimizer_step()
    return report["grad_norm"], service.compute_log_prob(batch()), service.weights()


def assert_close(found, expected):
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    for name, weight in expected[2].items():
        torch.testing.assert_close(found[2][name], weight, rtol=1e-4, atol=1e-4)


def rank_of(service):
    return service.ranks._rank.service


@pytest.mark.slow
def test_compiled_ranks_learn_what_one_device_does(one_rank):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # More models than torch compiles one function for by itself, at three graphs each.
    adapted = spec("tied", adapter={})
    services = [one_rank(model, {"compile": True}) for model in (MODEL, MODEL, adapted)]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for service, model in zip(services, (MODEL, MODEL, adapted), strict=True):
        assert rank_of(service).is_compiled
        assert_close(trained(service), trained(local(model, {"compile": False})))
    # A layer is one graph, as it is without ranks.
    assert not torch._dynamo.utils.counters["graph_break"]
    # Two rows of the tests' batch at most have sizes that the first passes had not.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= graphs + 3


@pytest.mark.slow
def test_compiled_layers_whose_weights_are_gathered_for_each_pass(one_rank):
    torch._dynamo.reset()
    service = one_rank(MODEL, {"compile": True, "reshard_after_forward": True})
    assert rank_of(service).is_compiled
    assert_close(trained(service), trained(local(MODEL, {"compile": False})))


@pytest.mark.slow
def test_two_compiled_ranks_learn_what_one_device_does(ranks):
    service = ranks(MODEL, {"compile": True}, timeout=900.0)
    found = trained(service)
    assert service.state_dict()["compiled"]
    assert_close(found, trained(local(MODEL, {"compile": False})))


@pytest.mark.integration
@pytest.mark.parametrize("model", [MODEL, spec("tied", adapter={})], ids=["whole", "adapter"])
def test_ranks_that_cannot_compile_go_on_as_they_were(
    one_rank, monkeypatch, caplog, tmp_path, model
):
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch({"cpp.cxx": ("false",)}):
        service = one_rank(model, {"compile": True})
    assert "goes on uncompiled" in caplog.text
    assert not rank_of(service).is_compiled
    # No weight is left gathered, so that a state is taken back.
    expected = local(model, {"compile": False})
    expected.forward_backward(batch(), loss({}))
    expected.optimizer_step()
    service.load_state_dict(expected.state_dict())
    assert_close(trained(service), trained(expected))
