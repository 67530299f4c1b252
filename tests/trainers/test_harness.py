"""The trainer ``harness`` from code: batches, updates, optimizers, what is learned."""

import pytest
import torch
from testers import PolicyGradient, make_environment, make_system, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from plugrl import Batch, ConfigError, TrainingConfiguration, register_harness_algorithm
from plugrl.trainers.harness import HarnessTrainer


class Noting(PolicyGradient):
    """Notes the sizes of its batches."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sizes = []

    def step(self, batch):
        self.sizes.append(len(batch))
        return super().step(batch)


class Fixed(PolicyGradient):
    """Compares with one half, so that a step's loss does not depend on its batch."""

    def step(self, batch):
        made = Batch.from_trajectories([node.trajectory() for node in batch])
        log_probs, _ = self.system.log_probs(made)
        above = torch.tensor([node.reward - 0.5 for node in batch])
        return -(log_probs.sum(1) * above).mean(), {}


def configured(**changes):
    base = {"lr": 3e-3, "training_steps": 2, "num_episodes_per_experience": 3, "batch_size": 5}
    return TrainingConfiguration(**{**base, **changes})


def trained(algorithm=None, **changes):
    system = make_system()
    trainer = HarnessTrainer(
        config=configured(**changes),
        environment=make_environment(system),
        algorithm=algorithm or PolicyGradient(),
    )
    trainer.train()
    return trainer


def test_trained_without_a_run_the_tester_is_saved_and_loaded_by_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    system = make_system()
    before = weights(system)
    trainer = HarnessTrainer(
        config=configured(), environment=make_environment(system), algorithm=PolicyGradient()
    )
    result = trainer.train()
    assert result.steps == 2
    assert not list(tmp_path.iterdir())
    after = weights(system)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    system.attacker.save_pretrained("final")
    system.tokenizer.save_pretrained("final")
    loaded = AutoModelForCausalLM.from_pretrained("final").state_dict()
    assert all(torch.equal(loaded[name], after[name]) for name in after)
    assert AutoTokenizer.from_pretrained("final").encode("abc") == system.tokenizer.encode("abc")


def test_an_adapter_is_merged_into_what_the_attacker_saves(tmp_path):
    pytest.importorskip("peft")
    system = make_system(tester={"adapter": {"r": 2}})
    config = configured(lr=0.1)
    HarnessTrainer(config, make_environment(system), PolicyGradient()).train()
    system.attacker.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    merged, base = weights(system), weights(make_system())
    assert all(torch.equal(loaded[name], merged[name]) for name in merged)
    assert any(not torch.equal(base[name], merged[name]) for name in merged)


@pytest.mark.parametrize(("size", "expected"), [(5, [5, 5, 5, 3]), (18, [18]), (100, [18])])
def test_batches_have_the_size_that_was_asked_for(size, expected):
    # Three trees with 2 + 4 exchanges each are 18 steps an experience.
    algorithm = Noting()
    trained(algorithm, batch_size=size)
    assert algorithm.sizes == expected * 2


@pytest.mark.parametrize("accumulation", [1, 3, 5, 100])
def test_there_are_as_many_updates_as_full_accumulations(accumulation):
    # Two experiences of 4 batches: 8 micro-batches, which do not begin again at an experience.
    system = make_system()
    trainer = HarnessTrainer(
        configured(gradient_accumulation_steps=accumulation),
        make_environment(system),
        PolicyGradient(),
    )
    steps = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    trainer.train()
    assert len(steps) == 8 // accumulation
    assert system.models["tester"].train.version == 8 // accumulation


def test_accumulated_gradients_are_the_mean_of_their_batches():
    # One experience as one batch of 18, or as 2 of 9 that are accumulated: one equal step of SGD.
    whole, halves = (
        weights(trained(Fixed(), optimizer="sgd", training_steps=1, **changes).environment.system)
        for changes in (
            {"batch_size": 18},
            {"batch_size": 9, "gradient_accumulation_steps": 2},
        )
    )
    for name, value in whole.items():
        torch.testing.assert_close(halves[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("adam", torch.optim.Adam),
        pytest.param("adamw", torch.optim.AdamW, marks=pytest.mark.integration),
        pytest.param("sgd", torch.optim.SGD, marks=pytest.mark.integration),
        pytest.param("rmsprop", torch.optim.RMSprop, marks=pytest.mark.integration),
        pytest.param("adagrad", torch.optim.Adagrad, marks=pytest.mark.integration),
    ],
)
def test_every_optimizer_trains(name, cls):
    trainer = trained(optimizer=name, training_steps=1)
    assert type(trainer.optimizer) is cls
    assert trainer.optimizer.param_groups[0]["lr"] == 3e-3
    before, after = weights(make_system()), weights(trainer.environment.system)
    assert any(not torch.equal(before[key], after[key]) for key in after)


def test_a_rewarded_letter_becomes_common():
    system = make_system()
    environment = make_environment(system)
    trainer = HarnessTrainer(configured(lr=0.03, training_steps=8), environment, PolicyGradient())
    seeds = list(range(20))

    def share():
        system.sync_weights()
        trees = environment.eval_rollouts(["abc"] * 20, seeds)
        return sum(n.reward for t in trees for n in t.nodes()) / 40

    before = share()
    trainer.train()
    assert before < 0.4
    assert share() > 0.8


def test_an_algorithm_is_named_made_or_given():
    register_harness_algorithm("tests_policy_gradient")(PolicyGradient)
    given = PolicyGradient()
    for algorithm in ("tests_policy_gradient", {"type": "tests_policy_gradient"}, given):
        config = configured(training_steps=1, algorithm=algorithm)
        trainer = HarnessTrainer(config, make_environment(make_system()))
        assert type(trainer.algorithm) is PolicyGradient
        assert trainer.train().steps == 1
    assert trainer.algorithm is given
    for algorithm in ("tests_policy_gradient", {"type": "tests_policy_gradient"}, given):
        trainer = HarnessTrainer(configured(), make_environment(make_system()), algorithm)
        assert type(trainer.algorithm) is PolicyGradient
    with pytest.raises(
        ConfigError, match="algorithm is a int; write a name such as dpo, a section"
    ):
        HarnessTrainer(configured(algorithm=3), make_environment(make_system()))
