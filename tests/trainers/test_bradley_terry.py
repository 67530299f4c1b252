"""The loss of reward models: by hand, by TRL, by finite differences, and where it is read."""

import math
import sys
from pathlib import Path

import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.reward_model import RewardModelEvaluator
from plugrl.trainers.reward_model import RewardModelTrainer, scored_at_the_end

sys.path.insert(0, str(Path(__file__).parent))
import preference_models

# (loss, gradient norm) of TRL 1.16.0 with transformers 5.24 and torch 2.13, by trl_preferences.py.
TRL = {
    (False, 0.1): (0.6872760057449341, 1.1387020349502563),
    (True, 0.0): (1.3065917491912842, 1.5593374967575073),
}


def weighted(**options):
    function = default_registry().get("loss", "bradley_terry")
    return WeightedLoss(function, configure(function, options))


def softplus(x):
    return math.log1p(math.exp(x))


def two_pairs():
    """Rewards: chosen 1.0 and -0.5, rejected 0.25 and 0.5; other places must not count."""
    batch = Batch.from_trajectories([Trajectory([3, 4, 5], [0, 1, m]) for m in (1, 0, 1, 1)])
    rewards = torch.tensor([[7.0, 7.0, 1.0], [7.0, 0.25, 9.0], [0.0, 3.0, -0.5], [0.0, 3.0, 0.5]])
    batch.values["values"] = rewards.requires_grad_()
    batch.metadata |= {
        "unit": torch.tensor([0, 0, 4, 4]),
        "preferred": torch.tensor([1.0, 0.0, 1.0, 0.0]),
    }
    weights = aggregation_weights(batch.values["loss_mask"], "seq-mean-token-sum")
    batch.values[LOSS_WEIGHTS] = weights
    return batch


LOGP = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("margins", "coefficient", "expected"),
    [
        (None, 0.0, (softplus(-0.75) + softplus(1.0)) / 2),
        (None, 0.5, (softplus(-0.75) + 0.5 * 1.25**2 + softplus(1.0)) / 2),
        ([0.5, 0.5, 2.0, 2.0], 0.0, (softplus(-0.25) + softplus(3.0)) / 2),
    ],
)
def test_values_by_hand(margins, coefficient, expected):
    batch = two_pairs()
    if margins:
        batch.metadata["margin"] = torch.tensor(margins)
    total, metrics = weighted(center_coefficient=coefficient)(LOGP, batch)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-6)
    assert metrics["accuracy"] == (1.0, 2.0)
    assert metrics["margin"] == (0.75 - 1.0, 2.0)


def test_gradients_by_finite_differences():
    batch, loss = two_pairs(), weighted(center_coefficient=0.3)
    start = batch.values["values"].detach().double().requires_grad_()

    def total(values):
        batch.values["values"] = values
        return loss(LOGP, batch)[0]

    assert torch.autograd.gradcheck(total, (start,), atol=1e-7)
    (gradient,) = torch.autograd.grad(total(start), start)
    last = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    assert torch.equal(gradient != 0, last != 0)


def trained(margins, coefficient, **service):
    models = preference_models.make_models(value_head=True, **service)
    loss = {"type": "bradley_terry", "center_coefficient": coefficient}
    trainer = RewardModelTrainer({"algorithm": {"loss": loss}}, models=models)
    rows = preference_models.pairs(models["policy"].inference.tokenizer, margins)
    batch, _ = trainer._prepare_batch(Batch.from_trajectories(rows))
    batch.values[LOSS_WEIGHTS] = trainer._weights(batch.values["loss_mask"])
    return trainer, batch, models["policy"].trained()


@pytest.mark.parametrize("service", [{}, {"micro_batch_size": 1, "packing": "never"}])
@pytest.mark.parametrize(("margins", "coefficient"), TRL)
def test_the_trainer_gives_the_numbers_of_trl(margins, coefficient, service):
    trainer, batch, service = trained(margins, coefficient, **service)
    loss = service.forward_backward(batch, trainer._loss)["loss"][0]
    found = (loss, service.optimizer_step()["grad_norm"])
    assert found == pytest.approx(TRL[margins, coefficient], rel=2e-5)
    # A folder cannot keep it.
    assert float(service._forward.value_head.bias.detach()) == 0


def test_held_out_numbers_are_those_of_training():
    trainer, batch, service = trained(True, 0.1)
    held_out = trainer.measure(batch)
    assert held_out["loss"] == pytest.approx(
        service.forward_backward(batch, trainer._loss)["loss"][0], rel=1e-6
    )


def test_rows_are_scored_behind_their_last_token():
    batch = Batch.from_trajectories(
        [Trajectory([5, 6, 1], [0, 1, 1]), Trajectory([7, 8, 9, 1], [0, 0, 0, 0])]
    )
    made = scored_at_the_end(batch).values
    assert made["input_ids"].tolist() == [[5, 6, 1, 0, 0], [7, 8, 9, 1, 0]]
    assert made["loss_mask"].tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert made["position_ids"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]


def test_values_are_needed():
    batch = two_pairs()
    del batch.values["values"]
    with pytest.raises(ContractError, match=r"needs batch.values\['values'\].*value_head=true"):
        weighted()(LOGP, batch)
    with pytest.raises(ConfigError, match="center_coefficient: must be at least 0"):
        weighted(center_coefficient=-0.1)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_a_folder_gives_the_numbers_of_the_value_head(tmp_path, batch_size):
    _, batch, service = trained(False, 0.0)
    rewards = service.compute_values(batch).sum(1)
    assert rewards.std() > 0.05
    tokenizer = preference_models.make_models()["policy"].inference.tokenizer
    service.export_scorer(tmp_path / "reward", tokenizer)
    judge = RewardModelEvaluator({"path": str(tmp_path / "reward"), "batch_size": batch_size})
    items = [
        ({"prompt": prompt}, preference_models.target(answer))
        for prompt, *answers in preference_models.PAIRS
        for answer in answers
    ]
    scores = torch.tensor([result.reward for result in judge.evaluate_batch(items)])
    torch.testing.assert_close(scores, rewards, rtol=0, atol=6e-5)
    assert judge.evaluate(*items[3]).reward == pytest.approx(float(rewards[3]), abs=6e-5)
