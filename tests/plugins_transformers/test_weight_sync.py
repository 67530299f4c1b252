"""The parity probe finds a sampler that does not run the trained weights."""

import pytest

from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.losses import LOSS_WEIGHTS, WeightedLoss, aggregation_weights
from plugrl.core.text.models import Model
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.weight_sync import WeightSync
from plugrl.trainers.losses.cross_entropy import cross_entropy

ROLLOUTS = [Trajectory([2, 3, 4, 5], [0, 1, 1, 1]), Trajectory([6, 7], [0, 1])]


def train(service):
    batch = Batch.from_trajectories(ROLLOUTS)
    batch.values[LOSS_WEIGHTS] = aggregation_weights(batch.values["loss_mask"], "token-mean")
    service.forward_backward(batch, WeightedLoss(cross_entropy, {}))
    service.optimizer_step()
    service.version += 1


def test_a_sync_copies_weights_and_version(engine, train_service):
    model = Model("policy", engine, train_service())
    sync = WeightSync(model, 1e-4)
    assert sync() is None
    sync.observe(ROLLOUTS)
    train(model.train)
    assert sync() == pytest.approx(0, abs=1e-6)
    assert model.inference.version == 1


def test_a_sampler_with_other_weights_stops_the_run(engine, train_service, monkeypatch):
    model = Model("policy", engine, train_service())
    sync = WeightSync(model, 1e-4)
    sync.observe(ROLLOUTS)
    monkeypatch.setattr(engine, "update_weights", lambda weights, version: None)
    for _ in range(3):
        train(model.train)
    with pytest.raises(RunError, match="model 'policy'.*differ from the trainer's by"):
        sync()
