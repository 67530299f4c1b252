"""CartPole on tensors: the task of Gymnasium's ``CartPole-v1``, thousands of copies at once."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces

from plugrl.core.tensordict.environment.tensor_environment import State, TensorEnvironment

_GRAVITY = 9.8
_CART_MASS, _POLE_MASS = 1.0, 0.1
_TOTAL_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5
_FORCE = 10.0
_SECONDS = 0.02
#: Where an episode ends: the cart's distance from the middle, and the pole's angle in radians.
_X_LIMIT, _ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360
_HIGH = np.array(
    [2 * _X_LIMIT, np.finfo(np.float32).max, 2 * _ANGLE_LIMIT, np.finfo(np.float32).max], np.float32
)


class CartPole(TensorEnvironment):
    """A pole on a cart, pushed to the left (0) or right (1); every step is worth 1.

    States are float64 and observations float32, as Gymnasium's are, so that both go the same way
    from the same state.

    Source: Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult
    learning control problems", 1983; constants, limits and Euler's method as in Gymnasium.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH)
    action_space = spaces.Discrete(2)
    max_episode_steps = 500

    def initial(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Position, speed, angle and its speed, each between -0.05 and 0.05."""
        drawn = torch.rand(
            self.num_envs, 4, generator=generator, device=self.device, dtype=torch.float64
        )
        return {"cart_pole": drawn * 0.1 - 0.05}

    def observe(self, state: State) -> torch.Tensor:
        """The state, ``[N, 4]``."""
        return state["cart_pole"].float()

    def advance(
        self, state: State, action: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """See the base class."""
        x, x_speed, angle, angle_speed = state["cart_pole"].unbind(-1)
        force = torch.where(action == 1, _FORCE, -_FORCE).double()
        sine, cosine = angle.sin(), angle.cos()
        pole_moment = _POLE_MASS * _HALF_LENGTH
        push = (force + pole_moment * angle_speed.square() * sine) / _TOTAL_MASS
        angle_acceleration = (_GRAVITY * sine - cosine * push) / (
            _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cosine.square() / _TOTAL_MASS)
        )
        x_acceleration = push - pole_moment * angle_acceleration * cosine / _TOTAL_MASS
        following = torch.stack(
            [
                x + _SECONDS * x_speed,
                x_speed + _SECONDS * x_acceleration,
                angle + _SECONDS * angle_speed,
                angle_speed + _SECONDS * angle_acceleration,
            ],
            -1,
        )
        terminated = (following[:, 0].abs() > _X_LIMIT) | (following[:, 2].abs() > _ANGLE_LIMIT)
        return {"cart_pole": following}, torch.ones_like(x), terminated
