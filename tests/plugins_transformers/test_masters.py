"""Weights in low precision with float32 copies."""

import sys
from pathlib import Path

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.plugins.transformers.train_service import LocalTrainConfig
from plugrl.plugins.transformers.training.masters import MasterWeights
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

LOSS = WeightedLoss(cross_entropy, {})


def step(service):
    service.forward_backward(weighted(), LOSS)
    return service.optimizer_step()


def frozen_copy(service):
    return {name: value.clone() for name, value in service.weights().items()}


# AdamW moves a weight by the learning rate or less a step. The weights that are 1 (of the norms)
# have neighbours at a distance of 2**-8 and 2**-7 in bfloat16; 25 steps add up to more.
SMALL = {"learning_rate": 4e-4, "weight_decay": 0.0, "grad_clip_norm": 1e9}


@pytest.mark.parametrize(("masters", "moves"), [("auto", True), (True, True), (False, False)])
def test_updates_below_the_resolution_are_kept(train_service, spec, masters, moves):
    service = train_service(spec(dtype="bfloat16"), master_weights=masters, **SMALL)
    name = "model.layers.0.input_layernorm.weight"
    before = frozen_copy(service)[name]
    assert torch.equal(before, torch.ones_like(before))
    for _ in range(25):
        step(service)
    assert service.weights()[name].dtype == torch.bfloat16
    assert torch.equal(service.weights()[name], before) is not moves


def test_gradients_of_micro_batches_are_summed_in_float32(train_service, spec):
    dtype = "bfloat16"
    service = train_service(spec(dtype=dtype), micro_batch_size=2, packing="never")
    data = weighted()
    service.forward_backward(data, LOSS)
    summed = {name: copy.grad for name, copy in service._masters.copies.items()}
    alone = train_service(spec(dtype=dtype), master_weights=False, packing="never")
    expected, low = {}, {}
    for rows in ([0, 2], [1, 3]):
        alone._model.zero_grad()
        alone.forward_backward(data.select(rows), LOSS)
        for name, weight in alone._model.named_parameters():
            expected[name] = expected.get(name, 0) + weight.grad.float()
            low[name] = low.get(name, 0) + weight.grad
    for name, gradient in summed.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, expected[name])
    # The sum in low precision is another one, so that the comparison says something.
    assert any(not torch.equal(low[name].float(), summed[name]) for name in summed)
    assert all(weight.grad is None for weight in service._model.parameters())


def test_the_sampled_weights_are_the_rounded_copies(train_service, spec):
    service = train_service(spec(dtype="bfloat16"))
    step(service)
    for name, copy in service._masters.copies.items():
        assert torch.equal(service.weights()[name], copy.detach().to(torch.bfloat16))


def test_a_resumed_service_goes_on_bit_for_bit(train_service, spec):
    straight, resumed = (train_service(spec(dtype="bfloat16"), **SMALL) for _ in range(2))
    for _ in range(3):
        step(straight)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(3):
        assert step(straight) == step(resumed)
    for name, copy in straight._masters.copies.items():
        assert torch.equal(copy, resumed._masters.copies[name])
        assert torch.equal(straight.weights()[name], resumed.weights()[name])


def test_copies_of_float32_weights_change_nothing(train_service):
    plain, copied = train_service(), train_service(master_weights=True)
    assert plain._masters is None
    for _ in range(3):
        assert step(plain) == step(copied)
    for name, weight in plain.weights().items():
        assert torch.equal(weight, copied.weights()[name])


def test_new_weights_replace_the_copies(train_service, spec):
    service, other = (train_service(spec(dtype="bfloat16", seed=s)) for s in (0, 1))
    step(other)
    service.load_weights(frozen_copy(other))
    before = frozen_copy(service)
    # An optimizer step writes the copies back; old ones would bring the old weights.
    service._masters.write_back()
    for name, weight in before.items():
        assert torch.equal(service.weights()[name], weight)
        assert torch.equal(other.weights()[name], weight)


def test_a_shared_weight_has_one_copy():
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    masters = MasterWeights({"tied": weight})
    (weight.sum() + 2 * weight.sum()).backward()
    assert torch.equal(masters.copies["tied"].grad, torch.full((2,), 3.0))


def test_other_words_are_refused():
    with pytest.raises(ConfigError, match="master_weights must be auto, true or false"):
        LocalTrainConfig(master_weights="maybe")
