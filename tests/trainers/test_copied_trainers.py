"""A copy of a trainer's file is an algorithm of one's own: it trains with the copy's functions."""

import inspect

import pytest

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.trainers import self_hosted_dpo, self_hosted_grpo
from plugrl.trainers.kit import JUDGED


def is_trainer_of(value, module):
    own = getattr(value, "__module__", None) == module.__name__
    return own and isinstance(value, type) and issubclass(value, plugrl.Trainer)


@pytest.fixture
def copy(tmp_path):
    """Copies a trainer's file with one line changed; gives the section that names the copy."""

    def make(module, line, other):
        source = inspect.getsource(module)
        assert source.count(line) == 1
        file = tmp_path / "mine.py"
        file.write_text(source.replace(line, other), encoding="utf-8")
        trainers = [name for name, value in vars(module).items() if is_trainer_of(value, module)]
        return {
            "type": None,
            "custom_trainer_module_path": str(file),
            "custom_trainer_class_name": trainers[0],
            "total_train_steps": 1,
        }

    return make


def trained(tree):
    return plugrl.train(tree).last_metrics


ADVANTAGE_LINES = "    advantages = r - mean\n", "    advantages = r - mean + 7\n"
GRPO_LINE = "    return pg_loss, metrics\n"


def test_a_copy_of_grpo_trains_with_its_own_loss(config, copy):
    plain = trained(config(trainer={"total_train_steps": 1}))
    section = copy(self_hosted_grpo, GRPO_LINE, "    return 2 * pg_loss, metrics\n")
    own = trained(config(trainer=section))
    assert plain["train/loss"] != 0
    assert own["train/loss"] == pytest.approx(2 * plain["train/loss"], rel=1e-5)
    assert own["train/grad_norm"] == pytest.approx(2 * plain["train/grad_norm"], rel=1e-4)


def test_a_copy_of_grpo_trains_with_its_own_advantage_under_another_name(config, copy, tmp_path):
    section = copy(self_hosted_grpo, *ADVANTAGE_LINES)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text("utf-8").replace("grpo(", "my_grpo(").replace(
        '"advantage", grpo', '"advantage", my_grpo'
    ), encoding="utf-8")  # fmt: skip
    section["algorithm"] = {"advantage": {"normalize": False}}
    made = prepare(config(trainer=section)).validated.tree
    assert made["trainer"]["algorithm"]["advantage"]["type"] == "my_grpo"
    # Advantages of a group add up to 0, unless each has 7 more.
    assert trained(config(trainer=section))["train/advantage_abs"] == pytest.approx(7, abs=0.8)


@pytest.mark.integration
def test_another_loss_is_picked_from_the_registry_all_the_same(config, copy):
    section = copy(self_hosted_grpo, GRPO_LINE, "    return 2 * pg_loss, metrics\n")
    section["algorithm"] = {"loss": "importance_sampling"}
    assert "train/ratio" in trained(config(trainer=section))
    # A name with its distribution is never the copy's.
    section["algorithm"] = {"loss": "plugrl/clipped"}
    plain = trained(config(trainer={"total_train_steps": 1}))
    assert trained(config(trainer=section))["train/loss"] == plain["train/loss"]
    section["algorithm"] = {"loss": "clippd"}
    with pytest.raises(ConfigError, match="did you mean clipped"):
        prepare(config(trainer=section))


def test_the_copy_of_a_method_in_a_unit_test_has_the_copy_s_advantage(copy, registry):
    section = copy(self_hosted_grpo, *ADVANTAGE_LINES)
    record = registry.load_path(
        "trainer", section["custom_trainer_module_path"], section["custom_trainer_class_name"]
    )
    trainer = registry.load(record)({"algorithm": {"advantage": {"normalize": False}}})
    trajectories = [
        plugrl.Trajectory([2, 3], [0, 1], reward=reward, run_id=run, logprobs=[0.0, -1.0])
        for run, reward in enumerate([1.0, 0.0])
    ]
    prepared, _ = trainer._prepare_batch(plugrl.Batch.from_trajectories(trajectories))
    assert prepared.metadata["advantages"].tolist() == [7.5, 6.5]


def test_a_copy_of_dpo_trains_with_its_own_loss(config, copy):
    def tree(trainer):
        return config("self_hosted_dpo", **{**JUDGED, **reference, "trainer": trainer})

    reference = {"models": self_hosted_dpo.SelfHostedDpoTrainer.conformance["models"]}
    line = "    logits = config.beta * (logratio[pairs.chosen] - logratio[pairs.rejected])\n"
    section = copy(self_hosted_dpo, line, line.replace("\n", " - 3\n"))
    own = trained(tree(section))
    # -log sigmoid(-3); that of the first step of plugrl's own is near -log sigmoid(0), 0.69.
    assert own["train/loss"] == pytest.approx(3.0486, abs=0.3)
