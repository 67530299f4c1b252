"""Self-hosted trainers: used alone in a unit test, and their faults."""

import math

import pytest
import torch

import plugrl
from plugrl import Batch, SelfHostedTrainer, Trajectory
from plugrl.core.errors import ConfigError, NonFiniteError, RunError, UsageError
from plugrl.core.experiment import load_run, prepare, start
from plugrl.core.registry import default_registry
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer


@pytest.fixture
def registry():
    registry = default_registry()
    before = registry.snapshot()
    yield registry
    registry.restore(before)


def batch():
    rollouts = [
        Trajectory([3, 4, 5], [0, 1, 1], reward=r, group_id="g", run_id=i, logprobs=[0.0, -1, -1])
        for i, r in enumerate([1.0, 0.0])
    ]
    return Batch.from_trajectories(rollouts)


def test_a_trainer_is_built_from_its_configuration_alone():
    prepared, metrics = SelfHostedGrpoTrainer({})._prepare_batch(batch())
    half = math.sqrt(0.5)
    assert prepared.metadata["advantages"].tolist() == pytest.approx([half, -half], rel=1e-5)
    expected = torch.tensor([[0, half, half], [0, -half, -half]])
    torch.testing.assert_close(prepared.values["advantages"], expected, rtol=1e-5, atol=0)
    assert metrics["zero_advantage"] == 0.0


def test_what_needs_a_run_says_so():
    trainer = SelfHostedGrpoTrainer({})
    for name in ("run", "hyper_params", "settings", "scenario_instance", "models"):
        with pytest.raises(UsageError, match=r"plugrl\.train\(\)"):
            getattr(trainer, name)


def test_rewards_go_on_the_last_trained_token():
    data = batch()
    data.values["loss_mask"][1, 2] = 0
    scores = SelfHostedGrpoTrainer({})._reward_fn(data)
    assert scores.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    data.metadata["rewards"][1] = 7.0
    assert SelfHostedGrpoTrainer({})._reward_fn(data)[1].tolist() == [0.0, 7.0, 0.0]


def test_the_old_signature_is_refused_with_the_right_one():
    with pytest.raises(TypeError, match=r"_prepare_batch\(self, batch\) -> tuple"):

        class Old(SelfHostedTrainer):
            def _prepare_batch(self, batch, metrics):
                return batch, metrics


def register(registry, prepare_batch, name="custom"):
    class Custom(SelfHostedTrainer):
        """A trainer under test."""

        def _prepare_batch(self, batch):
            return prepare_batch(self, batch)

    registry.register("trainer", name, Custom)
    return Custom


def test_a_tensor_that_a_trainer_adds_reaches_the_loss(registry, config):
    seen = []

    def loss(logp, batch, config):
        seen.append(batch.values["mine"])
        return -logp * batch.values["mine"], {}

    def prepare_batch(trainer, batch):
        batch.values["mine"] = torch.full(batch.values["loss_mask"].shape, 2.0)
        return batch, {}

    registry.register("loss", "mine", loss)
    register(registry, prepare_batch)
    start(prepare(config("custom", trainer={"algorithm": {"loss": "mine"}})))
    assert seen
    assert all(bool((value == 2.0).all()) for value in seen)


def test_advantages_in_metadata_are_mirrored_and_trained(registry, config):
    def prepare_batch(trainer, batch):
        batch.metadata["advantages"] = [float(i + 1) for i in range(len(batch))]
        return batch, {}

    register(registry, prepare_batch)
    run = start(prepare(config("custom")))
    assert run.last_metrics["train/grad_norm"] > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.metadata.update(advantages=[1.0]), r"1 entries for 8 rows"),
        (lambda b: b.values.update(advantages=torch.zeros(8, 1)), r"advantages of shape \(8, 1\)"),
    ],
)
def test_wrong_shapes_are_named(registry, config, change, complaint):
    def prepare_batch(trainer, batch):
        change(batch)
        return batch, {}

    register(registry, prepare_batch)
    with pytest.raises(ValueError, match=complaint):
        start(prepare(config("custom")))


def poisoned(trainer, batch):
    batch.metadata["advantages"] = torch.full((len(batch),), math.nan)
    return batch, {}


def test_a_gradient_that_is_not_finite_stops_the_run_and_dumps_the_batch(registry, config):
    register(registry, poisoned)
    tree = config("custom")
    with pytest.raises(NonFiniteError, match="gradient norm"):
        start(prepare(tree))
    (folder,) = (tmp for tmp in _runs(tree))
    assert list((folder / "dumps").iterdir())
    assert load_run(folder).status["state"] == "failed"


def test_or_is_skipped_and_counted(registry, config):
    register(registry, poisoned)
    run = start(prepare(config("custom", runtime_monitor={"non_finite": "skip"})))
    assert run.status["state"] == "done"
    assert run.last_metrics["train/skipped"] == 1.0


def _runs(tree):
    from pathlib import Path

    return list(Path(tree["settings"]["runs_folder"]).glob("*/*"))


def test_a_frozen_model_is_no_training(config):
    with pytest.raises(ConfigError, match="no model is trained"):
        start(prepare(config(models={"policy": {"train": None}})))


def test_all_invalid_ends_the_run_with_the_reason(registry, config):
    class Failing(plugrl.Evaluator):
        """Raises."""

        def evaluate(self, data, evaluation_target):
            raise LookupError("no such problem")

    registry.register("evaluator", "failing", Failing)
    tree = config(
        rollout_worker={"evaluator": "failing"},
        validate={"enabled": False, "data": None, "every": 0},
        trainer={"total_train_steps": 10},
    )
    with pytest.raises(RunError, match=r"3 steps in a row.*Failing raised LookupError"):
        start(prepare(tree))


def test_several_epochs_and_minibatches_take_as_many_optimizer_steps(config):
    tree = config(trainer={"algorithm": {"epochs": 3, "minibatches": 2}, "total_train_steps": 1})
    tree["models"]["policy"]["train"]["schedule"] = {"warmup_steps": 100}
    run = start(prepare(tree))
    state = run.checkpoint()["trainer"]["models"]["policy"]["state"]
    assert state["optimizer_steps"] <= 6
    assert run.checkpoint()["trainer"]["models"]["policy"]["version"] == 1


def test_stop_at_ends_early(config):
    tree = config(trainer={"total_train_steps": 50, "stop_at": {"rollout/reward": 0.0}})
    assert start(prepare(tree)).status["step"] == 1


def test_validation_metrics_come_before_during_and_after(config):
    run = start(prepare(config(trainer={"total_train_steps": 4}, validate={"every": 2})))
    assert [m["step"] for m in run.metrics if "validation/exact_match" in m] == [0, 2, 4]


def test_the_parity_probe_reports(config):
    run = start(prepare(config()))
    assert 0 <= run.last_metrics["sync/parity"] <= 1e-4
