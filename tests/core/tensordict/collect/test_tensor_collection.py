"""Steps and updates that stay on a device are those that arrays give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl import TensorDictRlTrainer, TensorEnvironment
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.tensor_collector import TensorCollector
from plugrl.core.tensordict.learn.graphed_learner import GraphedLearner
from plugrl.core.tensordict.learn.learner import Learner
from plugrl.scenarios.tensor.cart_pole import CartPole
from plugrl.trainers.dqn import DqnTrainer
from plugrl.trainers.reinforce import ReinforceTrainer
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def trainer_of(cls=VanillaPpoTrainer, copies=8, device="cpu", **sections):
    task = ScenarioInstance(
        name="cart pole",
        make_environment=lambda split: CartPole(copies, max_episode_steps=12),
    )
    rl = {"num_iterations": 3, "frames_per_batch": copies * 16, "minibatch_size": None}
    rl |= {"num_epochs": 2, "lr": 1e-2, "compile": False, **sections.pop("rl", {})}
    hyper_params = {"seed": 3, "rl": rl, "validate": {"episodes": 4}, **sections}
    return cls(scenario_instance=task, settings={"device": device}, hyper_params=hyper_params)


def ready(**options) -> TensorDictRlTrainer:
    trainer = trainer_of(**options)
    trainer._set_up(trainer.scenario_instance.train_environment)
    return trainer


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_is_what_the_same_actions_give_as_arrays(device):
    trainer = ready(device=device)
    assert isinstance(trainer._collector, TensorCollector)
    again = CartPole(8, max_episode_steps=12)
    again.to(torch.device(device))
    seen = again.reset(trainer.hyper_params.seed)["agent"]
    for _ in range(5):  # the first ones warm up, the others are replayed on a GPU
        (batch,) = trainer._collector.collect().values()
        batch = batch.cpu()
        assert batch.batch_size == (8, 16)
        assert batch["valid"].all()
        agent = trainer._policies.policies["agent"].cpu()
        for t in range(16):
            row = batch[:, t]
            assert np.array_equal(row["observation"], seen)
            step = again.step({"agent": row["action"].numpy()})["agent"]
            final = step.observation if step.final_observation is None else step.final_observation
            assert np.array_equal(row["next", "observation"], final)
            assert np.array_equal(row["next", "reward"][:, 0], step.reward)
            assert np.array_equal(row["next", "terminated"][:, 0], step.terminated)
            done = step.terminated | step.truncated
            assert np.array_equal(row["next", "done"][:, 0], done)
            seen = step.observation
        params = agent.policy(batch["observation"])
        log_prob = agent.distribution.log_prob(params, batch["action"])
        assert torch.allclose(batch["action_log_prob"], log_prob, atol=1e-5)
        agent.to(device)


def test_episodes_are_counted_as_arrays_count_them():
    trainer = ready()
    lengths, open_lengths = [], np.zeros(8, int)
    for _ in range(4):
        (batch,) = trainer._collector.collect().values()
        for t in range(16):
            open_lengths += 1
            done = batch["next", "done"][:, t, 0].numpy()
            lengths += open_lengths[done].tolist()
            open_lengths[done] = 0
        ended = trainer._collector.statistics.take()["agent"]
        # A step is worth 1.
        assert ended == [(float(length), length) for length in lengths]
        lengths.clear()
    assert trainer._collector.total_frames == 4 * 16 * 8


@pytest.mark.parametrize("cls", [VanillaPpoTrainer, ReinforceTrainer])
@pytest.mark.parametrize("device", DEVICES)
def test_an_update_is_that_of_the_learner_for_arrays(cls, device):
    """All steps are one minibatch, so that no order of theirs matters."""
    graphed, plain = (ready(cls=cls, device=device, copies=32) for _ in range(2))
    learner = graphed._learners["agent"]
    assert isinstance(learner, GraphedLearner)
    plain._learners = {
        "agent": Learner(
            plain._policies.policies["agent"],
            *plain._loss_of(plain._policies.policies["agent"]),
            plain._learners["agent"].optimizer,
            plain.hyper_params.rl.max_grad_norm,
        )
    }
    for iteration in range(1, 7):
        (batch,) = graphed._collector.collect().values()
        reports = [
            each._learn_policy(each._learners["agent"], given, iteration)
            for each, given in ((graphed, batch), (plain, batch.clone().exclude("advantage")))
        ]
        assert reports[0].keys() == reports[1].keys()
        for name, number in reports[1].items():
            assert reports[0][name] == pytest.approx(number, rel=1e-4, abs=1e-5), name
    ours, theirs = (each._policies.policies["agent"].state_dict() for each in (graphed, plain))
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, rtol=1e-4, atol=1e-5), name


def test_every_step_is_learned_from_once_an_epoch():
    trainer = ready(rl={"minibatch_size": 50, "num_epochs": 1})
    learner, rows = trainer._learners["agent"], []
    forward = learner.loss_module.forward
    learner.loss_module.forward = lambda td: rows.append(td.clone()) or forward(td)
    (batch,) = trainer._collector.collect().values()
    trainer._learn_policy(learner, batch, 1)
    assert [len(each) for each in rows] == [43, 43, 42]
    learned = torch.cat([each["observation"] for each in rows])
    given = batch["observation"].reshape(-1, 4)
    assert not torch.equal(learned, given)
    assert torch.equal(learned[learned[:, 0].argsort()], given[given[:, 0].argsort()])


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_told(device):
    trainer = ready(device=device, rl={"minibatch_size": 64})
    learner = trainer._learners["agent"]
    weights = {name: w.clone() for name, w in learner.agent.state_dict().items()}
    told = []
    for _ in range(5):
        (batch,) = trainer._collector.collect().values()
        batch["next", "reward"].fill_(float("nan"))
        learner.learn_batch(
            batch,
            np.random.default_rng(0),
            epochs=2,
            minibatch_size=64,
            reads_next=False,
            not_finite=lambda name, value: told.append((name, np.isfinite(value))),
        )
    assert told == [("gradient norm", np.False_)] * 5
    for name, weight in learner.agent.state_dict().items():
        assert torch.equal(weight, weights[name])


@pytest.mark.parametrize("device", DEVICES)
def test_a_trainer_that_is_saved_goes_on_as_if_it_had_not_been(device):
    def numbers(trainer):
        weights = trainer._policies.policies["agent"].state_dict()
        return {name: weight.clone() for name, weight in weights.items()}

    whole = trainer_of(device=device, rl={"minibatch_size": 32})
    whole.train()
    part = trainer_of(device=device, rl={"minibatch_size": 32, "num_iterations": 1})
    part.train()
    rest = trainer_of(device=device, rl={"minibatch_size": 32})
    rest.load_state_dict(part.state_dict())
    rest.train()
    for name, weight in numbers(whole).items():
        assert torch.equal(numbers(rest)[name], weight), name


def test_what_learns_between_steps_or_scales_what_it_sees_gets_arrays():
    assert type(ready(rl={"normalize_observations": True})._collector) is Collector
    sections = {"rl": {"num_iterations": 2, "frames_per_batch": 64, "minibatch_size": 8}}
    trainer = DqnTrainer(
        scenario_instance=ScenarioInstance(
            name="cart pole", make_environment=lambda split: CartPole(4)
        ),
        hyper_params={"seed": 0, **sections, "validate": {"episodes": 2}},
    )
    assert trainer.train().steps == 2
    assert type(trainer._collector) is Collector


class Weight(TensorEnvironment):
    """A weight that real numbers push."""

    observation_space = spaces.Box(-10, 10, (1,))
    action_space = spaces.Box(-1, 1, (1,))
    max_episode_steps = 6

    def initial(self, generator):
        return {"place": torch.rand(self.num_envs, generator=generator, device=self.device)}

    def observe(self, state):
        return state["place"].unsqueeze(-1).clone()

    def advance(self, state, action):
        place = state["place"] + 0.1 * action[:, 0]
        return {"place": place}, -place.abs(), place.abs() > 10


def test_noise_that_is_held_for_several_steps_gets_arrays():
    trainer = VanillaPpoTrainer(
        scenario_instance=ScenarioInstance(name="weight", make_environment=lambda split: Weight(4)),
        hyper_params={
            "rl": {"num_iterations": 2, "frames_per_batch": 64},
            "agents": {"_default": {"policy_head": {"use_sde": True}}},
            "validate": {"episodes": 4},
        },
    )
    assert trainer.train().steps == 2
    assert type(trainer._collector) is Collector


def test_rmsprop_learns_from_the_same_steps_and_looks_at_its_norms():
    whole = trainer_of(rl={"optimizer": "rmsprop"})
    whole.train()
    assert isinstance(whole._collector, TensorCollector)
    assert type(whole._learners["agent"]) is Learner
    assert whole.state_dict()["learners"]["agent"]["optimizer"]["name"] == "rmsprop"
    part = trainer_of(rl={"optimizer": "rmsprop", "num_iterations": 1})
    part.train()
    rest = trainer_of(rl={"optimizer": "rmsprop"})
    rest.load_state_dict(part.state_dict())
    rest.train()
    first, second = (each._policies.policies["agent"].state_dict() for each in (whole, rest))
    for name, weight in first.items():
        assert torch.equal(second[name], weight), name


def test_rewards_that_no_loss_can_bear_are_found():
    trainer = ready()
    trainer._collector.collect()
    assert trainer._collector.absurd_reward() is None
    trainer._collector._filled_steps["reward"][4, 2] = float("inf")
    assert trainer._collector.absurd_reward() == (
        "agent agent got inf in environment 2 at step 5 of 16"
    )
