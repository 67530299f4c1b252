"""``TensorEnvironment``: copies of an environment whose steps are operations on tensors.

All copies are stepped by the same few operations on one device, so that thousands of them take no
longer than one, and steps never leave the device where the networks are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import (
    AGENT,
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)

#: The state of all copies: tensors ``[N, ...]`` by name.
State = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class TensorStep:
    """What one step gave; episodes that ended have begun anew.

    Attributes:
        observation: ``[N, *observation]``, what the next action is chosen from.
        reward: ``[N]``, float32.
        terminated: ``[N]``, the episode ended in a state that is worth nothing.
        truncated: ``[N]``, the episode reached its time limit.
        final_observation: ``[N, *observation]``, what the action led to, also where an episode
            ended.
    """

    observation: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    final_observation: torch.Tensor


class TensorEnvironment(VectorEnvironment):
    """N copies of an environment with one agent; subclass it and give three functions of tensors.

    They may not look at values on the CPU (``.item()``, ``if tensor:``) and must give tensors of
    the same shapes each time, so that a GPU can replay them.

    Args:
        num_envs: N.
        max_episode_steps: time limit of an episode; None: that of the class.

    Attributes:
        observation_space: of one copy: a ``Box``.
        action_space: of one copy: ``Discrete``, ``MultiDiscrete``, ``MultiBinary`` or a ``Box``.
        device: where the copies are.
        generator: what new episodes are drawn from.
    """

    observation_space: ClassVar[spaces.Space[Any]]
    action_space: ClassVar[spaces.Space[Any]]
    #: Time limit of an episode; None: there is none.
    max_episode_steps: int | None = None

    def __init__(self, num_envs: int, *, max_episode_steps: int | None = None) -> None:
        self.num_envs = num_envs
        if max_episode_steps is not None:
            self.max_episode_steps = max_episode_steps
        checked = Spaces(type(self).__name__, self.observation_space, self.action_space)
        self.spaces: Mapping[str, AgentSpaces] = {AGENT: checked.agent}
        self.to(torch.device("cpu"))

    @abstractmethod
    def initial(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """The states that N new episodes begin with, on :attr:`device`."""

    @abstractmethod
    def observe(self, state: State) -> torch.Tensor:
        """What the agent sees, ``[N, *observation]``."""

    @abstractmethod
    def advance(
        self, state: State, action: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """The next states, the rewards ``[N]``, and where an episode terminated, ``[N]``.

        Args:
            state: is not to be changed.
            action: ``[N, *action]``; of a ``Box`` within its bounds.
        """

    def to(self, device: torch.device) -> None:
        """Move all copies; episodes begin anew at the next reset."""
        self.device = device
        self.generator = torch.Generator(device)
        self._state: dict[str, torch.Tensor] = {}
        self._elapsed = torch.zeros(self.num_envs, dtype=torch.int64, device=device)
        space = self.action_space
        self._bounds: tuple[torch.Tensor, torch.Tensor] | None = None
        if isinstance(space, spaces.Box):
            low, high = (torch.as_tensor(each, device=device) for each in (space.low, space.high))
            self._bounds = low, high

    # -- steps as tensors ---------------------------------------------------------------------

    def reset_tensors(self, seed: int) -> torch.Tensor:
        """Begin all episodes anew; give the observations ``[N, *observation]``."""
        self.generator.manual_seed(seed)
        self._state = self.initial(self.generator)
        self._elapsed.zero_()
        return self.observe(self._state)

    def step_tensors(self, action: torch.Tensor) -> TensorStep:
        """Take one action ``[N, *action]`` in every copy.

        The state is changed in place, and nothing waits for the device, so that a step can be part
        of a captured graph.
        """
        if self._bounds is not None:
            action = action.clamp(*self._bounds)
        state, reward, terminated = self.advance(self._state, action)
        self._elapsed += 1
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = self._elapsed >= self.max_episode_steps
        final_observation = self.observe(state)
        ended = terminated | truncated
        for name, fresh in self.initial(self.generator).items():
            begins = ended.view(-1, *[1] * (fresh.ndim - 1))
            self._state[name].copy_(torch.where(begins, fresh, state[name]))
        self._elapsed.masked_fill_(ended, 0)
        return TensorStep(
            self.observe(self._state), reward.float(), terminated, truncated, final_observation
        )

    # -- steps as arrays ----------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """See the base class; without a seed the generator goes on."""
        if seed is None:
            seed = int(torch.randint(2**62, (), generator=self.generator, device=self.device))
        return {AGENT: self.reset_tensors(seed).cpu().numpy()}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """See the base class."""
        stepped = self.step_tensors(torch.as_tensor(actions[AGENT], device=self.device))
        ended = bool((stepped.terminated | stepped.truncated).any())
        return {
            AGENT: AgentStep(
                observation=stepped.observation.cpu().numpy(),
                reward=stepped.reward.cpu().numpy(),
                terminated=stepped.terminated.cpu().numpy(),
                truncated=stepped.truncated.cpu().numpy(),
                final_observation=stepped.final_observation.cpu().numpy() if ended else None,
            )
        }

    def state_dict(self) -> dict[str, Any]:
        """States, ages and the generator."""
        return {
            "state": {name: value.clone() for name, value in self._state.items()},
            "elapsed": self._elapsed.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave, on whatever device it was."""
        self._state = {name: value.to(self.device) for name, value in state["state"].items()}
        self._elapsed = state["elapsed"].to(self.device)
        self.generator.set_state(state["generator"].cpu())
