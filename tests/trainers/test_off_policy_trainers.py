"""dqn, sac and td3 learn, at the pace that their settings say, and keep what they must."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curves import SEEDS, assert_reached, returns
from gymnasium.spaces import Box, Discrete, Space
from tensordict import TensorDict
from waiting import CURVES

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.collect.exploration import EpsilonGreedy
from plugrl.core.tensordict.environment.vector_environment import (
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)
from plugrl.core.tensordict.off_policy import ReplayConfig
from plugrl.trainers.sac import SacConfig


class Aiming(VectorEnvironment):
    """Two steps an episode: first a number is shown, then how far the first action was from it.

    The first action earns nothing at once; the second step gives minus its distance from the
    number shown, and terminates. The step after that begins anew and is not real.
    """

    def __init__(self, action: Space[Any], num_envs: int = 4) -> None:
        self.num_envs = num_envs
        self.spaces = {"agent": AgentSpaces(Box(-5, 5, (2,), np.float32), action)}

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        self._rng = np.random.default_rng(seed)
        self._phase = 0
        return {"agent": self._shown()}

    def _shown(self) -> np.ndarray:
        self._aim = self._rng.integers(0, 3, self.num_envs).astype(np.float32) - 1
        return np.stack([self._aim, np.zeros(self.num_envs, np.float32)], 1)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        none = np.zeros(self.num_envs, bool)
        reward = np.zeros(self.num_envs, np.float32)
        if self._phase == 2:
            self._phase = 0
            return {"agent": AgentStep(self._shown(), reward, none, none, None, none)}
        ended = none
        if self._phase == 0:
            chosen = actions["agent"].reshape(self.num_envs).astype(np.float32)
            is_choice = isinstance(self.spaces["agent"].action, Discrete)
            self._off = np.abs((chosen - 1 if is_choice else chosen) - self._aim)
        else:
            reward, ended = -self._off, ~none
        self._phase += 1
        seen = np.stack([np.full(self.num_envs, 3.0), self._off], 1).astype(np.float32)
        final = seen.copy() if ended.any() else None
        return {"agent": AgentStep(seen, reward, ended, none, final, ~none)}


class Apart(VectorEnvironment):
    """Agents that each aim in an environment of their own."""

    def __init__(self, action: Space[Any], names: tuple[str, ...]) -> None:
        self._each = {name: Aiming(action) for name in names}
        self.num_envs = next(iter(self._each.values())).num_envs
        self.spaces = {name: each.spaces["agent"] for name, each in self._each.items()}

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        return {name: each.reset(seed)["agent"] for name, each in self._each.items()}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        return {n: each.step({"agent": actions[n]})["agent"] for n, each in self._each.items()}


ACTIONS = {"dqn": Discrete(3), "sac": Box(-2, 2, (1,)), "td3": Box(-2, 2, (1,))}


def made(
    name: str,
    own: dict[str, Any],
    action: Space[Any] | None = None,
    agents: tuple[str, ...] = (),
    **rl: Any,
) -> Any:
    registry = default_registry()
    space = ACTIONS[name] if action is None else action
    instance = ScenarioInstance(
        name="aiming",
        make_environment=lambda split: Apart(space, agents) if agents else Aiming(space),
    )
    critics = {} if name == "dqn" else {"critic_hidden": [32, 32]}
    return registry.load(registry.resolve("trainer", name))(
        scenario_instance=instance,
        hyper_params={
            "rl": {"num_iterations": 2, "frames_per_batch": 40, "minibatch_size": 8, **rl},
            "agents": {"_default": {"body": {"hidden": [32], "activation": "relu"}}},
            "validate": {"episodes": 30},
            name: {"learning_starts": 12, **critics, **own},
        },
    )


def trained(name: str, own: dict[str, Any], **rl: Any) -> Any:
    trainer = made(name, own, **rl)
    trainer.train()
    return trainer


def learner_of(trainer: Any) -> Any:
    """What a checkpoint keeps of the one policy that learns: optimizer, loss and buffer."""
    return trainer.state_dict()["learners"]["agent"]


def weights_of(trainer: Any, policy: str = "agent") -> dict[str, torch.Tensor]:
    return trainer.state_dict()["policies"][policy]["weights"]


def target_of(trainer: Any) -> dict[str, torch.Tensor]:
    loss = learner_of(trainer)["loss"]
    return {k.removeprefix("target."): v for k, v in loss.items() if k.startswith("target.")}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("dqn", {"train_freq": 1, "target_update_interval": 40}),
        pytest.param(
            "dqn",
            {"train_freq": 1, "tau": 0.2, "target_update_interval": 8, "double": True},
            marks=pytest.mark.integration,
        ),
        pytest.param("sac", {}, marks=pytest.mark.integration),
        pytest.param("sac", {"auto_alpha": False, "alpha": 0.01}, marks=pytest.mark.integration),
        pytest.param("td3", {"action_noise": 0.3}, marks=pytest.mark.integration),
    ],
)
def test_rewards_that_come_a_step_later_are_learned_from(name: str, own: dict[str, Any]) -> None:
    # A third of the steps only begins episodes.
    settings = {"lr": 0.01, "num_iterations": 3, "frames_per_batch": 480, "minibatch_size": 32}
    metrics = trained(name, {**own, "learning_starts": 160}, **settings).run.metrics
    # Whoever ignores the number shown is off by 2/3 at best.
    assert metrics[1]["rollout/mean_episode_return"] < -0.5
    assert metrics[-1]["validation/mean_episode_return"] > -0.3


@pytest.mark.parametrize(
    ("own", "updates"),
    [
        # 20 steps of 4 environments, of which every third only begins anew: 14 are real.
        # Learning starts after 12, with the fourth real step.
        ({"train_freq": 1}, 11),
        ({"train_freq": 1, "gradient_steps": 3}, 33),
        # After real steps 6, 9 and 12; an iteration ends behind the seventh.
        ({"train_freq": 3, "gradient_steps": 2}, 6),
        ({"train_freq": 3, "gradient_steps": -1}, 3 * 12),
        ({"train_freq": 5, "learning_starts": 1000}, 0),
    ],
)
def test_updates_come_as_often_as_the_settings_say(own: dict[str, Any], updates: int) -> None:
    trainer = trained("dqn", own)
    assert trainer.run.metrics[-1]["train/updates"] == updates


def test_steps_that_only_begin_anew_are_told_apart() -> None:
    metrics = trained("dqn", {}).run.metrics
    # Of 10 steps of 4 environments in an iteration, the third, sixth and ninth; then two and so on.
    told = [(step["rollout/frames"], step["rollout/reset_steps"]) for step in metrics[1:]]
    assert told == [(4 * 7, 4 * 3), (4 * 14, 4 * 3)]


def test_a_checkpoint_from_before_real_steps_were_counted_goes_on() -> None:
    trainer = trained("dqn", {})
    state = trainer.state_dict()
    del state["frames"]
    trainer._apply({**state, "taken": 20})
    assert trainer._frames == 80


def test_only_real_steps_are_kept_and_only_terminations_end_value() -> None:
    buffer = learner_of(trained("dqn", {}))["buffer"]
    # Of 20 steps of each environment every third begins anew.
    assert buffer["size"] == 4 * 14
    held = buffer["arrays"]
    assert len(held["observation"]) == 4 * 14
    terminated = held["next/terminated"].squeeze(-1)
    assert torch.equal(terminated, held["observation"][:, 0] == 3)
    assert (held["next/observation"][:, 0] == 3).all()
    assert (held["next/reward"].squeeze(-1)[~terminated] == 0).all()


def test_the_policy_of_td3_moves_later_than_its_critics() -> None:
    trainer = trained("td3", {"policy_delay": 3})
    steps = learner_of(trainer)["optimizer"]["agents"]
    counts = {
        agent: {float(each["step"]) for each in own["state"].values()}
        for agent, own in steps.items()
    }
    assert counts == {"agent": {11 // 3}, "agent/critics": {11}}


def test_a_policy_that_rests_stays_bit_for_bit() -> None:
    trainer = made("td3", {"policy_delay": 2})
    weights: list[torch.Tensor] = []
    update = trainer._update

    def watched(learner: Any, minibatch: Any, not_finite: Any) -> None:
        update(learner, minibatch, not_finite)
        weights.append(torch.cat([p.detach().reshape(-1) for p in learner.agent.parameters()]))

    trainer._update = watched
    trainer.train()
    same = [torch.equal(a, b) for a, b in zip(weights[:-1], weights[1:], strict=True)]
    # The first update is of the critics alone, the second of both, and so on.
    assert same == [i % 2 == 1 for i in range(10)]


@pytest.mark.parametrize("name", ACTIONS)
def test_what_a_policy_draws_depends_on_its_name_alone(name: str) -> None:
    alone, *others = (
        weights_of(trained(name, {}, agents=agents), "mine")
        for agents in (("mine",), ("other", "mine"), ("mine", "third"))
    )
    assert all(equal(alone, other) for other in others)


def test_the_target_network_of_dqn_is_copied_at_the_interval() -> None:
    agreed = []
    for interval in (28, 36):
        trainer = trained("dqn", {"train_freq": 1, "target_update_interval": interval})
        agreed.append(equal(target_of(trainer), weights_of(trainer)))
    # Real steps 7 and 14, the last of which is followed by an update; and step 9.
    assert agreed == [False, False]
    rare = trained("dqn", {"train_freq": 1, "target_update_interval": 1000})
    # One that never learns is what all of them began as.
    assert equal(target_of(rare), weights_of(trained("dqn", {"learning_starts": 1000})))


def test_random_actions_grow_rare_in_a_straight_line() -> None:
    trainer = trained("dqn", {"exploration_fraction": 0.5, "exploration_final_eps": 0.2})
    explorer = trainer._collector.actors["agent"]
    assert isinstance(explorer, EpsilonGreedy)
    assert (explorer.frames, explorer.passed) == (4 * 14, 4 * 20)
    seen = []
    for explorer.passed in (0, 10, 20, 40, 80):
        seen.append(explorer.epsilon)
    # Over half of 80 steps from 1 to 0.2.
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])
    explorer.passed = 40
    observation = np.tile(np.float32([[1, 0]]), (20_000, 1))
    best = explorer.best(observation)[0]
    share = float((explorer.act(observation)[0] != best).mean())
    assert share == pytest.approx(0.2 * 2 / 3, abs=0.01)


def test_noise_is_in_units_of_half_the_range_and_stays_within_bounds() -> None:
    trainer = trained("td3", {"action_noise": 0.25})
    explorer = trainer._collector.actors["agent"]
    observation = np.tile(np.float32([[1, 0]]), (20_000, 1))
    best, drawn = explorer.best(observation), explorer.act(observation)[0]
    assert abs(best[0, 0]) < 0.5
    assert (drawn - best).std() == pytest.approx(0.25 * 2, rel=0.03)
    assert drawn.dtype == np.float32
    assert np.abs(drawn).max() <= 2
    explorer.frames = 0
    evenly = explorer.act(observation)[0]
    assert evenly.std() == pytest.approx(4 / 12**0.5, rel=0.03)


def test_old_steps_are_scaled_as_new_ones_are() -> None:
    trainer = trained("dqn", {}, normalize_observations=True, normalize_rewards=True)
    buffer, normalisers = trainer._learners["agent"].buffer, trainer._collector.normalisers
    raw = buffer.sample(50)
    assert set(raw["next", "observation"][:, 0].tolist()) == {3.0}
    scaled = trainer._normalised("agent", raw.clone())
    for key in ("observation", ("next", "observation")):
        expected = normalisers.observation("agent", raw[key].numpy())
        assert not np.array_equal(expected, raw[key].numpy())
        np.testing.assert_array_equal(scaled[key].numpy(), expected)
    expected = normalisers.reward("agent", raw["next", "reward"].numpy())
    np.testing.assert_array_equal(scaled["next", "reward"].numpy(), expected)


def test_the_temperature_moves_towards_the_entropy_that_is_wanted() -> None:
    high, low = (
        trained("sac", {"target_entropy": wanted, "gradient_steps": 5}, lr=0.01)
        for wanted in (5.0, -10.0)
    )
    alphas = [learner_of(t)["loss"]["log_alpha"].exp().item() for t in (high, low)]
    assert alphas[0] > 1 > alphas[1]
    with pytest.raises(ConfigError, match="no effect without auto_alpha"):
        SacConfig(auto_alpha=False, target_entropy=-1.0)


def test_entropy_is_wanted_of_actions_of_any_unit() -> None:
    losses = []
    for bound in (1.0, 4.0):
        trainer = made("sac", {}, Box(-bound, bound, (3,)))
        trainer._set_up(Aiming(Box(-bound, bound, (3,))))
        losses.append(trainer._learners["agent"].loss_module)
    assert losses[0].target_entropy == pytest.approx(-3)
    # Densities of actions four times as wide are lower by log 4 for each number.
    assert losses[1].target_entropy == pytest.approx(-3 + 3 * np.log(4))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_one_number_trains_alike_with_and_without_a_dimension(name: str) -> None:
    results = []
    for shape in ((), (1,)):
        trainer = made(name, {"action_noise": 0.0} if name == "td3" else {}, Box(-2, 2, shape))
        trainer.train()
        assert learner_of(trainer)["buffer"]["arrays"]["action"].shape[1:] == shape
        results.append(weights_of(trainer))
    assert equal(*results)


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        (
            "dqn",
            Box(-1, 1, (1,)),
            "dqn chooses one of several actions.*take sac, td3 or vanilla_ppo",
        ),
        ("sac", Discrete(3), "sac chooses real numbers.*take dqn"),
        ("td3", Discrete(3), "td3 chooses real numbers.*take dqn"),
        ("sac", Box(-np.inf, np.inf, (1,)), "bounds that are not finite"),
    ],
)
def test_actions_of_the_wrong_kind_are_refused(name: str, action: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(name, {}, action).train()


def test_no_update_after_a_step_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="gradient_steps is 0, so that nothing would be learned"):
        ReplayConfig(gradient_steps=0)


@pytest.mark.parametrize(("name", "value"), [("num_epochs", 1), ("lmbda", 1)])
def test_a_setting_that_nothing_reads_is_found_beforehand(name: str, value: Any) -> None:
    tree = {
        "scenario": {"type": "gymnasium", "id": "Pendulum-v1"},
        "rl": {name: value},
        "trainer": {"type": "sac"},
    }
    with pytest.raises(ConfigError, match=f"rl.{name} .*has no effect on sac; remove it"):
        prepare(tree)


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        # Two iterations of 10 steps in each of 4 environments.
        ({"train_freq": 1}, 20),
        ({"train_freq": 4, "gradient_steps": 3}, 5 * 3),
        ({"train_freq": 2, "gradient_steps": -1}, 10 * 2 * 4),
    ],
)
def test_whether_compiling_is_earned_back_is_asked_of_all_updates(
    own: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def asks(setting: Any, optimizer_steps: int) -> bool:
        asked.append(optimizer_steps)
        return False

    monkeypatch.setattr("plugrl.core.tensordict.off_policy.worth_compiling", asks)
    trained("dqn", own)
    assert asked == [steps]


def test_targets_of_several_updates_at_once_are_those_of_each() -> None:
    own = {"gradient_steps": 4, "target_update_interval": 8}
    once, each = made("dqn", own), made("dqn", own)
    each._precompute = lambda learner, rows: rows
    for trainer in (once, each):
        trainer.train()
    one, other = weights_of(once), weights_of(each)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_noise_that_was_drawn_before_gives_the_losses_of_noise_that_was_not(name: str) -> None:
    trainer = made(name, {})
    trainer._set_up(Aiming(ACTIONS[name]))
    loss = trainer._learners["agent"].loss_module
    minibatch = steps_of(ACTIONS[name])
    state = loss.generator.get_state()
    expected = loss(minibatch)
    loss.generator.set_state(state)
    drawn = minibatch.update(loss.draw_noise(minibatch))
    after = loss.generator.get_state()
    given = loss(drawn)
    assert torch.equal(loss.generator.get_state(), after)
    assert equal({k: v.detach() for k, v in given.items()}, dict(expected))


def steps_of(action: Any, rows: int = 16, seed: int = 0) -> TensorDict:
    """Steps with random numbers."""
    action.seed(seed)
    draw = torch.Generator().manual_seed(seed)
    following = {
        "observation": torch.randn(rows, 2, generator=draw),
        "reward": torch.randn(rows, 1, generator=draw),
        "terminated": torch.arange(rows).unsqueeze(-1) % 4 == 0,
    }
    return TensorDict(
        {
            "observation": torch.randn(rows, 2, generator=draw),
            "action": torch.from_numpy(np.stack([action.sample() for _ in range(rows)])),
            "next": TensorDict(following, batch_size=[rows]),
        },
        batch_size=[rows],
    )


#: Each compiles one graph twice, ``td3`` two, which takes some ten seconds.
COMPILED = [
    ("dqn", {"double": True}),
    ("sac", {}),
    ("td3", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own"), COMPILED)
def test_compiled_updates_and_resumed_ones_have_the_numbers_of_before(
    name: str, own: dict[str, Any]
) -> None:
    def learner(compiled: bool, state: Any = None) -> tuple[Any, Any]:
        trainer = made(name, own, max_grad_norm=1.0, lr=0.01, compile=compiled)
        trainer._set_up(Aiming(ACTIONS[name]))
        its = trainer._learners["agent"]
        if state is not None:
            its.agent.load_state_dict(state[0])
            its.load_state_dict(state[1])
        return trainer, its

    def updated(one: tuple[Any, Any], numbers: range) -> dict[str, torch.Tensor]:
        trainer, its = one
        for number in numbers:
            trainer._update(its, steps_of(ACTIONS[name], seed=number), pytest.fail)
        return copy.deepcopy({**its.agent.state_dict(), **its.loss_module.state_dict()})

    plain, whole, first = learner(False), learner(True), learner(True)
    expected, given = updated(plain, range(6)), updated(whole, range(6))
    assert (plain[1].is_compiled, whole[1].is_compiled) == (False, True)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    assert whole[1].report() == pytest.approx(plain[1].report(), rel=1e-4, abs=1e-5)
    updated(first, range(3))
    state = copy.deepcopy((first[1].agent.state_dict(), first[1].state_dict()))
    # In a process of its own, the graphs would be made anew.
    torch._dynamo.reset()
    second = learner(True, state)
    assert equal(updated(second, range(3, 6)), given)
    assert second[1].is_compiled


@pytest.mark.slow
@pytest.mark.timeout(CURVES)
@pytest.mark.parametrize("recipe", ["pendulum_sac", "pendulum_td3"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_recipe_swings_the_pendulum_up(recipe: str, seed: int, tmp_path: Path) -> None:
    assert returns(recipe, tmp_path, seed, episodes=100)[-1] >= -200


@pytest.mark.slow
@pytest.mark.timeout(CURVES)
def test_the_best_of_a_run_of_dqn_balances_the_pole(tmp_path: Path) -> None:
    # The last policy is often not the best one, which is the one that the run keeps. 475 counts as
    # solved.
    best = [max(returns("cartpole_dqn", tmp_path, seed, episodes=100)) for seed in SEEDS]
    assert_reached(best, median=475, each=475)
