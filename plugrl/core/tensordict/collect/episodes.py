"""What ended episodes returned, and how long they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import AgentStep


class EpisodeStatistics:
    """Adds up returns and lengths of the episodes of each agent.

    Args:
        agents: the names of the agents.
        num_envs: the environments that are stepped together.
    """

    def __init__(self, agents: Sequence[str], num_envs: int) -> None:
        self._return = {agent: np.zeros(num_envs) for agent in agents}
        self._length = {agent: np.zeros(num_envs, np.int64) for agent in agents}
        self.ended: dict[str, list[tuple[float, int]]] = {agent: [] for agent in agents}

    def begin(self) -> None:
        """Forget what is open and what has ended."""
        for agent in self.ended:
            self._return[agent][:] = 0
            self._length[agent][:] = 0
        self.take()

    def add(self, steps: Mapping[str, AgentStep]) -> None:
        """Add one step of all agents."""
        for agent, step in steps.items():
            returns, lengths = self._return[agent], self._length[agent]
            if step.real is None:
                returns += step.reward
                lengths += 1
            else:
                returns[step.real] += step.reward[step.real]
                lengths += step.real
            ended = step.terminated | step.truncated
            if ended.any():
                rows = np.flatnonzero(ended)
                self.ended[agent] += zip(
                    returns[rows].tolist(), lengths[rows].tolist(), strict=True
                )
                returns[rows] = 0
                lengths[rows] = 0

    def take(self) -> dict[str, list[tuple[float, int]]]:
        """Return and length of the episodes that ended since the last call, by agent."""
        taken = self.ended
        self.ended = {agent: [] for agent in taken}
        return taken

    def state_dict(self) -> dict[str, Any]:
        """What is open; what has ended is in the metrics already."""
        return {
            agent: {
                "return": torch.from_numpy(self._return[agent].copy()),
                "length": torch.from_numpy(self._length[agent].copy()),
            }
            for agent in self.ended
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for agent, held in state.items():
            self._return[agent][:] = held["return"].numpy()
            self._length[agent][:] = held["length"].numpy()
        self.take()


def episode_metrics(
    ended: Mapping[str, Sequence[tuple[float, int]]], prefix: str
) -> dict[str, float]:
    """Means over episodes; with several agents those of each too. Nothing if none has ended."""
    everything = [episode for episodes in ended.values() for episode in episodes]
    metrics = _means(everything, prefix)
    if len(ended) > 1:
        for agent, episodes in ended.items():
            metrics |= _means(episodes, f"{prefix}/{agent}")
    return metrics


def _means(episodes: Sequence[tuple[float, int]], prefix: str) -> dict[str, float]:
    if not episodes:
        return {f"{prefix}/episodes": 0}
    returns, lengths = zip(*episodes, strict=True)
    return {
        f"{prefix}/episodes": len(episodes),
        f"{prefix}/mean_episode_return": float(np.mean(returns)),
        f"{prefix}/mean_episode_length": float(np.mean(lengths)),
    }
