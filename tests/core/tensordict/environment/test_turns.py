"""Agents that take turns: who is asked, and what their own steps are worth."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import plugrl
from plugrl import GeneralisedAdvantage, Registry, ScenarioInstance
from plugrl.core import estimators
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.acting import TorchActor
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.environment.turns import finished
from plugrl.core.tensordict.learn.advantages import RewardToGo
from tests.core.by_time import by_time
from tests.core.tensordict.speaking import Speaking


def gae_in_turns(column, gamma, lmbda, **masks):
    numbers = {f"{name}s": column[name] for name in ("reward", "value", "next_value")}
    ends = {name: column[name] for name in ("terminated", "done")}
    return by_time(estimators.gae_in_turns, **numbers, **ends, gamma=gamma, lmbda=lmbda, **masks)


OWN, WAIT, AWAY = "own", "wait", "away"


def columns(*rows):
    """Steps of one environment: kind, reward, value, next value, end."""
    kinds, reward, value, ahead, end = zip(*rows, strict=True)
    column = {
        "reward": np.float32(reward)[:, None],
        "value": np.float32(value)[:, None],
        "next_value": np.float32(ahead)[:, None],
        "terminated": np.array([e == "terminated" for e in end])[:, None],
        "done": np.array([e is not None for e in end])[:, None],
    }
    acting = np.array([k == OWN for k in kinds])[:, None]
    waiting = np.array([k == WAIT for k in kinds])[:, None]
    return column, {"acting": acting, "waiting": waiting}


def test_rewards_of_others_steps_belong_to_the_last_own_step() -> None:
    column, kinds = columns(
        (WAIT, 50, 0, 0, None),  # belongs to a step before the batch
        (OWN, 1, 2, 0, None),
        (WAIT, 3, 99, 99, None),
        (WAIT, 5, 99, 99, None),
        (OWN, 7, 4, 0, None),
        (WAIT, 9, 99, 99, "terminated"),
        (AWAY, 70, 99, 99, None),  # begins anew
        (OWN, 2, 6, 0, None),
        (WAIT, 4, 99, 8, "truncated"),
    )
    g, lmbda = 0.5, 0.25
    known = finished(kinds["acting"], column["done"], np.array([False]))
    assert known[:, 0].tolist() == [False, True, False, False, True, False, False, True, False]
    found = gae_in_turns(column, g, lmbda, **kinds, known=known)
    last = 2 + g * 4 + g**2 * 8 - 6
    second = 7 + g * 9 - 4
    first = 1 + g * 3 + g**2 * 5 + g**3 * 4 - 2 + g**3 * lmbda * second
    np.testing.assert_allclose(found[:, 0], [0, first, 0, 0, second, 0, 0, last, 0], rtol=1e-6)


def test_a_last_own_step_without_known_successor_is_left_out_and_its_value_is_used() -> None:
    rows = [(OWN, 1, 2, 0, None), (WAIT, 3, 99, 99, None), (OWN, 7, 4, 0, None)]
    column, kinds = columns(*rows, (WAIT, 5, 99, 6, None))
    g, lmbda = 0.5, 0.25
    for acts_next, known_last in ((False, False), (True, True)):
        known = finished(kinds["acting"], column["done"], np.array([acts_next]))
        assert known[:, 0].tolist() == [True, False, known_last, False]
        found = gae_in_turns(column, g, lmbda, **kinds, known=known)[:, 0]
        last = 7 + g * 5 + g**2 * 6 - 4 if known_last else 0
        first = 1 + g * 3 + g**2 * 4 - 2 + g**2 * lmbda * last
        np.testing.assert_allclose(found, [first, 0, last, 0], rtol=1e-6)


def test_without_turns_it_is_ordinary_estimation() -> None:
    rng = np.random.default_rng(0)
    shape = (30, 5)
    reward, value, ahead = rng.normal(size=(3, *shape)).astype(np.float32)
    done = rng.random(shape) < 0.2
    terminated = done & (rng.random(shape) < 0.5)
    ahead[:-1] = np.where(done[:-1], ahead[:-1], value[1:])
    every, none = np.ones(shape, bool), np.zeros(shape, bool)
    ends = {"terminated": terminated, "done": done}
    column = {"reward": reward, "value": value, "next_value": ahead, **ends}
    found = gae_in_turns(column, 0.9, 0.8, acting=every, waiting=none, known=every)
    plain = by_time(estimators.gae, reward, value, 0.9, 0.8, next_values=ahead, **ends)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)


def by_episode(column, kinds, g, lmbda, acts_next):
    """The textbook's sums over the own steps of one environment, episode by episode."""
    flat = {name: array[:, 0] for name, array in column.items()}
    acting, part = kinds["acting"][:, 0], (kinds["acting"] | kinds["waiting"])[:, 0]
    steps, answer, begin = len(acting), np.zeros(len(acting)), 0
    ends = [*np.flatnonzero(flat["done"]).tolist(), steps - 1]
    for end in dict.fromkeys(ends):
        own = [t for t in range(begin, end + 1) if acting[t]]
        begin = end + 1
        over = bool(flat["done"][end])
        if not over and not acts_next and own:
            stop = own.pop()
            bounds = [*own, stop]
            after = flat["value"][stop]
        else:
            bounds = [*own, end + 1]
            after = 0 if flat["terminated"][end] else flat["next_value"][end]
        deltas, gaps = [], []
        for t, later in pairwise(bounds):
            span = range(t, later)
            earned = sum(g ** (s - t) * flat["reward"][s] for s in span if part[s])
            worth = after if later == bounds[-1] else flat["value"][later]
            deltas.append(earned + g ** (later - t) * worth - flat["value"][t])
            gaps.append(later - t)
        for i, t in enumerate(own):
            weights = np.cumprod([1.0, *(lmbda * g**k for k in gaps[i:-1])])
            answer[t] = float(np.dot(weights, deltas[i:]))
    return answer


@pytest.mark.parametrize("acts_next", [True, False])
def test_it_is_what_each_episode_gives_by_itself(acts_next) -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        steps = int(rng.integers(1, 14))
        kinds = rng.choice([OWN, WAIT], steps)
        end = rng.choice([None, None, None, "terminated", "truncated"], steps)
        numbers = rng.normal(size=(3, steps))
        column, masks = columns(*zip(kinds, *numbers, end, strict=True))
        known = finished(masks["acting"], column["done"], np.array([acts_next]))
        found = gae_in_turns(column, 0.9, 0.7, **masks, known=known)[:, 0]
        np.testing.assert_allclose(
            found, by_episode(column, masks, 0.9, 0.7, acts_next), rtol=1e-4, atol=1e-5
        )


class CountingActor(TorchActor):
    """Counts the rows that it is asked about."""

    rows = 0

    def params(self, observation):
        self.rows += len(observation)
        return super().params(observation)


def collector(environment, steps, **section):
    policies = build_agents(environment.spaces, section)
    members = dict.fromkeys(policies.policies, environment.num_envs)
    for policy in policies.policy_of.values():
        members[policy] = environment.num_envs * list(policies.policy_of.values()).count(policy)
    actors = {
        name: CountingActor(agent, np.random.default_rng(1))
        for name, agent in policies.policies.items()
    }
    normalisers = Normalisers(
        dict.fromkeys(members, (1,)), members, observations=False, rewards=False, gamma=1.0
    )
    built = Collector(environment, policies.policy_of, actors, steps=steps, normalisers=normalisers)
    built.begin(0)
    return built, policies.policies, actors


@pytest.mark.parametrize("shared", [False, True])
def test_only_those_whose_turn_it_is_are_asked_and_learn(shared) -> None:
    environment = Speaking(num_envs=6, pauses=1, staggered=True)
    section = {"_default": {"policy": "both"}} if shared else {}
    built, _, actors = collector(environment, 8, **section)
    batches = built.collect()
    asked = {name: int(batch["acting"].sum()) for name, batch in batches.items()}
    assert {name: actor.rows for name, actor in actors.items()} == asked
    for batch in batches.values():
        acting, waiting = batch["acting"], batch["waiting"]
        assert (acting != waiting).all()
        assert not batch["action"][waiting].any()
        assert not batch["action_log_prob"][waiting].any()
        assert (batch["action_log_prob"][acting] < 0).all()
    joined = batches["both"] if shared else torch.cat([batches["speaker"], batches["listener"]])
    speaker, listener = joined[:6], joined[6:]
    assert (listener["valid"] == listener["acting"]).all()
    # Steps of an episode: said, paused, guessed. Copies begin at steps 0, 1 and 2 of it.
    said = (torch.arange(8) + torch.arange(6)[:, None]) % 3 == 0
    assert (speaker["acting"] == said).all()
    # What was said in one of the last two steps has led to nothing yet.
    late = torch.arange(8) >= 6
    assert (speaker["valid"] == said & ~late).all()


def test_values_are_asked_for_own_steps_alone_and_rewards_reach_the_speaker() -> None:
    environment = Speaking(num_envs=3, pauses=2, price=0.25, staggered=True)
    built, policies, _ = collector(environment, 9)
    batch, agent = built.collect()["speaker"], policies["speaker"]
    rows, value = [], agent.value
    agent.value = lambda seen: rows.append(len(seen)) or value(seen)
    with torch.no_grad():
        GeneralisedAdvantage(agent, gamma=0.5, lmbda=1.0)(batch)
    assert sum(rows) == int(batch["acting"].sum())
    reward = batch["next", "reward"].squeeze(-1)
    for row, t in batch["valid"].nonzero().tolist():
        right = reward[row, t + 3].item()
        earned = -0.25 * (0.5 + 0.25) + 0.125 * right
        of = value(batch["observation"][row, t]).item()
        assert batch["advantage"][row, t].item() == pytest.approx(earned - of, abs=1e-5)
    RewardToGo(0.5)(batch)
    row, t = batch["valid"].nonzero()[0].tolist()
    expected = -0.25 * 0.75 + 0.125 * reward[row, t + 3].item()
    assert batch["advantage"][row, t].item() == pytest.approx(expected, abs=1e-6)


def trainer_of(name, environment, **params):
    registry = Registry()
    instance = ScenarioInstance(name="speaking", make_environment=lambda split: environment())
    load = registry.load(registry.resolve("trainer", name))
    sections = {"rl": {"num_iterations": 2, "frames_per_batch": 64}, "validate": {"episodes": 64}}
    return load(scenario_instance=instance, hyper_params={**sections, **params})


@pytest.mark.parametrize("name", ["vanilla_ppo", "a2c", "reinforce"])
def test_a_speaker_learns_from_what_a_listener_earns(name) -> None:
    rl = {"frames_per_batch": 256, "lr": 0.03, "gamma": 0.99, "max_grad_norm": None}
    if name == "vanilla_ppo":
        rl |= {"num_iterations": 8, "minibatch_size": 64, "num_epochs": 4}
    else:
        rl |= {"num_iterations": 30}
    trainer = trainer_of(
        name, lambda: Speaking(16, pauses=1), rl=rl, validate={"episodes": 64, "every": 0}
    )
    trainer.train()
    # Who guesses without hearing is right half of the time.
    assert trainer.run.metrics[-1]["validation/mean_episode_return"] > 0.95


def test_what_cannot_learn_in_turns_is_refused() -> None:
    trainer = trainer_of("dqn", Speaking)
    with pytest.raises(ConfigError, match="take turns, which dqn cannot learn from; take vanilla"):
        trainer.train()
    trainer = trainer_of("vanilla_ppo", Speaking, ppo={"implementation": "torchrl"})
    with pytest.raises(ConfigError, match="take turns, and GAE .* ppo.implementation: plugrl"):
        trainer.train()


def test_a_policy_is_the_better_by_the_number_that_the_environment_names() -> None:
    class Named(Speaking):
        score = "loudness"

        def take_metrics(self, episodes=None):
            return {"loudness": 11.0 if episodes is None else float(episodes)}

    trainer = trainer_of("vanilla_ppo", Named)
    trainer.train()
    assert trainer.run.metrics[-1]["rollout/loudness"] == 11
    assert trainer.run.metrics[-1]["validation/loudness"] == trainer.run.best_score == 64
    assert math.isfinite(trainer.run.metrics[-1]["time/steps_per_second"])
    assert issubclass(Named, plugrl.VectorEnvironment)
