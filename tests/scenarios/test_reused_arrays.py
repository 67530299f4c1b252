"""Environments that change their arrays in place: what they gave before stays as it was."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from pettingzoo import ParallelEnv

from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario
from plugrl.scenarios.pettingzoo.environment import PettingZooEnvironment
from plugrl.scenarios.pettingzoo.maker import Maker

SPACE = Box(-np.inf, np.inf, (1,), np.float32)
LENGTH = 5


class Reusing(gymnasium.Env):
    """Counts its steps in one array, gives rewards and flags in others, and ends after five."""

    observation_space = SPACE
    action_space = MultiDiscrete([2, 2])

    def __init__(self, terminates=False):
        self.terminates = terminates
        self.count = np.zeros(1, np.float32)
        self.reward = np.zeros((), np.float32)
        self.terminated, self.truncated = np.zeros((), bool), np.zeros((), bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        for array in (self.count, self.reward, self.terminated, self.truncated):
            array[...] = 0
        return self.count, {}

    def step(self, action):
        action[...] = 1
        self.count += 1
        self.reward[...] = self.count[0]
        over = self.truncated if not self.terminates else self.terminated
        over[...] = self.count[0] >= LENGTH
        return self.count, self.reward, self.terminated, self.truncated, {}


class ReusingPair(ParallelEnv):
    """The same for two agents, of which the second leaves after three steps."""

    metadata = {"name": "reusing_pair"}
    possible_agents = ["early", "late"]

    def __init__(self, breaks_at=None):
        self.breaks_at = breaks_at
        self.counts = {agent: np.zeros(1, np.float32) for agent in self.possible_agents}
        self.agents = []

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        for count in self.counts.values():
            count[:] = 0
        return dict(self.counts), {agent: {} for agent in self.agents}

    def step(self, actions):
        for count in self.counts.values():
            count += 1
        steps = int(self.counts["late"][0])
        if steps == self.breaks_at:
            raise RuntimeError("broke")
        present = list(self.agents)
        cut = {"early": steps >= 3, "late": steps >= LENGTH}
        self.agents = [agent for agent in present if not cut[agent]]
        return (
            {agent: self.counts[agent] for agent in present},
            dict.fromkeys(present, 1.0),
            dict.fromkeys(present, False),
            {agent: cut[agent] for agent in present},
            {agent: {} for agent in present},
        )


def steps_of(environment, agent, count):
    """(seen at the end of the step, seen next, reward, terminated, truncated) of copy 0."""
    space = environment.spaces[agent].action
    actions = {
        name: np.zeros((environment.num_envs, *(space.shape or ())), np.int64)
        for name in environment.spaces
    }
    told = []
    for _ in range(count):
        step = environment.step(actions)[agent]
        final = step.observation if step.final_observation is None else step.final_observation
        ends = bool(step.terminated[0]), bool(step.truncated[0])
        told.append(
            (float(final[0, 0]), float(step.observation[0, 0]), float(step.reward[0]), *ends)
        )
    assert all((each == 0).all() for each in actions.values())
    return told


@pytest.mark.parametrize("terminates", [False, True])
def test_gymnasium(terminates, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Reusing-v0", entry_point=Reusing)
    monkeypatch.setitem(gymnasium.registry, "Reusing-v0", spec)
    options = {"env_kwargs": {"terminates": terminates}, "vectorization": "sync"}
    scenario = GymnasiumScenario({"id": "Reusing-v0", "num_envs": 2, **options})
    environment = scenario.build(seed=0).environment("train")
    first = environment.reset(seed=0)["agent"]
    told = steps_of(environment, "agent", 6)
    environment.close()
    assert first.tolist() == [[0.0], [0.0]]
    assert told == [
        (1, 1, 1, False, False),
        (2, 2, 2, False, False),
        (3, 3, 3, False, False),
        (4, 4, 4, False, False),
        (5, 0, 5, terminates, not terminates),
        (1, 1, 1, False, False),
    ]


def pair(**options):
    maker = Maker(f"{__file__}:ReusingPair", options)
    return PettingZooEnvironment(maker, 2, max_restarts=2)


def test_pettingzoo():
    environment = pair()
    first = environment.reset(seed=0)["late"]
    told = steps_of(environment, "late", 6)
    assert first.tolist() == [[0.0], [0.0]]
    assert told == [
        (1, 1, 1, False, False),
        (2, 2, 1, False, False),
        (3, 3, 1, False, False),
        (4, 4, 1, False, False),
        (5, 0, 1, False, True),
        (1, 1, 1, False, False),
    ]
    environment.reset(seed=0)
    # Cut off at three; while it waits it sees that, not what its array has become.
    assert [seen for seen, *_ in steps_of(environment, "early", 5)] == [1, 2, 3, 3, 0]


def test_pettingzoo_that_breaks_is_cut_off_where_it_was_last_seen():
    environment = pair(breaks_at=3)
    environment.reset(seed=0)
    told = steps_of(environment, "late", 3)
    # The step that broke had changed the array to 3 already.
    assert told[2] == (2, 0, 0, False, True)
