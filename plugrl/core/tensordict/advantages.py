"""Advantages of a batch, estimated with the value head of its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from plugrl.core.tensordict.returns import gae

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents import Agent


class GeneralisedAdvantage:
    """Writes ``state_value``, ``advantage`` and ``value_target`` into a batch.

    A cut-off episode is worth what the value head says of its true last observation; one that
    terminated is worth nothing more.

    Source: Schulman et al., arXiv 1506.02438, eq. 16.

    Args:
        agent: whose value head is asked.
        gamma: the discount.
        lmbda: 0 gives one-step differences, 1 whole returns.
    """

    def __init__(self, agent: Agent, gamma: float, lmbda: float) -> None:
        self._agent = agent
        self._gamma = gamma
        self._lmbda = lmbda

    def __call__(self, batch: TensorDict) -> None:
        """Add ``[R, T, 1]`` tensors to a batch ``[R, T]``."""
        following = batch["next"]
        done = _by_time(following["done"])
        terminated = _by_time(following["terminated"])
        value = self._values(batch["observation"])
        ahead = np.empty_like(value)
        ahead[:-1] = value[1:]
        # What follows the last step, or an episode's end, is no step of this batch.
        apart = done.copy()
        apart[-1] = True
        rows = torch.from_numpy(apart).to(batch.device or "cpu")
        seen = following["observation"].transpose(0, 1)[rows]
        ahead[apart] = self._agent.value(seen).cpu().numpy()
        advantage = gae(
            _by_time(following["reward"]), value, ahead, terminated, done, self._gamma, self._lmbda
        )
        for name, array in (
            ("state_value", value),
            ("advantage", advantage),
            ("value_target", advantage + value),
        ):
            tensor = torch.from_numpy(array).transpose(0, 1).unsqueeze(-1)
            batch.set(name, tensor.to(following["reward"].device))

    def _values(self, observation: torch.Tensor) -> np.ndarray:
        """``[T, R]`` of observations ``[R, T, ...]``."""
        flat = observation.transpose(0, 1)
        steps, rows = flat.shape[:2]
        return self._agent.value(flat.flatten(0, 1)).view(steps, rows).cpu().numpy()


def _by_time(tensor: torch.Tensor) -> np.ndarray:
    """``[R, T, 1]`` as an array ``[T, R]``."""
    return tensor.squeeze(-1).transpose(0, 1).cpu().numpy()
