"""Trainers with a loop of their own: they have the agents that their kind of trainer has."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from plugrl import HyperParameters, IterationContext, TensorDictTrainer, attach_progress_bar
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from tests.core.tensordict.counting import Counting


def task(**options):
    return ScenarioInstance(
        name="counting",
        make_environment=lambda split: Counting([4] * 8, **options),
        make_labelled=lambda split: Labelled({"x": np.zeros((4, 1))}, np.array([0, 1, 2, 1])),
    )


class Chooses(TensorDictTrainer):
    """Learns to do what is rewarded here: action 1. Policy gradient, without any machinery."""

    def train(self):
        torch.manual_seed(self.hyper_params.seed)
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()

    def sampled(self):
        environment = self.scenario_instance.train_environment
        seen = torch.from_numpy(environment.reset(0)["agent"])
        rows = self.agents["agent"].policy_operator(TensorDict({"observation": seen}, [8]))
        return rows, rows["action"].float()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext):
        iteration_context.set_description("Training")
        optimizer = torch.optim.Adam(self.agents["agent"].parameters(), lr=self.hyper_params.rl.lr)
        for iteration in range(1, self.hyper_params.rl.num_iterations + 1):
            rows, reward = self.sampled()
            loss = -(rows["action_log_prob"] * (reward - 0.5)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.run.end_step(iteration, {"train/reward": float(reward.mean())})
            iteration_context.step(iteration)

    @attach_progress_bar(lambda self: 2)
    def _run_test_loop(self, iteration_context: IterationContext):
        self.tested = [float(self.sampled()[1].mean()) for _ in range(2)]


@pytest.mark.parametrize("wrap", [dict, HyperParameters])
def test_a_loop_of_its_own_trains_the_agents_that_it_is_given(wrap):
    sections = wrap({"rl": {"num_iterations": 60, "lr": 0.05}, "seed": 3})
    trainer = Chooses(scenario_instance=task(), hyper_params=sections)
    assert trainer.get_total_num_iterations() == 62
    trainer.train()
    rewards = [step["train/reward"] for step in trainer.run.metrics]
    assert 0.2 < np.mean(rewards[:5]) < 0.8
    assert np.mean(rewards[-5:]) > 0.95
    assert min(trainer.tested) > 0.8


def test_its_agents_are_those_of_the_trainer_with_our_loop():
    class Ours(TensorDictRlTrainer):
        def _get_loss_module_and_gae(self):
            return torch.nn.Module(), None

    sections = {"rl": {"use_shared_body": True}, "seed": 7, "agents": {"_default": {}}}
    own = Chooses(scenario_instance=task(), hyper_params=sections).agents["agent"].state_dict()
    ours = Ours(scenario_instance=task(), hyper_params=sections)
    theirs = ours._build_policies().policies["agent"].state_dict()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)


def test_the_task_has_them_too_and_they_are_built_once_when_they_are_asked_for(monkeypatch):
    instance = task(agents=("a", "b"))
    built = []
    build = Chooses._build_policies
    monkeypatch.setattr(Chooses, "_build_policies", lambda self: built.append(1) or build(self))
    trainer = Chooses(scenario_instance=instance)
    assert trainer.export_weights() is None
    assert not built
    assert list(instance.agents) == ["a", "b"]
    assert trainer.agents["a"] is instance.agents["a"]
    assert built == [1]
    assert set(trainer.export_weights().policies) == {"a", "b"}


def parts_of(**attributes):
    cls = type("Mine", (Chooses,), attributes)
    agent = cls(scenario_instance=task()).agents["agent"]
    return set(agent.parts)


def test_the_kind_of_trainer_says_which_parts_they_have():
    assert parts_of() == {"policy_body", "policy_head", "value_body", "value_head"}
    assert parts_of(use_critic=False) == {"policy_body", "policy_head"}
    assert parts_of(trainer_type="solo_agent") == {"body", "solo_head"}
    own = {"trainer_type": "mine", "_agent_parts": lambda self: {"critic": False}}
    assert parts_of(**own) == {"policy_body", "policy_head"}


def test_the_head_of_a_solo_agent_tells_the_labels_of_the_task():
    class Guesses(Chooses):
        trainer_type = "solo_agent"

    agent = Guesses(scenario_instance=task()).agents["agent"]
    assert agent.label_logits(torch.zeros(5, 1)).shape == (5, 3)


def test_another_kind_of_trainer_is_refused_with_what_to_write():
    said = r"trainer_type is 'supervised'; write rl or solo_agent, or a method _agent_parts\(self\)"
    with pytest.raises(TypeError, match=said):
        type("Mine", (Chooses,), {"trainer_type": "supervised"})


def test_sections_that_are_given_are_checked_as_those_of_a_file():
    def params(sections):
        return Chooses(scenario_instance=task(), hyper_params=sections).hyper_params

    assert params(HyperParameters({"rl": {"lr": 0.5}}))["rl.gamma"] == 0.99
    for sections, said in [
        ({"rl": {"lrr": 0.5}}, r"rl\.lrr.*lr"),
        ({"rll": {"lr": 0.5}}, r"rll.*unknown section; did you mean rl\?"),
    ]:
        for wrap in (dict, HyperParameters):
            with pytest.raises(ConfigError, match=said):
                params(wrap(sections))
