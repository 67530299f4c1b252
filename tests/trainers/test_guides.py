"""What trainers of similar frameworks are written like: it runs here, or says what to write."""

import logging

import pytest
import torch
from omegaconf import OmegaConf

import plugrl
from plugrl import (
    Batch,
    RemoteApiTrainer,
    SelfHostedTrainer,
    Trajectory,
    TrajectoryTrainer,
    compute_grpo_advantage_for_trajectories,
    compute_position_id_with_mask,
    log_grpo_metrics,
    log_rollout_metrics,
    padding_data,
)
from plugrl.core.errors import ConfigError, PluginError, RunError
from plugrl.core.experiment import prepare
from plugrl.core.text.validate_prepared import run_ids_warning

FIELDS = ["input_ids", "attention_mask", "position_ids", "loss_mask"]


def trajectories(rewards=(1.0, 0.0, 0.0)):
    return [
        Trajectory(
            [2, 3, 4, 5][: 4 - i], [0, 1, 1, 1][: 4 - i], logprobs=[0.0, -1.0, -1.0, -1.0][: 4 - i],
            reward=reward, group_id="g", run_id=i,
        )
        for i, reward in enumerate(rewards)
    ]  # fmt: skip


class Halved(SelfHostedTrainer):
    """Everything that such a trainer touches, in one method."""

    def __init__(self, config):
        super().__init__(config)
        self._share = config.algorithm.get("share", 0.5)

    def _prepare_batch(self, batch):
        self._log_rollout_metrics(batch)
        for strip in (Batch.remove_redundant_left_padding, Batch.remove_redundant_right_padding):
            batch = strip(
                batch, pad_token_id=self._pad_token_id, anchor_field="input_ids", fields=FIELDS
            )
        batch = padding_data(batch, pad_token_id=self._pad_token_id)
        batch.values["token_level_scores"] = self._reward_fn(batch)
        batch.metadata["advantages"] = [
            reward * self._share for reward in batch.metadata["rewards"]
        ]
        batch.values["own"] = torch.zeros(len(batch))
        return batch, {
            "mean": float(torch.mean(batch.values["advantages"])),
            "of_rows": float(torch.mean(batch.metadata["advantages"])),
        }


def test_a_trainer_in_a_unit_test_is_made_of_its_section():
    section = {
        "algorithm": {"share": 0.25},
        "train_service": {"world_size": 1, "backend": "self-hosted", "url": "http://localhost"},
    }
    prepared, metrics = Halved(OmegaConf.create(section))._prepare_batch(
        Batch.from_trajectories(trajectories())
    )
    # Three of nine trained places hold a quarter; the row that has them is one of three.
    assert metrics == pytest.approx({"mean": 0.75 / 12, "of_rows": 0.25 / 3})
    assert prepared.values["advantages"].tolist() == [[0.0, 0.25, 0.25, 0.25]] + [[0.0] * 4] * 2
    assert prepared.values["token_level_scores"][0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_it_trains_by_its_file_with_a_neighbour(config, tmp_path):
    (tmp_path / "my_algorithm.py").write_text(
        "def shifted(batch, by):\n"
        "    batch.metadata['advantages'] = [r - by for r in batch.metadata['rewards']]\n"
        "    return batch\n"
    )
    (tmp_path / "my_trainer.py").write_text(
        "import torch\n"
        "from plugrl import Batch, SelfHostedTrainer\n"
        "from .my_algorithm import shifted\n\n\n"
        "class MyTrainer(SelfHostedTrainer):\n"
        "    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict]:\n"
        "        batch = shifted(batch, by=self._config.algorithm.by)\n"
        "        return batch, {'shifted': float(torch.mean(batch.metadata['advantages']))}\n"
    )
    tree = config()
    del tree["models"]["policy"]["train"]
    tree["trainer"] = {
        "custom_trainer_module_path": str(tmp_path / "my_trainer.py"),
        "custom_trainer_class_name": "MyTrainer",
        "total_train_steps": 1,
        "train_service": {"backend": "self-hosted"},
    }
    tree["algorithm"] = {"by": 0.5}
    last = plugrl.train(tree).last_metrics
    assert last["train/shifted"] == pytest.approx(last["rollout/reward"] - 0.5)


class Centred(RemoteApiTrainer):
    def _prepare_trajectories(self, trajectories, metrics):
        groups = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.get("group_id", "default"), []).append(trajectory)
        for group in groups.values():
            mean = sum(t.reward for t in group) / len(group)
            for trajectory in group:
                trajectory.advantage = trajectory.reward - mean
        metrics["custom/mean"] = sum(t.advantage for t in trajectories) / len(trajectories)
        return trajectories


def test_options_of_the_service_may_stand_in_its_config(config, registry):
    registry.register("trainer", "centred", Centred)
    tree = config()
    del tree["models"]["policy"]["train"]
    tree["trainer"] = {"type": "centred", "total_train_steps": 1}
    service = {"loss_fn": "ppo", "learning_rate": 2e-6, "eps": 1e-7, "weight_decay": 0.0}
    tree["train_service"] = {"backend": "in_process", "config": service}
    made = prepare(tree).validated.tree
    assert made["trainer"]["algorithm"]["loss_fn"] == "ppo"
    train = made["models"]["policy"]["train"]
    assert (train["type"], train["learning_rate"], train["eps"]) == ("in_process", 2e-6, 1e-7)
    assert plugrl.train(tree).last_metrics["train/custom/mean"] == pytest.approx(0.0, abs=1e-7)
    tree["train_service"]["config"]["beta1"] = 0.9
    with pytest.raises(ConfigError, match="write betas, a list of two numbers"):
        prepare(tree)


def test_the_factors_of_distillation_may_have_other_names(config):
    from plugrl.trainers.remote_api_opd import RemoteApiOpdTrainer

    tree = config("remote_api_opd", **RemoteApiOpdTrainer.conformance)
    tree["trainer"]["algorithm"] = {"kl_penalty_coef": 0.5, "kl_discount_factor": 0.9}
    advantage = prepare(tree).validated.tree["trainer"]["algorithm"]["advantage"]
    assert advantage == {"type": "opd", "coefficient": 0.5, "discount": 0.9}
    tree["trainer"]["teachers"] = [{"base_model": "big", "base_url": "http://there"}]
    with pytest.raises(ConfigError, match=r"teachers.*models\.teacher\.source"):
        prepare(tree)


def test_the_advantages_of_grpo_need_no_trainer(caplog):
    made = compute_grpo_advantage_for_trajectories(trajectories(), logger=logging.getLogger("own"))
    # Mean 1/3, sample deviation 0.57735.
    assert [t["advantage"] for t in made] == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4)


def test_trajectories_of_one_run_count_once_unless_each_counts():
    turns = trajectories((1.0, 0.0, 0.0))
    turns[2].run_id = 1
    by_run = [t.advantage for t in compute_grpo_advantage_for_trajectories(turns)]
    assert by_run == pytest.approx([0.70711, -0.70711, -0.70711], abs=1e-4)
    each = [t.advantage for t in compute_grpo_advantage_for_trajectories(turns, use_run_ids=False)]
    assert each == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4)
    assert [t.run_id for t in turns] == [0, 1, 1]


def test_a_group_of_one_and_an_invalid_attempt_have_no_signal():
    made = trajectories((1.0, 0.0))
    made[1].valid = False
    assert [t.advantage for t in compute_grpo_advantage_for_trajectories(made)] == [0.0, 0.0]
    assert compute_grpo_advantage_for_trajectories([]) == []


def test_metrics_of_groups_by_hand():
    made = trajectories((1.0, 0.0))
    equal = Trajectory([2, 3], [0, 1], reward=1.0, group_id="other")
    metrics = {"kept": 1.0}
    log_grpo_metrics(compute_grpo_advantage_for_trajectories([*made, equal]), metrics)
    assert metrics == pytest.approx(
        {
            "kept": 1.0,
            "grpo/groups": 2.0,
            "grpo/group_reward": 0.75,
            "grpo/group_std": 0.70711 / 2,
            "grpo/equal_groups": 0.5,
            "grpo/advantage_mean": 0.0,
            "grpo/advantage_abs": 2 * 0.70711 / 3,
        },
        abs=1e-4,
    )
    log_rollout_metrics(made, metrics)
    assert metrics["rollout/reward"] == 0.5


def test_positions_count_real_tokens():
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    assert compute_position_id_with_mask(mask).tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("shape", ["rows", "tokens"])
def test_advantages_in_the_metadata_are_in_the_values_at_once(shape):
    batch = Batch.from_trajectories(trajectories())
    given = [1.0, 2.0, 3.0] if shape == "rows" else torch.full((3, 4), 2.0)
    batch.metadata["advantages"] = given
    assert "advantages" in batch.values
    expected = torch.as_tensor(given).reshape(3, -1) * batch.values["loss_mask"]
    assert torch.equal(batch.values["advantages"], expected)
    batch.metadata["advantages"] = [0.0, 0.0, 1.0]
    assert batch.values["advantages"].sum() == batch.values["loss_mask"][2].sum()


def test_advantages_that_a_trainer_wrote_into_the_values_stay():
    batch = Batch.from_trajectories(trajectories())
    own = torch.rand(3, 4)
    batch.values["advantages"] = own
    batch.metadata["advantages"] = own.mean(1)
    assert batch.values["advantages"] is own
    chosen = batch.select([2]).copy()
    chosen.metadata["advantages"] = torch.tensor([5.0])
    assert torch.equal(chosen.values["advantages"], own[2:])


@pytest.mark.parametrize(
    ("base", "methods", "message"),
    [
        (SelfHostedTrainer, {"_prepare_batch": lambda self, batch, metrics: batch},
         r"write _prepare_batch\(self, batch\) -> tuple\[Batch, dict\]"),
        (RemoteApiTrainer, {"_prepare_trajectories": lambda self, trajectories: trajectories},
         r"write _prepare_trajectories\(self, trajectories, metrics\)"),
        (TrajectoryTrainer, {"train": lambda self, trajectories: {}}, r"train_step\(self, traj"),
        (plugrl.Trainer, {"train": lambda self, trajectories: {}}, r"derive from TrajectoryTra"),
    ],
)  # fmt: skip
def test_other_signatures_are_refused_with_the_right_ones(base, methods, message):
    with pytest.raises(TypeError, match=message):
        type("Mine", (base,), methods)


def test_a_trainer_with_another_signature_is_refused_by_file_too(config, tmp_path):
    (tmp_path / "old.py").write_text(
        "from plugrl import SelfHostedTrainer\n\n\n"
        "class Old(SelfHostedTrainer):\n"
        "    def _prepare_batch(self, batch, metrics):\n"
        "        return batch\n"
    )
    tree = config()
    tree["trainer"] = {
        "custom_trainer_module_path": str(tmp_path / "old.py"),
        "custom_trainer_class_name": "Old",
    }
    with pytest.raises(PluginError, match=r"write _prepare_batch\(self, batch\)"):
        plugrl.train(tree)


def test_groups_by_the_number_of_the_attempt_are_refused(config):
    tree = config()
    tree["trajectory_pool"] = {"key_list": ["run_id"], "group_size": 2}
    with pytest.raises(ConfigError, match="key_list.*write group_id, which names the prompt"):
        prepare(tree)
    tree["trajectory_pool"] = {"key_list": ["group_id", "run_id"], "group_size": 1}
    assert prepare(tree)


class MyRemoteTrainer(RemoteApiTrainer):
    """As the guides of such frameworks write it."""

    def _prepare_trajectories(self, trajectories, metrics):
        for group in self._group_by_run_id(trajectories).values():
            mean = sum(t.reward for t in group) / len(group)
            for trajectory in group:
                trajectory.advantage = trajectory.reward - mean
        return trajectories

    def _group_by_run_id(self, trajectories):
        groups = {}
        for traj in trajectories:
            groups.setdefault(traj.get("run_id", "default"), []).append(traj)
        return groups


def by_run(batch):
    return [[r for r in batch.metadata["run_id"] if r == run] for run in (0, 1)]


class Grouping(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        return batch, {"groups": len(by_run(batch))}


class Counting(MyRemoteTrainer):
    def _prepare_trajectories(self, trajectories, metrics):
        metrics["prompts"] = len({t.group_id for t in trajectories})
        return super()._prepare_trajectories(trajectories, metrics)


def test_a_trainer_that_groups_by_the_number_of_the_attempt_is_told(config, registry, caplog):
    registry.register("trainer", "mine", MyRemoteTrainer)
    tree = config()
    tree["models"]["policy"]["train"] = {"type": "in_process"}
    tree["trainer"] = {"type": "mine", "total_train_steps": 1}
    prepare(tree)
    (said,) = [r.message for r in caplog.records if "run_id" in r.message]
    assert said.startswith("MyRemoteTrainer (tests/trainers/test_guides.py:")
    assert said.endswith("group by group_id")


def test_who_groups_by_the_number_of_the_attempt():
    # In a method, in a base class, or in a function that a method calls.
    assert run_ids_warning(MyRemoteTrainer)
    assert run_ids_warning(type("Derived", (MyRemoteTrainer,), {}))
    assert run_ids_warning(Grouping)
    # Who reads both knows the difference; plugrl's own know it anyway.
    for fine in (Counting, Centred, Halved, RemoteApiTrainer, SelfHostedTrainer):
        assert run_ids_warning(fine) is None


@pytest.mark.parametrize("result", ["success", {"response": "ab"}, None])
def test_workers_that_return_no_tokens_are_shown_how_they_are_recorded(config, registry, result):
    class Texts(plugrl.RolloutWorker):
        def rollout(self, task):
            return result

    registry.register("rollout_worker", "texts", Texts)
    tree = config()
    tree["rollout_worker"] = {"type": "texts", "max_response_length": 3}
    with pytest.raises(RunError, match=r"await task\.ask\(.*trajectory_of\(task, model, prompt"):
        plugrl.train(tree)


def test_text_that_was_made_tokens_again_is_refused(config, registry):
    class Again(plugrl.RolloutWorker):
        def rollout(self, task):
            return Trajectory(task.prompt_tokens("policy") + [3], [0, 0, 1], group_id=task.group_id)

    registry.register("rollout_worker", "again", Again)
    tree = config()
    tree["rollout_worker"] = {"type": "again", "max_response_length": 3}
    with pytest.raises(RunError, match="build the trajectory with trajectory_of"):
        plugrl.train(tree)
