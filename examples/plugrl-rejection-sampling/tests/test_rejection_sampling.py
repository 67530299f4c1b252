import torch
from plugrl_rejection_sampling.trainer import RejectionSamplingTrainer

from plugrl import Batch, Trajectory
from plugrl.testing.suite.test_trainer import TrainerContract


class TestContract(TrainerContract):
    __test__ = True
    plugrl_trainer = "rejection_sampling"


def rollout(group, run, reward, valid=True):
    return Trajectory([3, 4], [0, 1], reward=reward, group_id=group, run_id=run, valid=valid)


def test_only_the_best_valid_answers_above_the_threshold_are_trained():
    batch = Batch.from_trajectories(
        [
            rollout("a", 0, 1.0),
            rollout("a", 1, 0.5),
            rollout("a", 2, 9.0, valid=False),
            rollout("b", 0, 0.2),
            rollout("b", 1, 0.2),
            rollout("c", 0, 0.7),
        ]
    )
    trainer = RejectionSamplingTrainer({"algorithm": {"threshold": 0.3}})
    prepared, metrics = trainer._prepare_batch(batch)
    assert torch.equal(prepared.values["loss_mask"][:, 1], torch.tensor([1, 0, 0, 0, 0, 1]))
    assert metrics["kept"] == torch.tensor(2 / 6).item()
