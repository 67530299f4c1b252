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

from plugrl.core.errors import ContractError
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

    Raises:
        ValueError: the time limit is no whole number above 0.
        ContractError: a step gives something else than tensors of the shapes that are asked for.

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
        limit: Any = self.max_episode_steps
        if limit is not None and not (type(limit) is int and 1 <= limit < 2**63):
            raise ValueError(f"max_episode_steps must be a whole number above 0, not {limit!r}")
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
        self._state = self._states("initial", self.initial(self.generator))
        self._elapsed.zero_()
        return self._observed(self._state)

    def step_tensors(self, action: torch.Tensor) -> TensorStep:
        """Take one action ``[N, *action]`` in every copy.

        The state is changed in place, and nothing waits for the device, so that a step can be part
        of a captured graph.
        """
        # A tensor of its own: whoever chose the action keeps what was chosen.
        action = action.clone() if self._bounds is None else action.clamp(*self._bounds)
        state, reward, terminated = self._advanced(action)
        self._elapsed += 1
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = self._elapsed >= self.max_episode_steps
        final_observation = self._observed(state)
        ended = terminated | truncated
        begun = self._states("initial", self.initial(self.generator), self._state)
        for name, fresh in begun.items():
            begins = ended.view(-1, *[1] * (fresh.ndim - 1))
            self._state[name].copy_(torch.where(begins, fresh, state[name]))
        self._elapsed.masked_fill_(ended, 0)
        return TensorStep(
            self._observed(self._state), reward.float(), terminated, truncated, final_observation
        )

    # -- what a subclass gives: shapes and kinds alone, so that nothing waits for the device ----

    def _advanced(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], Any, Any]:
        given: Any = self.advance(self._state, action)
        if not isinstance(given, tuple) or len(given) != 3:
            held = f"{len(given)} values" if isinstance(given, tuple) else _kind(given)
            raise self._fault("advance", held, "(states, rewards, terminated)")
        state, reward, terminated = given
        state = self._states("advance", state, self._state)
        reward = self._tensor("advance", "rewards", reward, (self.num_envs,))
        terminated = self._tensor("advance", "terminated", terminated, (self.num_envs,))
        if terminated.dtype != torch.bool:
            raise self._fault("advance", f"terminated of {terminated.dtype}", "torch.bool")
        return state, reward, terminated

    def _observed(self, state: State) -> torch.Tensor:
        shape = (self.num_envs, *(self.observation_space.shape or ()))
        seen = self._tensor("observe", "observations", self.observe(state), shape)
        held = {value.untyped_storage().data_ptr() for value in state.values()}
        # The states are changed in place by the next step, and what was seen must not be.
        return seen.clone() if seen.untyped_storage().data_ptr() in held else seen

    def _states(
        self, function: str, given: Any, like: State | None = None
    ) -> dict[str, torch.Tensor]:
        """Tensors by name, with a row a copy, or of the shapes of ``like``."""
        if not isinstance(given, Mapping):
            raise self._fault(function, f"{_kind(given)} as states", "tensors by name")
        missing = [name for name in like or () if name not in given]
        if missing:
            raise self._fault(function, f"no state {missing[0]!r}", "those of initial()")
        states = dict(given)
        for name in states if like is None else like:
            shape = None if like is None else tuple(like[name].shape)
            states[name] = self._tensor(function, f"state {name!r}", states[name], shape)
        return states

    def _tensor(
        self, function: str, what: str, given: Any, shape: tuple[int, ...] | None
    ) -> torch.Tensor:
        if not isinstance(given, torch.Tensor):
            raise self._fault(function, f"{what} as {_kind(given)}", "a tensor")
        found = tuple(given.shape)
        if shape is not None and found != shape:
            raise self._fault(function, f"{what} of shape {list(found)}", f"shape {list(shape)}")
        if shape is None and found[:1] != (self.num_envs,):
            wanted = f"a row for each of {self.num_envs} environments"
            raise self._fault(function, f"{what} of shape {list(found)}", wanted)
        if given.device.type != self.device.type:
            wanted = f"tensors on self.device, {self.device}"
            raise self._fault(function, f"{what} on {given.device}", wanted)
        if given.is_complex() or given.layout != torch.strided:
            held = "complex numbers" if given.is_complex() else "a sparse tensor"
            raise self._fault(function, f"{what} as {held}", "a dense tensor of real numbers")
        return given

    def _fault(self, function: str, given: str, wanted: str) -> ContractError:
        return ContractError(
            f"environment {type(self).__name__}: {function}() gave {given}; give {wanted}"
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


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
