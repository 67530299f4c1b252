"""What the actions of a batch were worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from plugrl.core.tensordict.returns import gae, reward_to_go

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

    def __call__(self, batch: TensorDict) -> dict[str, float]:
        """Add ``[R, T, 1]`` tensors to a batch ``[R, T]``.

        Returns:
            ``explained_variance``: 1 less the variance of what the values missed over that of
            their targets; 1 is perfect, 0 no better than their mean.
        """
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
        reward, valid = _by_time(following["reward"]), _valid(batch)
        advantage = gae(reward, value, ahead, terminated, done, self._gamma, self._lmbda, valid)
        target = advantage + value
        _write(batch, state_value=value, advantage=advantage, value_target=target)
        if valid is not None:
            advantage, target = advantage[valid], target[valid]
        spread = float(target.var()) if target.size else 0.0
        return {"explained_variance": 1 - float(advantage.var()) / spread} if spread else {}

    def _values(self, observation: torch.Tensor) -> np.ndarray:
        """``[T, R]`` of observations ``[R, T, ...]``."""
        flat = observation.transpose(0, 1)
        steps, rows = flat.shape[:2]
        return self._agent.value(flat.flatten(0, 1)).view(steps, rows).cpu().numpy()


class RewardToGo:
    """Writes the discounted rewards from each step to its episode's end as ``advantage``.

    It knows no values: what follows a cut, by truncation or by the end of the batch, counts as
    nothing, so that batches should be long beside episodes.

    Args:
        gamma: the discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma

    def __call__(self, batch: TensorDict) -> dict[str, float]:
        """Add an ``[R, T, 1]`` tensor to a batch ``[R, T]``; there are no metrics."""
        reward, done = _by_time(batch["next", "reward"]), _by_time(batch["next", "done"])
        _write(batch, advantage=reward_to_go(reward, done, self._gamma, _valid(batch)))
        return {}


def _write(batch: TensorDict, **arrays: np.ndarray) -> None:
    """Put arrays ``[T, R]`` into a batch ``[R, T]`` as ``[R, T, 1]``."""
    for name, array in arrays.items():
        tensor = torch.from_numpy(array).transpose(0, 1).unsqueeze(-1)
        batch.set(name, tensor.to(batch["next", "reward"].device))


def _valid(batch: TensorDict) -> np.ndarray | None:
    """``[T, R]``, which steps may be learned from; None: all."""
    valid = batch.get("valid", None)
    if valid is None or bool(valid.all()):
        return None
    return np.asarray(valid.transpose(0, 1).cpu().numpy())


def _by_time(tensor: torch.Tensor) -> np.ndarray:
    """``[R, T, 1]`` as an array ``[T, R]``."""
    return tensor.squeeze(-1).transpose(0, 1).cpu().numpy()
