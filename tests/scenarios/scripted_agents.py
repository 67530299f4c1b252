"""Environments of several agents that play a script, for tests."""

from __future__ import annotations

import random

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text
from pettingzoo import ParallelEnv


class Scripted(ParallelEnv):
    """Gives what its script says and keeps what it was given.

    ``start`` maps agents to first observations. Each of ``steps`` has ``agents``, who is there
    afterwards, and maps each agent it tells about to (observation, reward, terminated, truncated);
    None leaves the entry out. The last one goes on for ever.
    """

    metadata = {"name": "scripted"}

    def __init__(self, possible, start, steps, spaces=None):
        self.possible_agents = list(possible)
        self.agents = []
        self.start, self.steps, self.kinds = start, steps, spaces or {}
        self.calls = []
        self.seeds = []
        self.place = 0

    def observation_space(self, agent):
        return Box(-1e6, 1e6, (1,), np.float64)

    def action_space(self, agent):
        kind = self.kinds.get(agent)
        return (
            MultiDiscrete([3, 2])
            if kind == "multi"
            else Discrete(3, start=self.kinds.get(agent, 0))
        )

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.place = 0
        self.agents = list(self.start)
        return {a: np.array([v]) for a, v in self.start.items()}, {a: {} for a in self.start}

    def step(self, actions):
        self.calls.append({a: np.array(v).tolist() for a, v in actions.items()})
        told = self.steps[min(self.place, len(self.steps) - 1)]
        self.place += 1
        if told == "crash":
            raise RuntimeError("the engine stalled")
        # In place, as some environments do it.
        self.agents[:] = told["agents"]
        rows = {a: row for a, row in told.items() if a != "agents"}
        columns = [{a: row[i] for a, row in rows.items() if row[i] is not None} for i in range(4)]
        columns[0] = {a: np.array(np.atleast_1d(v), np.float64) for a, v in columns[0].items()}
        return (*columns, {a: {} for a in rows})


class Forgetful(Scripted):
    """Does not listen to seeds."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return {a: v + random.random() for a, v in observations.items()}, infos


class Words(Scripted):
    """Sees what no network takes."""

    def observation_space(self, agent):
        return Dict({"text": Text(3), "action_mask": Box(0, 1, (3,))})


class Masked(Scripted):
    """Forbids the choice that is the last digit of what is seen, modulo 3; all where it is -1."""

    def observation_space(self, agent):
        number = super().observation_space(agent)
        return Dict({"number": number, "action_mask": Box(0, 1, (3,), np.int8)})

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return {agent: self.masked(seen) for agent, seen in observations.items()}, infos

    def step(self, actions):
        observations, *rest = super().step(actions)
        return ({agent: self.masked(seen) for agent, seen in observations.items()}, *rest)

    @staticmethod
    def masked(seen):
        mask = np.ones(3, np.int8)
        mask[slice(None) if seen[0] < 0 else int(seen[0]) % 10 % 3] = 0
        return {"number": seen, "action_mask": mask}


class NoAgents(Scripted):
    """Does not tell who may take part."""

    def __init__(self):
        super().__init__([], {}, [])


def blind():
    """An environment that shows nothing."""
    return Scripted(["a"], {"a": 0}, [{"agents": ["a"], "a": (1, 1, False, False)}])


def defect(spaces, observation, rng):
    """Always the second choice."""
    return np.ones(len(observation), np.int64)


def highest(spaces, observation, rng):
    """The highest choice that is allowed."""
    mask = spaces.layout.view(observation, "action_mask")
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
