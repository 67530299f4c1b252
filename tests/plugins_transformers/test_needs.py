"""What losses need besides log-probabilities: entropies and values, and the value head."""

import sys
from pathlib import Path

import pytest
import torch

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.learn.losses import WeightedLoss

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

ROWS = [
    ([2, 3, 4, 5, 6, 1], [0, 0, 1, 1, 1, 1]),
    ([2, 3, 7, 1], [0, 0, 1, 1]),
    ([4, 5, 6, 7, 8, 9, 2, 1], [0, 1, 1, 0, 0, 0, 1, 1]),
    ([3, 3, 3], [0, 0, 0]),
]
SPLITS = [
    {"micro_batch_size": 1},
    {"micro_batch_tokens": 9, "packing": "never"},
    {"head_chunk_tokens": 3, "gradient_checkpointing": True},
]


def batch(temperature=1.0):
    return weighted(ROWS, temperature)


def entropy_loss(logp, batch, config):
    mask = batch.values["loss_mask"]
    return batch.values["entropy"] + 0 * logp, {
        "entropy": (batch.values["entropy"].detach().sum(), mask.sum())
    }


entropy_loss.needs = ("entropy",)


def value_loss(logp, batch, config):
    target = batch.values["input_ids"].float()
    return (batch.values["values"] - target).square() + 0 * logp, {}


value_loss.needs = lambda config: ("values",)


def value_head(service):
    """Weight and bias of the value head, which are the last of what is trained."""
    return service.parameters()[-2:]


def gradients(service, *, head=False):
    named = dict(service.module.named_parameters())
    if head:
        named |= zip(("head.weight", "head.bias"), value_head(service), strict=True)
    return {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


@pytest.mark.parametrize("temperature", [1.0, 0.5, torch.tensor([0.5, 1.0, 2.0, 1.0])])
def test_entropies_are_those_of_the_sampling_distribution(gradient_service, temperature):
    service, data = gradient_service(), batch()
    data.metadata["temperature"] = temperature
    totals = service.forward_backward(data, WeightedLoss(entropy_loss, {}))
    with torch.no_grad():
        logits = service.module(
            input_ids=data.values["input_ids"], attention_mask=data.values["attention_mask"]
        ).logits[:, :-1]
    heat = torch.as_tensor(temperature).reshape(-1, 1, 1)
    expected = torch.distributions.Categorical(logits=logits / heat).entropy()
    expected = (expected * data.values["loss_mask"][:, 1:]).sum().item()
    assert totals["entropy"] == pytest.approx((expected, 10.0), rel=1e-5)


@pytest.mark.parametrize("loss", [entropy_loss, value_loss], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("options", SPLITS, ids=str)
def test_the_split_into_passes_changes_no_gradient(gradient_service, loss, options):
    one, other = gradient_service(value_head=True), gradient_service(value_head=True, **options)
    for service in (one, other):
        torch.nn.init.constant_(value_head(service)[0], 0.3)
        service.forward_backward(batch(), WeightedLoss(loss, {}))
    want = gradients(one, head=True)
    assert any(value.count_nonzero() for value in want.values())
    for name, gradient in gradients(other, head=True).items():
        torch.testing.assert_close(gradient, want[name], rtol=2e-4, atol=2e-6, msg=name)


def test_an_entropy_gradient_by_finite_differences(train_service, architecture_spec):
    service, data = train_service(architecture_spec("llama")), batch()
    service.forward_backward(data, WeightedLoss(entropy_loss, {}))
    direction = {n: g / 10 for n, g in gradients(service).items()}
    slope = sum(float((g * 10 * g).sum()) for g in direction.values())
    seen = []
    for step in (0.02, -0.04):
        with torch.no_grad():
            for name, weight in service.module.named_parameters():
                weight += step * direction[name]
        seen.append(service.forward_backward(data, WeightedLoss(entropy_loss, {}))["loss"][0])
    assert slope > 0.1
    assert seen[0] - seen[1] == pytest.approx(0.04 * slope, rel=0.02)


def test_a_value_is_that_of_the_state_before_its_token(gradient_service):
    service, data = gradient_service(value_head=True), batch()
    torch.nn.init.constant_(value_head(service)[0], 0.3)
    values = service.compute_values(data)
    assert torch.equal(values != 0, data.values["loss_mask"] != 0)
    with torch.no_grad():
        hidden = service.module.base_model(
            input_ids=data.values["input_ids"], attention_mask=data.values["attention_mask"]
        ).last_hidden_state
    expected = 0.3 * hidden.sum(-1)[:, :-1] * data.values["loss_mask"][:, 1:]
    torch.testing.assert_close(values[:, 1:], expected, rtol=1e-4, atol=1e-5)
    # The last token is part of no state that is valued.
    data.values["input_ids"][0, 5] = 8
    torch.testing.assert_close(service.compute_values(data)[0], values[0])


def test_the_value_head_learns_and_is_in_checkpoints_but_not_in_the_sampler(train_service):
    service, data = train_service(value_head=True, learning_rate=0.05), batch()
    assert service.compute_values(data).count_nonzero() == 0
    losses = []
    for _ in range(20):
        losses.append(service.forward_backward(data, WeightedLoss(value_loss, {}))["loss"][0])
        service.optimizer_step()
    assert losses[-1] < 0.1 * losses[0]
    assert service.weights().keys() == train_service().weights().keys()
    other = train_service(value_head=True, learning_rate=0.05)
    other.load_state_dict(service.state_dict())
    assert torch.equal(other.compute_values(data), service.compute_values(data))
    for each in (service, other):
        each.forward_backward(data, WeightedLoss(value_loss, {}))
        each.optimizer_step()
    assert torch.equal(other.compute_values(data), service.compute_values(data))


def test_the_value_head_beside_an_adapter_and_low_precision(train_service, spec):
    service = train_service(spec(dtype="bfloat16"), value_head=True, learning_rate=0.05)
    data, losses = batch(), []
    for _ in range(10):
        losses.append(service.forward_backward(data, WeightedLoss(value_loss, {}))["loss"][0])
        service.optimizer_step()
    assert losses[-1] < losses[0]
    assert value_head(service)[0].dtype == torch.float32


def test_without_a_value_head_the_setting_is_named(train_service):
    service = train_service()
    message = r"no value head; set models\.NAME\.train\.value_head=true"
    with pytest.raises(ConfigError, match=message):
        service.compute_values(batch())
    with pytest.raises(ConfigError, match=message):
        service.forward_backward(batch(), WeightedLoss(value_loss, {}))


@pytest.mark.parametrize("needs", ["entropy", ("entropies",)])
def test_what_nothing_can_give_is_refused(needs):
    def loss(logp, batch, config):
        return logp, {}

    loss.needs = needs
    with pytest.raises(ContractError, match=r"loss loss .*has needs=.*among: entropy, values"):
        _ = WeightedLoss(loss, {}).needs
