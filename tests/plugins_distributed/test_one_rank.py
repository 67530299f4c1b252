"""The service ``fsdp`` with one rank gives the numbers of ``local``, bit for bit."""

import copy

import pytest
import torch
from here import batch, local, loss, spec
from torch.distributed.tensor import DTensor

from plugrl.core.run.checkpoints import checkpoint

SPLIT = {"micro_batch_size": 2, "head_chunk_tokens": 3}
CASES = {
    "plain": (spec(), {}),
    "tied": (spec("tied"), SPLIT),
    "matrices the other way round": (spec("gpt2"), {"value_head": True}),
    "padded rows, layers computed again": (spec("gemma2"), {"gradient_checkpointing": True}),
    "bfloat16": (spec(dtype="bfloat16"), {"value_head": True, "gradient_checkpointing": True}),
    "weights of bfloat16 alone": (spec(dtype="bfloat16"), {"master_weights": False, **SPLIT}),
    "adapter with dropout": (spec(adapter={"dropout": 0.3}), {"value_head": True, **SPLIT}),
    "adapter in bfloat16": (spec(dtype="bfloat16", adapter={}), SPLIT),
}


def step(service, options):
    torch.manual_seed(3)
    metrics = service.forward_backward(batch(), loss(options))
    return metrics, service.optimizer_step(), torch.get_rng_state().tolist()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            # The weights of a model in bfloat16 are saved as their float32 masters.
            assert torch.equal(value, other[name].to(value.dtype)), name
        elif isinstance(value, dict):
            assert_equal(value, other[name])
        else:
            assert value == other[name], name


@pytest.mark.parametrize("case", CASES)
def test_steps_and_state_equal_those_of_local(one_rank, case):
    model, options = CASES[case]
    ours, expected = one_rank(model, options), local(model, options)
    for _ in range(2):
        assert step(ours, options) == step(expected, options)
    for numbers in ("compute_log_prob", "compute_values"):
        if numbers == "compute_log_prob" or options.get("value_head"):
            assert torch.equal(getattr(ours, numbers)(batch()), getattr(expected, numbers)(batch()))
    assert_equal(dict(expected.weights()), dict(ours.weights()))
    assert_equal(expected.state_dict(), copy.deepcopy(ours.state_dict()))


@pytest.mark.parametrize(("wish", "whole"), [("auto", True), (False, True), (True, False)])
def test_weights_stay_whole_unless_they_are_forgotten_after_each_pass(one_rank, wish, whole):
    service = one_rank(spec(), {"reshard_after_forward": wish})
    service.compute_log_prob(batch())
    layers = service.ranks._rank.service.module.model.layers
    assert {isinstance(each, DTensor) for each in layers.parameters()} == {not whole}
    # An optimizer step makes them stale in any case.
    step(service, {})
    assert all(isinstance(each, DTensor) for each in layers.parameters())


@pytest.mark.parametrize("case", ["tied", "bfloat16", "adapter in bfloat16"])
def test_either_service_goes_on_with_the_state_of_the_other(one_rank, case, tmp_path):
    model, options = CASES[case]
    ours, expected = one_rank(model, options), local(model, options)
    step(ours, options)
    step(expected, options)
    there = checkpoint.load(checkpoint.save(tmp_path, 1, {"own": ours.state_dict()}))["own"]
    back = checkpoint.load(checkpoint.save(tmp_path, 2, {"own": expected.state_dict()}))["own"]
    wanted = step(expected, options)
    from_ranks, from_local = local(model, options), one_rank(model, options)
    from_ranks.load_state_dict(there)
    assert step(from_ranks, options) == wanted
    from_local.load_state_dict(back)
    assert step(from_local, options) == wanted


class Merging:
    """Notes what an engine that merges adapters gets."""

    merges_adapters = True

    def __init__(self):
        self.given = []

    def update_adapter(self, weights, version):
        self.given.append(weights)


def test_a_new_base_begins_the_adapter_anew_as_local_does(one_rank):
    model = spec(adapter={})
    ours, expected = one_rank(model, {}), local(model, {})
    other = {name: value.clone() for name, value in local(spec(seed=1), {}).weights().items()}
    merging = Merging()
    for service in (ours, expected):
        step(service, {})
        service.sync_to(merging)
        service.sync_to(merging)
        service.load_weights(other)
        step(service, {})
        service.sync_to(merging)
    assert_equal(dict(expected.weights()), dict(ours.weights()))
    for given in (merging.given[:3], merging.given[3:]):
        editions = [weights.edition for weights in given]
        assert editions[0] is editions[1]
        assert editions[1] is not editions[2]
        merged = given[2].merge(given[2].frozen(), given[2].products)
        assert_equal(dict(expected.weights()), dict(merged))


def test_weights_that_do_not_fit_are_refused(one_rank):
    service = one_rank(spec(), {})
    weights = dict(service.weights())
    name = next(iter(weights))
    with pytest.raises(RuntimeError, match="size mismatch"):
        service.load_weights({**weights, name: weights[name][:3]})
    with pytest.raises(RuntimeError, match="Missing key"):
        service.load_weights({n: value for n, value in weights.items() if n != name})


def test_a_reward_model_keeps_the_bias_of_its_head_at_zero(one_rank):
    options = {"value_head": True}
    service = one_rank(spec(), options)
    service.fix_value_bias()
    step(service, options)
    state = copy.deepcopy(service.state_dict())["value_head"]
    assert float(state["bias"]) == 0
    assert float(state["weight"].abs().max()) > 0


def test_exported_folders_equal_those_of_local(one_rank, tmp_path):
    from plugrl.plugins.transformers.loading import load_tokenizer

    model, options = spec(adapter={}), {"value_head": True}
    tokenizer = load_tokenizer(model)
    for name, service in (("ours", one_rank(model, options)), ("local", local(model, options))):
        service.fix_value_bias()
        step(service, options)
        service.export(tmp_path / name / "model", tokenizer)
        service.export(tmp_path / name / "adapter", tokenizer, adapter=True)
        service.export_scorer(tmp_path / name / "scorer", tokenizer)
    files = sorted(p.relative_to(tmp_path / "local") for p in (tmp_path / "local").rglob("*.*"))
    assert {"model", "adapter", "scorer"} <= {path.parts[0] for path in files}
    for path in files:
        assert (tmp_path / "ours" / path).read_bytes() == (tmp_path / "local" / path).read_bytes()
