"""What the actions of a batch were worth: estimators that write into a batch of one policy.

Rows R are agents in environments and T is time. The formulas are those of
:mod:`plugrl.core.estimators`; here stands what the numbers of a batch are and which observations
the value head is asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plugrl.core.estimators import discounted_sum, gae, gae_in_turns

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents.agent import Agent


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

    @torch.no_grad()
    def __call__(self, batch: TensorDict) -> dict[str, float]:
        """Add ``[R, T, 1]`` tensors to a batch ``[R, T]``.

        Returns:
            ``explained_variance``: 1 less the variance of what the values missed over that of
            their targets; 1 is perfect, 0 no better than their mean.
        """
        reward, done, terminated = _steps(batch)
        if "waiting" in batch:
            valid = batch["valid"]
            value, next_value = self._values_in_turns(batch, done, terminated)
            advantage = gae_in_turns(
                reward,
                value,
                next_value,
                terminated,
                done,
                self._gamma,
                self._lmbda,
                acting=batch["acting"],
                waiting=batch["waiting"],
                known=valid,
            )
        else:
            valid = _valid(batch)
            value, next_value = self._values(batch, done)
            advantage = gae(
                reward,
                value,
                self._gamma,
                self._lmbda,
                next_values=next_value,
                terminated=terminated,
                done=done,
                valid=valid,
            )
        target = advantage + value
        _write(batch, state_value=value, advantage=advantage, value_target=target)
        if valid is not None:
            advantage, target = advantage[valid], target[valid]
        spread = float(target.var(correction=0)) if target.numel() else 0.0
        if not spread:
            return {}
        return {"explained_variance": 1 - float(advantage.var(correction=0)) / spread}

    @torch.no_grad()
    def on_device(self, batch: TensorDict) -> dict[str, torch.Tensor]:
        """As a call, for a batch of steps that are all valid, without a look at any value.

        A GPU can replay it. The value head is asked about what followed each step.
        """
        reward, done, terminated = _steps(batch)
        value = self._agent.value(batch["observation"])
        next_value = self._agent.value(batch["next", "observation"])
        advantage = gae(
            reward,
            value,
            self._gamma,
            self._lmbda,
            next_values=next_value,
            terminated=terminated,
            done=done,
        )
        target = advantage + value
        _write(batch, state_value=value, advantage=advantage, value_target=target)
        return {"explained_variance": 1 - advantage.var(correction=0) / target.var(correction=0)}

    def _values(self, batch: TensorDict, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of all steps and of what followed them, ``[R, T]``."""
        value = self._agent.value(batch["observation"])
        next_value = torch.empty_like(value)
        next_value[:, :-1] = value[:, 1:]
        # What follows the last step, or an episode's end, is no step of this batch.
        apart = done.clone()
        apart[:, -1] = True
        next_value[apart] = self._agent.value(batch["next", "observation"][apart])
        return value, next_value

    def _values_in_turns(
        self, batch: TensorDict, done: torch.Tensor, terminated: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of own steps, and of what followed where that counts; 0 elsewhere."""
        own, known = batch["acting"], batch["valid"]
        value, next_value = (torch.zeros(done.shape, device=done.device) for _ in range(2))
        if own.any():
            value[own] = self._agent.value(batch["observation"][own])
        cut = done & ~terminated
        cut[:, -1] |= _goes_on(own, done, known)
        if cut.any():
            next_value[cut] = self._agent.value(batch["next", "observation"][cut])
        return value, next_value


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

    @torch.no_grad()
    def __call__(self, batch: TensorDict) -> dict[str, float]:
        """Add an ``[R, T, 1]`` tensor to a batch ``[R, T]``; there are no metrics."""
        reward, done, _ = _steps(batch)
        if "waiting" not in batch:
            to_go = discounted_sum(reward, self._gamma, done=done, valid=_valid(batch))
        else:
            none, own = torch.zeros_like(reward), batch["acting"]
            # Known rewards count in what came before them, whatever follows is known or not.
            to_go = gae_in_turns(
                reward,
                none,
                none,
                done,
                done,
                self._gamma,
                1.0,
                acting=own,
                waiting=batch["waiting"],
                known=own,
            )
        _write(batch, advantage=to_go)
        return {}

    @torch.no_grad()
    def on_device(self, batch: TensorDict) -> dict[str, torch.Tensor]:
        """As a call, for a batch of steps that are all valid, without a look at any value."""
        reward, done, _ = _steps(batch)
        _write(batch, advantage=discounted_sum(reward, self._gamma, done=done))
        return {}


def _steps(batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``reward``, ``done`` and ``terminated``, ``[R, T]``."""
    following = batch["next"]
    reward, done, terminated = (
        following[name].squeeze(-1) for name in ("reward", "done", "terminated")
    )
    return reward, done, terminated


def _write(batch: TensorDict, **tensors: torch.Tensor) -> None:
    """Put tensors ``[R, T]`` into a batch as ``[R, T, 1]``."""
    for name, tensor in tensors.items():
        batch.set(name, tensor.unsqueeze(-1))


def _valid(batch: TensorDict) -> torch.Tensor | None:
    """``[R, T]``, which steps may be learned from; None: all."""
    valid: torch.Tensor | None = batch.get("valid", None)
    return None if valid is None or bool(valid.all()) else valid


def _goes_on(own: torch.Tensor, done: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Whether the last own step of each row leads to one right behind the batch, ``[R]``."""
    steps = own.shape[1]
    last = steps - 1 - own.flip(1).to(torch.uint8).argmax(1, keepdim=True)
    ended = (done & (torch.arange(steps, device=own.device) >= last)).any(1)
    return own.any(1) & ~ended & known.gather(1, last).squeeze(1)
