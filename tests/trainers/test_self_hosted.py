"""Self-hosted trainers: one method in a unit test, and what a run makes of them."""

import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.self_hosted import SelfHostedTrainer
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

MODEL = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 16,
}
DEMONSTRATIONS = {"type": "demonstration", "max_prompt_length": 4, "max_response_length": 4}


def config(folder, **sections):
    tree = {
        "scenario": {
            "type": "arithmetic",
            "digits": 1,
            "validation": 4,
            "development": 4,
            "demonstrations": 16,
        },
        "models": {
            "policy": {
                "source": {"config": MODEL, "tokenizer": {"characters": "0123456789+="}},
                "train": {"type": "local", "learning_rate": 0.01},
            }
        },
        "rollout_worker": {
            "max_prompt_length": 4,
            "max_response_length": 3,
            "evaluator": "exact_match",
        },
        "data": {"batch_size": 4, "rollout_repeat_n": 4},
        "validate": {"every": 2},
        "trainer": {"type": "self_hosted_grpo", "total_train_steps": 4},
        "settings": {
            "torch_threads": 1,
            "progress": "none",
            "device": "cpu",
            "runs_folder": str(folder / "runs"),
            "checkpoint_every": 1,
            "keep_checkpoints": 3,
        },
    }
    return {**tree, **sections}


def metrics(run):
    """The metrics of a run without those of time, which differ."""
    return [
        {key: value for key, value in line.items() if not key.startswith("time/") and key != "time"}
        for line in run.metrics
    ]


def weights(run):
    found = {}

    def walk(path, value):
        if isinstance(value, dict):
            for key, item in value.items():
                walk((*path, key), item)
        elif isinstance(value, torch.Tensor):
            found[path] = value

    walk((), run.checkpoint())
    return found


def assert_equal_runs(one, other):
    assert metrics(one) == metrics(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert first
    for path, value in first.items():
        assert torch.equal(value, second[path]), path


def batch(rewards=(1.0, 0.0)):
    return Batch.from_trajectories(
        [
            Trajectory(
                [2, 3, 4], [0, 1, 1], logprobs=[0.0, -1.0, -1.0], reward=r, group_id="g", run_id=i
            )
            for i, r in enumerate(rewards)
        ]
    )


def test_grpo_prepares_a_batch_without_a_run():
    trainer = SelfHostedGrpoTrainer({"algorithm": {"advantage": {"type": "grpo"}}})
    prepared, report = trainer._prepare_batch(batch())
    # Mean 0.5, sample deviation sqrt(0.5): +-0.5 / 0.7071.
    assert prepared.metadata["advantages"].tolist() == pytest.approx([0.70711, -0.70711], abs=1e-4)
    first = prepared.values["advantages"][0].tolist()
    assert first == pytest.approx([0.0, 0.70711, 0.70711], abs=1e-4)
    assert report == pytest.approx({"advantage_abs": 0.70711, "zero_advantage": 0.0}, abs=1e-4)


def test_a_trainer_of_one_method_needs_no_run_either():
    class Mine(SelfHostedTrainer):
        def _prepare_batch(self, batch):
            batch.metadata["advantages"] = self._reward_fn(batch).sum(1)
            return batch, {"mean": 0.5}

    prepared, _ = Mine({})._prepare_batch(batch())
    assert prepared.metadata["advantages"].tolist() == [1.0, 0.0]


def test_rewards_stand_on_the_last_trained_token():
    class Mine(SelfHostedTrainer):
        def _prepare_batch(self, batch):
            return batch, {}

    made = batch((3.0, 2.0))
    made.values["loss_mask"][1] = 0
    assert Mine({})._reward_fn(made).tolist() == [[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]


def test_the_old_signature_is_refused_with_the_right_one():
    with pytest.raises(TypeError, match=r"Old\._prepare_batch.*_prepare_batch\(self, batch\)"):

        class Old(SelfHostedTrainer):
            def _prepare_batch(self, batch, metrics):
                return batch


class Scaled(SelfHostedGrpoTrainer):
    def _prepare_batch(self, batch):
        batch, report = super()._prepare_batch(batch)
        batch.values["token_scale"] = torch.full(batch.values["input_ids"].shape, 3.0)
        batch.values["row_number"] = torch.arange(len(batch))
        return batch, report | {"scaled": 1.0}


def scaled_loss(logp, batch, config):
    scale = batch.values["token_scale"]
    assert scale.shape == logp.shape
    assert batch.values["row_number"].shape == logp.shape[:1]
    count = torch.tensor(1)
    return -logp * scale, {"scale": (scale.mean() * count, count)}


def test_a_tensor_of_a_trainer_reaches_a_loss_of_ones_own(tmp_path, registry):
    registry.register("trainer", "scaled", Scaled)
    registry.register("loss", "scaled", scaled_loss)
    tree = config(tmp_path)
    algorithm = {"loss": {"type": "scaled"}}
    tree["trainer"] = {"type": "scaled", "total_train_steps": 1, "algorithm": algorithm}
    last = plugrl.train(tree).last_metrics
    assert last["train/scaled"] == 1.0
    assert last["train/scale"] == 3.0


def test_a_run_without_a_trained_model_says_what_to_write(tmp_path):
    tree = config(tmp_path)
    del tree["models"]["policy"]["train"]
    with pytest.raises(ConfigError, match=r"no model is trained.*models\.policy\.train: local"):
        plugrl.train(tree)


def test_a_frozen_model_beside_the_trained_one_keeps_its_weights(tmp_path):
    tree = config(tmp_path)
    tree["models"]["judge"] = {"source": tree["models"]["policy"]["source"]}
    run = plugrl.train(tree)
    assert set(run.checkpoint()["trainer"]["models"]) == {"policy"}


def test_passes_and_minibatches_multiply_the_optimizer_steps(tmp_path):
    tree = config(tmp_path)
    tree["rollout_worker"] = DEMONSTRATIONS
    tree["data"] = {"split": "demonstrations", "batch_size": 6}
    tree["validate"] = {"enabled": False}
    tree["trainer"] = {
        "type": "self_hosted_cross_entropy",
        "total_train_steps": 2,
        "algorithm": {"epochs": 2, "minibatches": 3},
    }
    state = plugrl.train(tree).checkpoint()["trainer"]["models"]["policy"]
    # 2 steps x 2 passes x 3 optimizer steps; a version is a training step.
    assert state["state"]["optimizer_steps"] == 12
    assert state["version"] == 2


def test_supervised_training_lowers_its_loss(tmp_path):
    tree = config(tmp_path)
    tree["rollout_worker"] = DEMONSTRATIONS
    tree["data"] = {"split": "demonstrations", "batch_size": 16}
    tree["validate"] = {"enabled": False}
    tree["settings"]["checkpoint_every"] = 8
    tree["models"]["policy"]["train"] = {"type": "local", "learning_rate": 0.03}
    tree["trainer"] = {"type": "self_hosted_cross_entropy", "total_train_steps": 8}
    losses = [line["train/loss"] for line in plugrl.train(tree).metrics if "train/loss" in line]
    assert len(losses) == 8
    assert losses[-1] < 0.8 * losses[0]


def sequence(folder):
    tree = config(folder)
    tree["trainer"] = {
        "type": "sequence",
        "phases": [
            {
                "name": "first",
                "rollout_worker": {
                    **DEMONSTRATIONS,
                    "evaluator": "exact_match",
                },
                "data": {"split": "demonstrations", "rollout_repeat_n": 1},
                "trainer": {"type": "self_hosted_cross_entropy", "total_train_steps": 3},
            },
            {"name": "second", "trainer": {"type": "self_hosted_grpo", "total_train_steps": 3}},
        ],
    }
    return tree


class Interrupted(BaseException):
    pass


def stop_after(monkeypatch, step):
    """Fail at the end of ``step``, after its checkpoint, as a crash would."""
    from plugrl.core.run.run import Run

    end_step = Run.end_step

    def ending(self, number, values, **options):
        end_step(self, number, values, **options)
        if number == step:
            raise Interrupted

    monkeypatch.setattr(Run, "end_step", ending)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return plugrl.train(sequence(tmp_path_factory.mktemp("straight")))


#: After a step of the first phase, between the phases and after a step of the second.
@pytest.mark.integration
@pytest.mark.parametrize(
    "step", [2, 3, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 4, 6))]
)
def test_a_sequence_stopped_in_any_phase_goes_on_exactly(tmp_path, monkeypatch, straight, step):
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        with pytest.raises(RunError, match="Interrupted"):
            plugrl.train(sequence(tmp_path / "broken"))
    (folder,) = (tmp_path / "broken" / "runs").glob("*/*")
    from plugrl.core.experiment import resume

    assert_equal_runs(resume(folder), straight)


@pytest.mark.parametrize("exact", [True, False])
def test_log_probabilities_of_sampling_spare_a_forward_pass(tmp_path, registry, exact):
    """One pass with gradients for each optimizer step, and one without for the parity probe."""
    from plugrl.plugins.transformers.training.forward import Forward
    from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

    class Forgetful(SingleTurnRolloutWorker):
        async def rollout(self, task):
            trajectory = await super().rollout(task)
            trajectory.reward = float(sum(trajectory.tokens) % 3)
            trajectory.logprobs = trajectory.logprobs if exact else None
            return trajectory

    registry.register("rollout_worker", "forgetful", Forgetful)
    tree = config(tmp_path, validate={"enabled": False})
    tree["rollout_worker"] |= {"type": "forgetful"}
    tree["trainer"]["total_train_steps"] = 3
    passes = []
    plain = Forward.log_probs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Forward,
            "log_probs",
            lambda self, part: (passes.append(torch.is_grad_enabled()), plain(self, part))[1],
        )
        plugrl.train(tree)
    assert passes.count(True) == 3
    assert passes.count(False) == (3 if exact else 3 + 3)
