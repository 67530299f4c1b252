"""``TwoCartPoles``: two agents that balance a pole each, for examples and tests."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_WIDEST, _STEEPEST = 2.4, 12 * 2 * math.pi / 360
_HEIGHT, _WIDTH = 120, 320


class TwoCartPoles(ParallelEnv[str, np.ndarray, int]):
    """Two carts on tracks of their own, ``left`` and ``right``, with the physics of CartPole-v1.

    Observations are position, velocity, angle and angular velocity; action 1 pushes to the right,
    0 to the left; each step is worth 1. An agent whose pole fell or whose cart left its track has
    lost and takes no further part, while the other goes on.

    Args:
        max_steps: after so many steps the episode is cut off.
        render_mode: ``rgb_array`` for frames.
    """

    metadata: dict[str, Any] = {
        "name": "two_cartpoles",
        "render_modes": ["rgb_array"],
        "render_fps": 50,
    }

    def __init__(self, max_steps: int = 500, render_mode: str | None = None) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self.max_steps = max_steps
        self.render_mode = render_mode
        self._random = np.random.default_rng()
        self._steps = 0
        self._state: dict[str, tuple[float, float, float, float]] = {}

    @functools.cache  # noqa: B019 - a space must be the same object each time
    def observation_space(self, agent: str) -> Box:
        """Twice what ends an episode for position and angle; velocities have no bound."""
        high = np.array([2 * _WIDEST, np.inf, 2 * _STEEPEST, np.inf], np.float32)
        return Box(-high, high, dtype=np.float32)

    @functools.cache  # noqa: B019 - a space must be the same object each time
    def action_space(self, agent: str) -> Discrete:
        """Push to the left or to the right."""
        return Discrete(2)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Put both poles nearly upright."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._steps = 0
        for agent in self.agents:
            x, speed, angle, turning = self._random.uniform(-0.05, 0.05, 4).tolist()
            self._state[agent] = (x, speed, angle, turning)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Push the carts of the agents that still take part."""
        self._steps += 1
        present = self.agents
        for agent in present:
            self._state[agent] = moved(self._state[agent], actions[agent])
        observations = self._observations()
        lost = {agent: has_lost(self._state[agent]) for agent in present}
        over = self._steps >= self.max_steps
        self.agents = [] if over else [agent for agent in present if not lost[agent]]
        return (
            observations,
            dict.fromkeys(present, 1.0),
            lost,
            dict.fromkeys(present, over),
            {agent: {} for agent in present},
        )

    def _observations(self) -> dict[str, np.ndarray]:
        return {agent: np.array(self._state[agent], np.float32) for agent in self.agents}

    def render(self) -> np.ndarray | None:
        """A frame with one track above the other; the track of an agent that lost is grey."""
        if self.render_mode != "rgb_array":
            return None
        return np.concatenate(
            [_drawn(self._state[agent], agent in self.agents) for agent in self.possible_agents]
        )


def moved(
    state: tuple[float, float, float, float], action: int
) -> tuple[float, float, float, float]:
    """One step of Euler's method for a cart that is pushed, with a pole on it."""
    x, speed, angle, turning = state
    force = _FORCE if action == 1 else -_FORCE
    cosine, sine = math.cos(angle), math.sin(angle)
    total, moment = _CART + _POLE, _POLE * _HALF_LENGTH
    push = (force + moment * turning * turning * sine) / total
    inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE * cosine * cosine / total)
    turn = (_GRAVITY * sine - cosine * push) / inertia
    return (
        x + _SECONDS * speed,
        speed + _SECONDS * (push - moment * turn * cosine / total),
        angle + _SECONDS * turning,
        turning + _SECONDS * turn,
    )


def has_lost(state: tuple[float, float, float, float]) -> bool:
    """Whether the cart left its track or the pole fell."""
    return abs(state[0]) > _WIDEST or abs(state[2]) > _STEEPEST


def _drawn(state: tuple[float, float, float, float], present: bool) -> np.ndarray:
    frame = np.full((_HEIGHT, _WIDTH, 3), 255 if present else 200, np.uint8)
    ground, middle = _HEIGHT - 15, _WIDTH / 2 + state[0] * _WIDTH / (2 * _WIDEST + 1)
    frame[ground + 10 : ground + 12] = 0
    left = int(np.clip(middle - 20, 0, _WIDTH - 1))
    frame[ground - 8 : ground + 10, left : left + 40] = 40
    along = np.arange(0, 80, 0.5)
    columns = (middle + along * math.sin(state[2])).astype(int)
    rows = (ground - 8 - along * math.cos(state[2])).astype(int)
    for shift in (-1, 0, 1):
        inside = (columns + shift >= 0) & (columns + shift < _WIDTH) & (rows >= 0)
        frame[rows[inside], columns[inside] + shift] = (200, 120, 60)
    return frame
