"""What the actions of a batch were worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from plugrl.core.tensordict.learn.returns import gae, gae_in_turns, reward_to_go

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents.agents import Agent


class GeneralisedAdvantage:
    """Writes ``state_value``, ``advantage`` and ``value_target`` into a batch.

    A cut-off episode is worth what the value head says of its true last observation; one that
    terminated is worth nothing more. Where agents take turns, see :func:`gae_in_turns`; the value
    head is asked about an agent's own steps alone.

    Source: Schulman et al., arXiv 1506.02438, eq. 16.

    Args:
        agent: whose value head is asked.
        gamma: the discount.
        lmbda: 0 gives one-step differences, 1 whole returns.
    """

    knows_turns = True

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
        if "waiting" in batch:
            return self._in_turns(batch, done, terminated)
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
        return _written(batch, value, advantage, valid)

    def _in_turns(
        self, batch: TensorDict, done: np.ndarray, terminated: np.ndarray
    ) -> dict[str, float]:
        own, waiting, known = (_mask(batch, name) for name in ("acting", "waiting", "valid"))
        value, ahead = np.zeros(done.shape, np.float32), np.zeros(done.shape, np.float32)
        self._fill(value, batch["observation"], own)
        cut = done & ~terminated & (own | waiting)
        cut[-1] |= _goes_on(own, done, known)
        self._fill(ahead, batch["next", "observation"], cut)
        advantage = gae_in_turns(
            _by_time(batch["next", "reward"]),
            value,
            ahead,
            terminated,
            done,
            self._gamma,
            self._lmbda,
            acting=own,
            waiting=waiting,
            finished=known,
        )
        return _written(batch, value, advantage, known)

    def _fill(self, values: np.ndarray, observation: torch.Tensor, where: np.ndarray) -> None:
        """Put the values of observations ``[R, T, ...]`` where ``where [T, R]`` is true."""
        if where.any():
            rows = torch.from_numpy(where).to(observation.device)
            values[where] = self._agent.value(observation.transpose(0, 1)[rows]).cpu().numpy()

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

    knows_turns = True

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma

    def __call__(self, batch: TensorDict) -> dict[str, float]:
        """Add an ``[R, T, 1]`` tensor to a batch ``[R, T]``; there are no metrics."""
        reward, done = _by_time(batch["next", "reward"]), _by_time(batch["next", "done"])
        if "waiting" in batch:
            own, waiting = _mask(batch, "acting"), _mask(batch, "waiting")
            none, turns = np.zeros_like(reward), {"acting": own, "waiting": waiting}
            # Known rewards count in what came before them, whatever follows is known or not.
            to_go = gae_in_turns(
                reward, none, none, done, done, self._gamma, 1.0, finished=own, **turns
            )
            _write(batch, advantage=to_go)
            return {}
        _write(batch, advantage=reward_to_go(reward, done, self._gamma, _valid(batch)))
        return {}


def _write(batch: TensorDict, **arrays: np.ndarray) -> None:
    """Put arrays ``[T, R]`` into a batch ``[R, T]`` as ``[R, T, 1]``."""
    for name, array in arrays.items():
        tensor = torch.from_numpy(array).transpose(0, 1).unsqueeze(-1)
        batch.set(name, tensor.to(batch["next", "reward"].device))


def _written(
    batch: TensorDict, value: np.ndarray, advantage: np.ndarray, valid: np.ndarray | None
) -> dict[str, float]:
    """Write what was estimated, ``[T, R]``, into a batch; give the metrics."""
    target = advantage + value
    _write(batch, state_value=value, advantage=advantage, value_target=target)
    if valid is not None:
        advantage, target = advantage[valid], target[valid]
    spread = float(target.var()) if target.size else 0.0
    return {"explained_variance": 1 - float(advantage.var()) / spread} if spread else {}


def _goes_on(own: np.ndarray, done: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether the last own step of each row leads to one right behind the batch, ``[R]``."""
    steps = len(own)
    last = steps - 1 - own[::-1].argmax(0)
    ended = (done & (np.arange(steps)[:, None] >= last)).any(0)
    goes_on: np.ndarray = own.any(0) & ~ended & known[last, np.arange(own.shape[1])]
    return goes_on


def _mask(batch: TensorDict, name: str) -> np.ndarray:
    """A mask ``[R, T]`` of a batch as ``[T, R]``."""
    return np.asarray(batch[name].transpose(0, 1).cpu().numpy())


def _valid(batch: TensorDict) -> np.ndarray | None:
    """``[T, R]``, which steps may be learned from; None: all."""
    valid = batch.get("valid", None)
    if valid is None or bool(valid.all()):
        return None
    return np.asarray(valid.transpose(0, 1).cpu().numpy())


def _by_time(tensor: torch.Tensor) -> np.ndarray:
    """``[R, T, 1]`` as an array ``[T, R]``."""
    return tensor.squeeze(-1).transpose(0, 1).cpu().numpy()
