"""How actions are explored: what is best is taken but for a part that falls, or noise is added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.distributions.choice import distribution_for
from plugrl.core.tensordict.collect.exploration import EpsilonGreedy, Explorer, GaussianNoise
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

#: Values of three actions in four states, of which a network makes nothing else.
VALUES = np.array([[1, 5, 2], [7, 0, 3], [2, 2.5, 9], [-3, -1, -2]], np.float32)
BEST = [1, 0, 2, 1]


class Table:
    """An actor whose parameters are the row of a table that an observation names."""

    def __init__(self, values: np.ndarray, distribution: Any) -> None:
        self.values, self._distribution = values, distribution

    def act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # A choice that no other one here would make.
        return np.full(len(observation), -7), np.full(len(observation), -0.25, np.float32)

    def best(self, observation: np.ndarray) -> np.ndarray:
        return self._distribution.mode_numpy(self.values[observation[:, 0].astype(int)])

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.values.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = np.array(state["table"], np.float32)


def greedy(seed: int = 0, starts: int = 0, **epsilon: float) -> EpsilonGreedy:
    choice = distribution_for(spaces.Discrete(3))
    settings = {"initial": 0.0, "final": 0.0, "over": 1.0, **epsilon}
    rng = np.random.default_rng(seed)
    return EpsilonGreedy(Table(VALUES, choice), choice, rng, starts, **settings)


def states(count: int = 4) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None] % 4


def test_the_action_of_the_highest_value_is_taken() -> None:
    action, log_prob = greedy().act(states())
    assert action.tolist() == BEST
    assert log_prob is None
    # With an agent's own network: its policy head gives the values.
    its = {"agent": AgentSpaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(5))}
    section = {"_default": {"policy_head": {"gain": 1.0}}}
    agent: Agent = build_agents(its, section, seed=1).policies["agent"]
    actor = acting_for(agent, np.random.default_rng(0))
    seen = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float32)
    explorer = EpsilonGreedy(
        actor, agent.distribution, np.random.default_rng(0), 0, initial=0.0, final=0.0, over=1.0
    )
    values = actor.params(seen)
    chosen = explorer.act(seen)[0]
    assert len(set(chosen.tolist())) > 1
    assert (values[np.arange(64), chosen] == values.max(1)).all()


def test_the_part_that_is_random_falls_from_first_to_last() -> None:
    explorer = greedy(initial=0.8, final=0.2, over=50)
    found = []
    for explorer.passed in (0, 25, 50, 500):
        found.append(explorer.epsilon)
    assert found == pytest.approx([0.8, 0.5, 0.2, 0.2])
    assert greedy(initial=0.8, final=0.2, over=0).epsilon == pytest.approx(0.2)


def test_random_actions_are_even_and_the_others_stay_best() -> None:
    explorer = greedy(initial=0.75, final=0.75)
    seen = states(40_000)
    action = explorer.act(seen)[0]
    best = np.tile(BEST, 10_000)
    # Of three quarters a third happens to be the best one: 1/4 + 3/4 / 3.
    assert (action == best).mean() == pytest.approx(0.5, abs=0.01)
    others = (action - best)[action != best] % 3
    assert (others == 1).mean() == pytest.approx(0.5, abs=0.02)


def test_first_steps_are_random_and_end_at_their_number() -> None:
    explorer = greedy(starts=8)
    seen = states(4000)
    for frames, random in ((0, True), (7, True), (8, False)):
        explorer.frames = frames
        chosen = explorer.act(seen)[0].tolist()
        assert (chosen != BEST * 1000) == random
        assert set(chosen) == {0, 1, 2}
    plain = Explorer(explorer.actor, explorer.distribution, np.random.default_rng(0), 8)
    plain.frames = 8
    action, log_prob = plain.act(seen)
    # The policy's own draw, with its density.
    assert set(action.tolist()) == {-7}
    assert log_prob is not None
    assert plain.best(states()).tolist() == BEST


def test_a_greedy_choice_leaves_what_the_actor_gave_as_it_is() -> None:
    explorer = greedy(initial=0.5, final=0.5)
    kept = np.array(BEST * 100)
    explorer.actor.best = lambda observation: kept  # type: ignore[method-assign]
    chosen = explorer.act(states(400))[0]
    assert chosen.tolist() != kept.tolist()
    assert kept.tolist() == BEST * 100


def test_noise_is_within_the_bounds_and_in_units_of_half_the_range() -> None:
    space = spaces.Box(np.float32(-1), np.float32(5), (1,))
    normal = distribution_for(space, squash=True)

    class Middle:
        def best(self, observation: np.ndarray) -> np.ndarray:
            return np.full((len(observation), 1), 2.0, np.float32)

    def drawn(deviation: float) -> np.ndarray:
        explorer = GaussianNoise(Middle(), normal, np.random.default_rng(0), 0, deviation=deviation)
        return explorer.act(np.zeros((20_000, 1), np.float32))[0]

    assert (drawn(0.0) == 2.0).all()
    little = drawn(0.1)
    assert little.mean() == pytest.approx(2.0, abs=0.01)
    assert little.std() == pytest.approx(0.1 * 3, rel=0.03)
    much = drawn(2.0)
    assert (much.min(), much.max()) == (-1.0, 5.0)


def test_what_is_drawn_goes_on_after_a_resume() -> None:
    explorer = greedy(initial=0.9, final=0.1, over=100, starts=4)
    explorer.frames = 20
    explorer.act(states(50))
    state = explorer.state_dict()
    again = greedy(seed=99, initial=0.9, final=0.1, over=100, starts=4)
    again.actor.values = -VALUES  # type: ignore[attr-defined]
    expected = [explorer.act(states(50))[0].tolist() for _ in range(3)]
    again.load_state_dict(state)
    assert again.frames == 20
    assert [again.act(states(50))[0].tolist() for _ in range(3)] == expected
