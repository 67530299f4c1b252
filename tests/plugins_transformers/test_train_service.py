"""The local train service: gradients, schedule, state."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.optimizer import ScheduleConfig
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.engine.streams import CAPTURING
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

LOSS = WeightedLoss(cross_entropy, {})


def gradients(service):
    return {n: p.grad.clone() for n, p in service._model.named_parameters()}


def test_the_loss_and_gradient_equal_transformers_own(train_service):
    service = train_service()
    data = weighted()
    totals = service.forward_backward(data, LOSS)
    ours = gradients(service)
    service._model.zero_grad()
    labels = data.values["input_ids"].masked_fill(data.values["loss_mask"] == 0, -100)
    out = service._model(
        input_ids=data.values["input_ids"],
        attention_mask=data.values["attention_mask"],
        labels=labels,
    )
    out.loss.backward()
    assert totals["loss"][0] == pytest.approx(out.loss.item(), rel=1e-5)
    for name, gradient in gradients(service).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packing", ["auto", "never"])
def test_a_sampled_padding_token_leaves_its_embedding_alone(train_service, packing):
    service = train_service(packing=packing)
    padding = service._model.base_model.embed_tokens.padding_idx
    tokens = [2, padding, 3, padding, 4]
    made = Batch.from_trajectories([Trajectory(tokens, [0, 1, 1, 1, 1])], pad_token_id=padding)
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    service.forward_backward(made, LOSS)
    gradient = gradients(service)["model.embed_tokens.weight"].norm(dim=1)
    assert gradient[padding] == 0
    assert gradient[2] > 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_do_not_change_the_gradient(train_service, size):
    whole, parts = train_service(), train_service(micro_batch_size=size)
    one, other = whole.forward_backward(weighted(), LOSS), parts.forward_backward(weighted(), LOSS)
    assert other["loss"][0] == pytest.approx(one["loss"][0], rel=1e-5)
    assert other["log_prob"] == pytest.approx(one["log_prob"], rel=1e-5)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, rtol=1e-4, atol=1e-6)


def test_log_probabilities_are_zero_where_nothing_is_trained(train_service):
    data = weighted()
    values = train_service().compute_log_prob(data)
    assert values.shape == data.values["loss_mask"].shape
    assert torch.equal(values == 0, data.values["loss_mask"] == 0)


def test_temperature_divides_the_logits(train_service):
    service, data = train_service(), weighted()
    data.metadata["temperature"] = 2.0
    with torch.no_grad():
        logits = service._model(
            input_ids=data.values["input_ids"], attention_mask=data.values["attention_mask"]
        ).logits
    rows = (logits / 2.0).log_softmax(-1)[:, :-1]
    expected = rows.gather(2, data.values["input_ids"][:, 1:, None])[..., 0]
    expected = expected * data.values["loss_mask"][:, 1:]
    torch.testing.assert_close(service.compute_log_prob(data)[:, 1:], expected)


def step(service):
    service.forward_backward(weighted(), LOSS)
    return service.optimizer_step()


def test_training_lowers_the_loss(train_service):
    service = train_service()
    losses = [service.forward_backward(weighted(), LOSS)["loss"][0] for _ in range(1)]
    for _ in range(20):
        service.optimizer_step()
        losses.append(service.forward_backward(weighted(), LOSS)["loss"][0])
    assert losses[-1] < losses[0] / 2


def test_saved_state_goes_on_exactly(train_service):
    straight, resumed = train_service(), train_service()
    for _ in range(3):
        step(straight)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(3):
        assert step(straight) == step(resumed)
    for name, weight in straight.weights().items():
        assert torch.equal(weight, resumed.weights()[name])


def test_a_gradient_that_is_not_finite_is_dropped(train_service):
    service, untouched = train_service(), train_service()

    def broken(logp, data, config):
        return logp * math.nan, {}

    service.forward_backward(weighted(), WeightedLoss(broken, {}))
    assert math.isnan(service.optimizer_step()["grad_norm"])
    for name, weight in service.weights().items():
        assert torch.equal(weight, untouched.weights()[name])
    assert step(service) == step(untouched)


@pytest.mark.parametrize(
    ("step_number", "expected"),
    [(0, 1 / 5), (3, 4 / 5), (4, 1.0), (9, 0.55), (14, 0.1), (99, 0.1)],
)
def test_the_linear_schedule_by_hand(step_number, expected):
    config = ScheduleConfig(warmup_steps=4, decay="linear", total_steps=14, final_factor=0.1)
    assert ScheduleConfig.factor(config, step_number) == pytest.approx(expected)


@pytest.mark.parametrize(("step_number", "expected"), [(0, 1.0), (5, 0.5), (10, 0.0)])
def test_the_cosine_schedule_by_hand(step_number, expected):
    config = ScheduleConfig(decay="cosine", total_steps=10)
    assert ScheduleConfig.factor(config, step_number) == pytest.approx(expected)


def test_the_learning_rate_follows_the_schedule(train_service):
    service = train_service(schedule={"warmup_steps": 1})
    assert [step(service)["learning_rate"] for _ in range(3)] == [0.005, 0.01, 0.01]


@pytest.mark.parametrize(
    "options",
    [{"learning_rate": -1.0}, {"learning_rate": math.inf}, {"betas": [0.9]}, {"betas": [0.9, 1.0]},
     {"grad_clip_norm": 0.0}, {"micro_batch_size": 0}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        LocalTrainService(options)


def test_no_step_is_captured_while_a_model_is_trained(train_service):
    service, free = train_service(), []

    def captures():
        # Of another thread, as that of an engine is.
        got = CAPTURING.acquire(blocking=False)
        if got:
            CAPTURING.release()
        return got

    with ThreadPoolExecutor(1) as engine:
        layer = service.module.model.layers[0]
        layer.register_forward_hook(lambda *_: free.append(engine.submit(captures).result()))
        service.forward_backward(weighted(), LOSS)
        service.compute_log_prob(weighted())
        assert free == [False, False]
        assert engine.submit(captures).result()
