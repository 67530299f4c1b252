"""From a run of a reward model to rewards: by export, by the run itself, and in another run."""

import json

import pytest

from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.experiment import prepare, start
from plugrl.core.loaded_run import open_checkpoint
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget
from plugrl.core.text.loaded_models import export
from plugrl.plugins.transformers.reward_model import RewardModelEvaluator
from plugrl.testing import tiny
from plugrl.testing.tiny import merged

ITEMS = [({"prompt": p}, BaseEvaluationTarget(a)) for p in ("ab", "ba") for a in ("a", "b", "ab")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that trained a reward model for a few steps: the first letter is the better answer."""
    folder = tmp_path_factory.mktemp("reward")
    sections = {
        "models": {"policy": {"train": {"value_head": True, "learning_rate": 0.03}}},
        "data": {"rollout_repeat_n": 1, "batch_size": 4},
        "rollout_worker": {
            "type": "preference",
            "evaluator": None,
            "chosen_key": "answer",
            "rejected_key": "prompt",
        },
        "trainer": {"total_train_steps": 4, "algorithm": {"loss": {"center_coefficient": 0.1}}},
    }
    sections["trainer"]["algorithm"]["loss"]["type"] = "bradley_terry"
    return start(prepare(tiny.config("reward_model", folder, sections)))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A run that trained a language model."""
    sections = {"trainer": {"total_train_steps": 1}, "validate": {"enabled": False}}
    folder = tmp_path_factory.mktemp("policy")
    return start(prepare(tiny.config("self_hosted_grpo", folder, sections)))


def rewards(**section):
    return [r.reward for r in RewardModelEvaluator(section).evaluate_batch(ITEMS)]


def test_the_exported_folder_gives_what_the_run_gives(trained, tmp_path):
    with open_checkpoint(str(trained.folder)) as saved:
        export(saved, "policy", tmp_path / "reward")
    of_run = rewards(run=str(trained.folder))
    assert rewards(path=str(tmp_path / "reward")) == pytest.approx(of_run, abs=2e-4)
    assert len(set(of_run)) == len(of_run)
    # Better answers are those that it was trained to prefer.
    assert of_run[0] > of_run[2]
    # Another checkpoint is another judge.
    assert rewards(run=str(trained.folder), checkpoint="1") != of_run


def test_the_head_alone_is_no_adapter(trained, tmp_path):
    with (
        open_checkpoint(str(trained.folder)) as saved,
        pytest.raises(UsageError, match="an adapter alone"),
    ):
        export(saved, "policy", tmp_path / "reward", adapter=True)


def test_a_run_that_is_none_is_named(tmp_path):
    with pytest.raises(UsageError, match="nosuch"):
        rewards(run=str(tmp_path / "nosuch"))
    with pytest.raises(ConfigError, match="there is no such folder; models are never downloaded"):
        rewards(path=str(tmp_path / "nosuch"))


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.integration)])
def test_answers_are_reinforced_by_it(trained, config, tmp_path, processes):
    with open_checkpoint(str(trained.folder)) as saved:
        export(saved, "policy", tmp_path / "reward")
    judge = {"type": "reward_model", "path": str(tmp_path / "reward")}
    # Answers of at most 3 tokens to prompts of 2, and an end: within the judge's context.
    made = config(rollout_worker={"evaluator": judge, "processes": processes})
    run = start(prepare(made))
    assert run.last_metrics["rollout/invalid"] == 0
    assert run.last_metrics["rollout/reward_model"] == run.last_metrics["rollout/reward"] != 0


def test_a_run_judges_inside_another_without_changing_its_numbers(trained, config):
    """Opening it must not set this run's seeds anew."""
    import random

    judge = RewardModelEvaluator({"run": str(trained.folder)})
    random.seed(5)
    expected = random.random()
    random.seed(5)
    judge.evaluate(*ITEMS[0])
    assert random.random() == expected


def test_a_folder_of_a_language_model_is_refused_early(policy, config, tmp_path):
    with open_checkpoint(str(policy.folder)) as saved:
        export(saved, "policy", tmp_path / "policy")
    made = config(
        rollout_worker={"evaluator": {"type": "reward_model", "path": str(tmp_path / "policy")}}
    )
    with pytest.raises(ConfigError) as caught:
        prepare(made)
    assert "no sequence classifier (Qwen3ForCausalLM)" in str(caught.value.faults)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"run": "nosuch"}, r"evaluator\.run.*no run 'nosuch'"),
        ({"run": "latest"}, r"latest is the run that trains"),
        ({"run": "REWARD", "model": "nosuch"}, r"no model 'nosuch'; it has: policy"),
        ({"run": "REWARD", "checkpoint": "77"}, r"no checkpoint '77'; it has steps"),
        ({"run": "POLICY"}, r"model 'policy' .* has no value head"),
    ],
)
def test_a_run_that_holds_no_such_reward_model_is_refused_early(
    trained, policy, config, section, said
):
    places = {"REWARD": trained.folder, "POLICY": policy.folder}
    section = {**section, "run": str(places.get(section["run"], section["run"]))}
    tree = config(rollout_worker={"evaluator": {"type": "reward_model", **section}})
    with pytest.raises(ConfigError, match=said):
        prepare(tree)


@pytest.mark.integration
def test_a_preference_follows_supervised_training(config, tmp_path):
    """The reference is the model that the first phase has made."""
    made = config("sequence", models={"reference": {"source": {}}})
    made["models"]["reference"] = {"source": made["models"]["policy"]["source"]}
    judged = {"type": "preference", "chosen_key": "answer", "rejected_key": "prompt"}
    dpo = {"type": "self_hosted_dpo", "total_train_steps": 2}
    dpo["algorithm"] = {"reference_weights": "policy"}
    supervised = {"type": "self_hosted_cross_entropy", "total_train_steps": 3}
    made["trainer"] = {
        "type": "sequence",
        "phases": [
            {"name": "sft", "rollout_worker": {"type": "demonstration"}, "trainer": supervised},
            {"name": "dpo", "rollout_worker": judged, "trainer": dpo},
        ],
    }
    made["data"] = merged(made["data"], {"rollout_repeat_n": 1})
    run = start(prepare(json.loads(json.dumps(made))))
    first = next(row for row in run.metrics if row["phase"] == 2)
    assert first["validation/margin"] == pytest.approx(0, abs=1e-5)
    assert first["validation/exact_match"] >= 0
    assert run.last_metrics["train/margin"] != 0
