"""Quantised bases: their numbers, adapters that are trained over them, and what samples."""

import copy
from dataclasses import replace

import pytest
import torch

import plugrl
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import LoadedModel
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.models import Model
from plugrl.core.text.schedule.weight_sync import PARITY_TOLERANCE, WeightSync
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.quantization import (
    QuantizedLinear,
    num_parameters,
    quantized_layers,
)
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.testing import tiny
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

pytest.importorskip("torchao")
pytest.importorskip("peft")
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ],
)
LOSS = WeightedLoss(cross_entropy, {})
ROWS = [[2, 3, 4, 5, 1], [6, 7, 1], [3, 2, 8, 1], [5, 1]]
ROLLOUTS = [Trajectory(t, [0] + [1] * (len(t) - 1)) for t in ROWS]
LORA = {"type": "lora", "r": 4, "alpha": 16.0, "dropout": 0.0, "target_modules": "auto"}


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return request.param


@pytest.fixture
def quantized(spec, device):
    """What both services of one model are given; ``dtype``, an adapter's section and a format."""

    def make(kind="int8", dtype="float32", adapter=LORA, shares=True):
        section = None if adapter is None else ConfigView(adapter, checked=True)
        made = spec(quantization=kind, dtype=dtype)
        return replace(made, device=device, adapter=section, loaded=LoadedModel(shares))

    return make


@pytest.fixture
def pair(quantized):
    """An engine and a train service of one model, loaded as a run loads them."""

    def make(*args, compile=False, **kwargs):
        chosen = quantized(*args, **kwargs)
        engine = TransformersInferenceService({"compile": compile})
        engine.load(replace(chosen, adapter=None))
        service = LocalTrainService({"learning_rate": 0.02, "compile": compile})
        service.load(chosen)
        return engine, service

    return make


def batch():
    made = Batch.from_trajectories(ROLLOUTS)
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made


def step(service):
    totals = service.forward_backward(batch(), LOSS)
    return totals["loss"][0], service.optimizer_step()


def test_int8_by_hand():
    layer = torch.nn.Linear(4, 2, bias=False)
    # The largest number of a row is 127.5 steps of its scale, as torchao divides it.
    weight = torch.tensor([[1.275, -0.5, 0.0, 0.254], [-2.55, 0.02, 0.03, 1.0]])
    layer.weight.data = weight
    made = QuantizedLinear(layer, "int8")
    assert made.codes.dtype == torch.int8
    assert made.scale[:, 0].tolist() == pytest.approx([0.01, 0.02], rel=1e-3)
    assert made.codes.tolist() == [[127, -50, 0, 25], [-128, 1, 2, 50]]
    product = torch.tensor([[0.01], [0.02]]) * made.codes
    torch.testing.assert_close(made(torch.eye(4)), product.T, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "apart"), [("int8", 0.01), ("nf4", 0.12)])
def test_products_and_gradients_are_those_of_the_weight_that_is_read(kind, apart):
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 48)
    made = QuantizedLinear(copy.deepcopy(layer), kind)
    given = torch.randn(5, 64, requires_grad=True)
    weight = made.weight_now()
    off = (weight - layer.weight.detach()).norm() / layer.weight.detach().norm()
    assert 0 < float(off) < apart
    torch.testing.assert_close(made(given), given @ weight.T + layer.bias)
    (gradient,) = torch.autograd.grad(made(given).square().sum(), given)
    plain = torch.nn.functional.linear(given, weight, layer.bias).square().sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, given)[0])


def test_nf4_is_read_as_torchao_reads_it():
    from torchao.quantization import to_nf4

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    expected = to_nf4(layer.weight.detach(), 64, 64).get_original_weight()
    torch.testing.assert_close(QuantizedLinear(layer, "nf4").weight_now(), expected)
    with pytest.raises(ValueError, match="no multiple of 512 as nf4 needs; set int8"):
        QuantizedLinear(torch.nn.Linear(20, 20), "nf4")


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_learns_over_it_and_the_engine_samples_with_it(pair, kind, dtype):
    engine, service = pair(kind, dtype)
    layers = quantized_layers(service.module)
    assert len(layers) == 2 * 7
    base = {n: p.clone() for q in layers.values() for n, p in q.parts().items()}
    # One base for both, which is what saves the memory.
    for name, layer in quantized_layers(engine._model).items():
        assert layer.codes.data_ptr() == layers[name].codes.data_ptr()
    service.share_with(engine)
    losses = [step(service)[0] for _ in range(15)]
    assert losses[-1] < losses[0] - 0.05
    sync = WeightSync(Model("policy", engine, service), PARITY_TOLERANCE[dtype])
    sync.observe(ROLLOUTS)
    assert sync() < PARITY_TOLERANCE[dtype]
    before = engine.score(ROWS)
    step(service)
    service.version += 1
    sync()
    assert engine.score(ROWS) != before
    after = {n: p for q in layers.values() for n, p in q.parts().items()}
    assert all(torch.equal(after[name], part) for name, part in base.items())


def test_sampled_log_probabilities_are_those_that_are_trained(pair):
    engine, service = pair("int8")
    for _ in range(3):
        step(service)
    service.sync_to(engine)
    sampling = SamplingParams(max_new_tokens=12)
    asked = [GenerationRequest([2 + i], sampling, (0, 0, i, 0, 0)) for i in range(6)]
    answers = engine.generate(asked)
    rows = [
        Trajectory([*one.prompt_tokens, *got.tokens], [0] + [1] * len(got.tokens))
        for one, got in zip(asked, answers, strict=True)
    ]
    trained = service.compute_log_prob(Batch.from_trajectories(rows, temperature=1.0))
    for row, got in zip(trained, answers, strict=True):
        assert row[1 : 1 + len(got.tokens)].tolist() == pytest.approx(got.logprobs, abs=1e-4)
    # Another update, over steps that are kept for the next requests.
    for _ in range(3):
        step(service)
    service.sync_to(engine)
    assert [a.logprobs for a in engine.generate(asked)] != [a.logprobs for a in answers]


def test_exported_weights_are_whole_and_merged(pair, tmp_path):
    from transformers import AutoModelForCausalLM

    engine, service = pair("int8")
    for _ in range(3):
        step(service)
    service.export(tmp_path, engine.tokenizer)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not quantized_layers(read)
    ids = torch.tensor([[2, 3, 4, 5]])
    expected = read(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    row = Batch.from_trajectories([Trajectory([2, 3, 4, 5], [0, 1, 1, 1])])
    own = service.compute_log_prob(row)[0, 1:]
    torch.testing.assert_close(own, expected.detach(), rtol=1e-4, atol=1e-4)


def test_a_run_goes_on_exactly_also_over_weights_of_an_earlier_phase(pair, device):
    _, service = pair("int8")
    for _ in range(2):
        step(service)
    merged = {name: value.clone() for name, value in service.weights().items()}
    _, later = pair("int8")
    later.load_weights(merged)
    step(later)
    _, resumed = pair("int8")
    resumed.load_state_dict(copy.deepcopy(later.state_dict()))
    step(later)
    step(resumed)
    if device != "cpu":
        # Gradients are summed there in whatever order.
        both = (each.compute_log_prob(batch()) for each in (resumed, later))
        torch.testing.assert_close(*both, rtol=0.0, atol=1e-2)
        return
    for name, value in later.weights().items():
        assert torch.equal(resumed.weights()[name], value), name


def test_a_frozen_model_takes_weights_of_an_earlier_phase(quantized):
    engine, plain = TransformersInferenceService({}), TransformersInferenceService({})
    engine.load(replace(quantized(adapter=None), loaded=None))
    plain.load(replace(quantized(None, adapter=None), loaded=None))
    moved = {name: value + 0.1 for name, value in plain._model.state_dict().items()}
    before = engine.score(ROWS)
    for each in (engine, plain):
        each.update_weights(moved, 1)
    assert engine.score(ROWS) != before
    for own, exact in zip(engine.score(ROWS), plain.score(ROWS), strict=True):
        assert own == pytest.approx(exact, abs=0.05)
    with pytest.raises(ValueError, match="weights of another model"):
        engine.update_weights(engine._model.state_dict(), 2)


def test_its_parameters_count_as_those_of_the_model(quantized):
    made = TransformersInferenceService({})
    made.load(replace(quantized(adapter=None), loaded=None))
    # As of the plain model of test_compiling.py.
    assert num_parameters(made._model) == 19_264


@pytest.mark.slow
def test_compiled_layers_give_the_numbers_of_plain_ones(pair):
    (_, compiled), (_, plain) = pair("nf4", compile=True), pair("nf4")
    assert compiled.is_compiled
    for _ in range(2):
        losses = [step(each)[0] for each in (compiled, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"adapter": None}, "quantised weights are not trained; give the model an adapter"),
        ({"train": {"type": "in_process"}}, "is for train: local; set that, or leave"),
        ({"inference": {"type": "openai", "model": "m", "base_url": "http://localhost:1/v1"}},
         "is for inference: transformers; set that, or leave"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_run(tmp_path, changes, said):
    policy = {"source": {"quantization": "int8"}, "adapter": LORA}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"models": {"policy": policy}})
    tree["models"]["policy"] |= changes
    with pytest.raises(ConfigError, match=rf"models\.policy\.source\.quantization.*{said}"):
        prepare(tree)


def test_without_torchao_there_is_one_line(quantized, monkeypatch):
    from plugrl.plugins.transformers import quantization

    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        TransformersInferenceService({}).load(quantized())
    assert str(caught.value) == (
        "models.policy.source.quantization needs the package torchao, which is not installed: "
        'pip install "plugrl[torchao]"'
    )


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["sync", "batch-async"])
def test_a_run_trains_an_adapter_over_it_beside_a_quantised_reference(tmp_path, mode):
    tree = tiny.config("self_hosted_grpo", tmp_path, {
        "models": {"policy": {"source": {"quantization": "int8"}, "adapter": LORA}},
        "trainer": {"algorithm": {"kl": {"reward": {"coefficient": 0.1}}}},
        "weight": {"sync_mode": mode},
    })  # fmt: skip
    tree["models"]["reference"] = {"source": tree["models"]["policy"]["source"]}
    run = plugrl.train(tree)
    steps = [line for line in run.metrics if "train/loss" in line]
    assert len(steps) == 2
    assert all(line["sync/parity"] < 1e-4 for line in run.metrics if "sync/parity" in line)
    assert any("sync/parity" in line for line in run.metrics)
