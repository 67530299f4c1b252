"""Losses over preferences on a CUDA device give the numbers that they give elsewhere."""

import sys
from pathlib import Path

import pytest
import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS
from plugrl.trainers.reward_model import RewardModelTrainer
from plugrl.trainers.self_hosted_dpo import SelfHostedDpoTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
import preference_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def outcome(device, loss, **options):
    models = preference_models.make_models(device, value_head=True, **options)
    tokenizer = models["policy"].inference.tokenizer
    rows = preference_models.pairs(tokenizer, margins=loss == "bradley_terry")
    kind = RewardModelTrainer if loss == "bradley_terry" else SelfHostedDpoTrainer
    trainer = kind({"algorithm": {"loss": loss}}, models=models)
    batch, _ = trainer._prepare_batch(Batch.from_trajectories(rows))
    batch.values[LOSS_WEIGHTS] = trainer._weights(batch.values["loss_mask"])
    batch = trainer._before_optimizer_step(batch)
    service = models["policy"].trained()
    totals = service.forward_backward(batch, trainer._loss)
    return {**{k: v[0] for k, v in totals.items()}, **service.optimizer_step()}


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1, "packing": "never"}])
@pytest.mark.parametrize("loss", ["dpo", "ipo", "kto", "bradley_terry"])
def test_numbers_are_those_of_the_cpu(loss, options):
    assert outcome("cuda", loss, **options) == pytest.approx(
        outcome("cpu", loss), rel=2e-3, abs=2e-4
    )
