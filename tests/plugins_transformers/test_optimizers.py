"""The optimizers of the train service ``local``: what they change, and that runs go on exactly."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.plugins.distributed.train_service import FsdpTrainConfig
from plugrl.plugins.transformers.model_shape import ModelShape
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

LOSS = WeightedLoss(cross_entropy, {})
#: Wide enough that moments of matrices, of 4,096 numbers and more, are quantised.
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)
NAMES = ["adamw", pytest.param("adamw_8bit", marks=needs_torchao), "muon"]


@pytest.fixture
def service_with(spec, monkeypatch):
    """A service with an optimizer, whose compiled arithmetic is computed as it is written."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def make(name, **options):
        service = LocalTrainService({"learning_rate": 0.01, "optimizer": name, **options})
        service.load(spec(config={**spec().source.config, **WIDE}))
        return service

    return make


def step(service):
    service.forward_backward(weighted(), LOSS)
    return service.optimizer_step()


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_goes_on_exactly(service_with, name):
    schedule = {"warmup_steps": 3}
    service = service_with(name, schedule=schedule)
    for _ in range(2):
        step(service)
    state = copy.deepcopy(service.state_dict())
    resumed = service_with(name, schedule=schedule)
    resumed.load_state_dict(state)
    for each in (service, resumed):
        for _ in range(2):
            step(each)
    assert service.optimizer_steps == resumed.optimizer_steps == 4
    for weight, value in service.weights().items():
        assert torch.equal(resumed.weights()[weight], value), weight


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_plain_tensors_within_mappings(service_with, name):
    service = service_with(name)
    step(service)

    def leaves(value):
        if isinstance(value, dict):
            return [leaf for each in value.values() for leaf in leaves(each)]
        return [value]

    found = leaves(service.state_dict()["optimizer"])
    assert found
    assert {type(leaf) for leaf in found} == {torch.Tensor}


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_as_large_as_planned(service_with, spec, name):
    service = service_with(name)
    step(service)
    held = service.state_dict()["optimizer"].values()
    parts = [v for moments in held for v in moments.values()]
    parts = [v for each in parts for v in (each.values() if isinstance(each, dict) else [each])]
    source = {**spec().source, "config": {**spec().source.config, **WIDE}}
    train = {"optimizer": name, "master_weights": "auto"}
    shape = ModelShape.of(ConfigView({"source": source, "train": train}, checked=True))
    # Steps are counted too, in a tensor of no dimension.
    assert sum(value.nbytes for value in parts if value.dim()) == shape.moments


@needs_torchao
def test_moments_in_8_bits_are_those_of_adamw_rounded(service_with):
    services = [service_with(name, weight_decay=0.1) for name in ("adamw", "adamw_8bit")]
    for service in services:
        for _ in range(3):
            step(service)
    exact, rounded = (service.weights() for service in services)
    before = service_with("adamw").weights()
    for name, value in exact.items():
        moved = (value - before[name]).norm()
        assert (rounded[name] - value).norm() < 0.1 * moved, name
    quantised = [s for s in services[1]._optimizer.state.values() if s["exp_avg"].numel() >= 4096]
    assert len(quantised) >= 3
    # A byte for each number, and a scale for each 256.
    assert all(s["exp_avg"].codes.dtype == torch.uint8 for s in quantised)


def test_muon_changes_matrices_of_the_layers_and_adamw_the_rest(service_with):
    options = {"weight_decay": 0.1, "grad_clip_norm": 1e9}
    plain, muon = (service_with(name, **options) for name in ("adamw", "muon"))
    before = {name: value.clone() for name, value in muon.weights().items()}
    muon.forward_backward(weighted(), LOSS)
    gradients = {n: p.grad.clone() for n, p in muon.module.named_parameters()}
    muon.optimizer_step()
    step(plain)
    matrices = [name for name, value in before.items() if "layers" in name and value.dim() == 2]
    assert len(matrices) == 7
    for name, value in muon.weights().items():
        if name not in matrices:
            assert torch.equal(value, plain.weights()[name]), name
            continue
        alone = torch.nn.Parameter(before[name].clone())
        alone.grad = gradients[name]
        torch.optim.Muon(
            [alone], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", eps=1e-8
        ).step()
        assert torch.equal(value, alone), name
        # As large as AdamW's updates: at most the learning rate for each number.
        assert 0.0003 < (value - before[name]).square().mean().sqrt() < 0.01, name


def test_an_adapter_can_be_trained_by_each(spec, monkeypatch):
    pytest.importorskip("peft")
    from plugrl.core.config.view import ConfigView

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    adapter = {"type": "lora", "r": 2, "alpha": 4.0, "dropout": 0.0, "target_modules": "auto"}
    for name in ["adamw", "muon"]:
        model = spec()
        model = type(model)(
            model.name, model.source, model.seed, model.device, ConfigView(adapter, checked=True)
        )
        service = LocalTrainService({"learning_rate": 0.01, "optimizer": name})
        service.load(model)
        before = {n: v.clone() for n, v in service.weights().items()}
        step(service)
        assert any(not torch.equal(before[n], v) for n, v in service.weights().items())


def test_eight_bits_without_torchao_are_refused_with_what_to_install(spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError) as caught:
        LocalTrainService({"optimizer": "adamw_8bit"}).load(spec())
    assert str(caught.value) == (
        "models.policy.train.optimizer: adamw_8bit needs the package torchao, which is not "
        'installed: pip install "plugrl[torchao]"'
    )


@needs_torchao
def test_eight_bits_without_a_compiler_are_refused(spec, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="adamw_8bit is compiled: there is no C.. compiler"):
        LocalTrainService({"optimizer": "adamw_8bit"}).load(spec())


@pytest.mark.parametrize("name", ["adamw_8bit", "muon"])
def test_ranks_have_adamw_alone(name):
    with pytest.raises(ConfigError) as caught:
        FsdpTrainConfig(optimizer=name)
    assert str(caught.value) == f"optimizer {name} is for the service local; take adamw"


def test_float16_is_refused_with_the_types_that_can_be_trained(spec):
    with pytest.raises(ConfigError) as caught:
        LocalTrainService({}).load(spec(dtype="float16"))
    assert str(caught.value) == (
        "models.policy.source.dtype: gradients of float16 are lost below 6e-8, and losses are not "
        "scaled here; set bfloat16, or float32"
    )
